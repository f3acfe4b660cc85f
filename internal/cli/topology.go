package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu/cuda"
	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/nic/softnic"
	"github.com/railhop/railhop/internal/plan"
	"github.com/railhop/railhop/internal/topo"
)

// topologyOptions are the flags of topology.
type topologyOptions struct {
	soft              soft
	root, svg, record string
	all               bool
}

func newTopologyCmd(a *app) *cobra.Command {
	var o topologyOptions
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Show the GPUs, NICs, PCIe switches, NUMA nodes and rails of this host",
		Long: `topology shows what railhop finds on this host: GPUs with what they can, NICs with
their ports, what hangs on which PCIe switch and NUMA node, which NICs each GPU prefers,
and the rails with the rule by which they are known. It opens no port and moves nothing.

With --json it prints the matrix of locations and NICs, in the form of Mooncake's
transfer_engine_topology_dump; what it prints can be edited and given back in
MC_CUSTOM_TOPO_JSON. --all adds everything else that is known. --svg draws a picture.

--record keeps in one small text file all that was read; --root shows what was recorded,
on any machine, or a copy of a machine's /sys.`,
		Example: `  railhop topology
  railhop topology --svg host.svg
  railhop topology --json > topology.json
  railhop topology --record host.sysfs
  railhop topology --root host.sysfs`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.topology(cmd, o) },
	}
	o.soft.flag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.root, "root", "", "show what was recorded: a file of --record, or a folder that stands for /sys")
	f.StringVar(&o.svg, "svg", "", "draw a picture into this file; - is standard output")
	f.StringVar(&o.record, "record", "", "record what is read into this file")
	f.BoolVar(&o.all, "all", false, "with --json: all that is known, not the matrix alone")
	return cmd
}

// hostTopology is all that is shown of a host.
type hostTopology struct {
	From    string        `json:"from"` // such as "this host"
	Machine *topo.Machine `json:"machine"`
	Matrix  topo.Matrix   `json:"matrix"`
	// Problems are why NICs are not used, by name.
	Problems map[string]string   `json:"unused_nics"`
	Rails    map[string]string   `json:"rails"`    // by NIC
	Rule     string              `json:"rails_by"` // "" if no NIC is used
	Why      string              `json:"rails_why"`
	Notes    []string            `json:"notes"`
	gids     map[string]topo.GID // by NIC
	names    topo.Names          // that a given matrix may have
	own      bool                // it is this host, and not a record or played
}

func (a *app) topology(cmd *cobra.Command, o topologyOptions) error {
	env, warnings := config.FromEnviron()
	for _, w := range warnings {
		a.log.Warn(w.String())
	}
	switch {
	case o.soft.on && o.root != "":
		return usagef("topology: --soft and --root exclude each other: want one of them")
	case o.record != "" && (o.soft.on || o.root != ""):
		return usagef("topology: --record is for this host's own hardware: want it without --soft and --root")
	case o.record == "-":
		return usagef("topology: --record -: want a file")
	case o.all && !a.json:
		return usagef("topology: --all is for --json: want both, or neither")
	case a.json && o.svg == "-":
		return usagef("topology: --json and --svg - both write to standard output: want a file for --svg")
	}
	h, err := a.lookAtHost(o, env)
	if err != nil {
		return err
	}
	if o.svg != "" {
		if err := writeTo(o.svg, a.out, h.svg); err != nil {
			return fmt.Errorf("topology: --svg: %w", err)
		}
		if o.svg == "-" {
			return nil
		}
	}
	switch {
	case a.json && o.all:
		return a.printJSON(h, true)
	case a.json:
		return a.printJSON(h.Matrix, true)
	}
	return h.show(a.out)
}

// writeTo writes a file, or to standard output.
func writeTo(name string, out io.Writer, write func(io.Writer) error) error {
	if name == "-" {
		return write(out)
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

func (a *app) lookAtHost(o topologyOptions, env config.Env) (*hostTopology, error) {
	h := &hostTopology{Problems: make(map[string]string), Rails: make(map[string]string), Notes: []string{}, gids: make(map[string]topo.GID)}
	var err error
	switch {
	case o.root != "":
		h.From = o.root
		tree, terr := topo.Open(o.root)
		if terr != nil {
			return nil, terr
		}
		h.Machine, err = topo.Read(tree, nil)
	case o.soft.on || env.Providers.Soft && !env.Providers.Verbs:
		h.From = "played in software"
		h.Machine, err = playedMachine(env, a.log)
	default:
		h.From, h.own = "this host", true
		err = h.look(o.record, env, a.log)
	}
	if err != nil {
		return nil, err
	}
	h.judge(env)
	return h, h.match(env)
}

// look reads this host, and keeps what it reads in a file if that has a name. GPUs may be
// played beside real NICs.
func (h *hostTopology) look(file string, env config.Env, log *slog.Logger) error {
	gpus := []topo.GPU{}
	var err error
	if env.Providers.Soft {
		if gpus, err = playedGPUs(env.Providers.SoftGPUs, log); err != nil {
			return err
		}
	} else {
		p, err := cuda.Open(cuda.Options{Logger: log})
		if err == nil {
			gpus, err = topo.AskGPUs(p)
		}
		if err != nil {
			h.note("no GPU can be used: %w", err)
		}
	}
	tree := topo.Host()
	rec := topo.Record(tree)
	if file != "" {
		tree = rec
	}
	if h.Machine, err = topo.Read(tree, gpus); err != nil {
		return err
	}
	for i := range gpus {
		if env.Providers.Soft { // whatever has that bus id here is another
			h.Machine.GPUs[i].Place = gpus[i].Place
		}
	}
	if file == "" {
		return nil
	}
	if err = topo.KeepGPUs(rec, gpus); err == nil {
		err = writeTo(file, nil, rec.Write)
	}
	if err != nil {
		return fmt.Errorf("topology: --record: %w", err)
	}
	return nil
}

// playedMachine is what RAILHOP_SOFT_NICS and RAILHOP_SOFT_GPUS describe, or else two
// of each.
func playedMachine(env config.Env, log *slog.Logger) (*topo.Machine, error) {
	softNICs, softGPUs := env.Providers.SoftNICs, env.Providers.SoftGPUs
	if softNICs == "" && softGPUs == "" {
		softNICs, softGPUs = "mlx5_0=127.0.0.1;mlx5_1=127.0.0.1", "2"
	}
	gpus, err := playedGPUs(softGPUs, log)
	m := &topo.Machine{GPUs: gpus, NICs: []topo.NIC{}, Nodes: []topo.Node{}}
	if err != nil {
		return nil, err
	}
	if softNICs == "" {
		return m, nil
	}
	configs, err := softnic.ParseDevices(softNICs)
	if err != nil {
		return nil, fmt.Errorf("RAILHOP_SOFT_NICS: %w", err)
	}
	for _, c := range configs {
		port := topo.Port{Num: 1, State: "ACTIVE", Layer: "software", Rate: float64(c.Rate) * 8 / 1e9}
		port.GIDs = []topo.GID{{Addr: netip.AddrFrom16(c.Addr.As16()), Subnet: c.Subnet}}
		m.NICs = append(m.NICs, topo.NIC{Name: c.Name, Place: topo.Place{NUMA: c.NUMA}, Ports: []topo.Port{port}})
	}
	return m, nil
}

func playedGPUs(text string, log *slog.Logger) ([]topo.GPU, error) {
	if text == "" {
		return []topo.GPU{}, nil
	}
	configs, err := softgpu.ParseDevices(text)
	if err != nil {
		return nil, fmt.Errorf("RAILHOP_SOFT_GPUS: %w", err)
	}
	p, err := softgpu.New(softgpu.Options{Devices: configs, Current: -1, Logger: log})
	if err != nil {
		return nil, err
	}
	gpus, err := topo.AskGPUs(p)
	for i := range gpus {
		gpus[i].Place.NUMA = gpus[i].NUMA
	}
	return gpus, err
}

// split makes a NIC of each port that MC_TE_FILTERS names, as an engine does.
func (h *hostTopology) split(env config.Env) {
	nics := []topo.NIC{}
	for _, n := range h.Machine.NICs {
		named := 0
		for _, f := range env.Transport.Filters {
			if f.Name != n.Name {
				continue
			}
			one := n
			if one.Name = f.On(env.RDMA.Port); one.Name != n.Name {
				if p := n.Port(f.Port); p != nil {
					one.Ports = []topo.Port{*p}
				}
			}
			if !slices.ContainsFunc(nics, func(n topo.NIC) bool { return n.Name == one.Name }) {
				nics = append(nics, one)
			}
			named++
		}
		if named == 0 {
			nics = append(nics, n)
		}
	}
	h.Machine.NICs = nics
}

// judge finds out which NICs are used, and by which GID.
func (h *hostTopology) judge(env config.Env) {
	h.names = h.Machine.Names(nil, env.RDMA.Port)
	h.split(env)
	for i := range h.Machine.NICs {
		n := &h.Machine.NICs[i]
		num := env.RDMA.Port
		if f := env.Transport.Filters; len(f) > 0 {
			at := slices.IndexFunc(f, func(d config.Device) bool { return d.On(num) == n.Name })
			if at < 0 {
				h.Problems[n.Name] = "MC_TE_FILTERS leaves it out"
				continue
			}
			if f[at].Port != 0 {
				num = f[at].Port
			}
		}
		why := n.Problem(num)
		if why == "" && h.own {
			why = deviceProblem(n)
		}
		if why == "" {
			gid, ok := chosenGID(n.Port(num), env.RDMA.GIDIndex)
			if h.gids[n.Name] = gid; !ok {
				why = fmt.Sprintf("%s is %d, and the GID table has nothing there", env.RDMA.GIDIndexFrom, env.RDMA.GIDIndex)
			}
		}
		if why != "" {
			h.Problems[n.Name] = why
		}
	}
	for _, d := range env.Transport.Filters {
		if !slices.Contains(h.names.Known, d.Name) {
			h.note("MC_TE_FILTERS names %s, which is not there", d.Name)
		}
	}
	switch used := h.used(); {
	case len(h.Machine.NICs) == 0:
		h.note("no NIC is there: engines run on TCP")
	case len(used) == 0:
		h.note("no NIC can be used: engines run on TCP")
	}
	if len(h.Machine.GPUs) == 0 {
		h.note("no GPU is there: nothing is relayed")
	}
	h.noteGPUs()
}

// deviceProblem says why this process cannot open a NIC.
func deviceProblem(n *topo.NIC) string {
	if n.Device == "" {
		return "it has no device node: the kernel module ib_uverbs is not loaded, or does not know it"
	}
	path := "/dev/infiniband/" + n.Device
	if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
		return path + " cannot be opened: " + err.Error()
	}
	return ""
}

func chosenGID(p *topo.Port, index int) (topo.GID, bool) {
	if index < 0 {
		return p.Best()
	}
	i := slices.IndexFunc(p.GIDs, func(g topo.GID) bool { return g.Index == index })
	if i < 0 {
		return topo.GID{}, false
	}
	return p.GIDs[i], true
}

// used are the NICs that engines use.
func (h *hostTopology) used() []string {
	names := []string{}
	for _, n := range h.Machine.NICs {
		if _, bad := h.Problems[n.Name]; !bad {
			names = append(names, n.Name)
		}
	}
	return names
}

// match makes the matrix, and names the rails.
func (h *hostTopology) match(env config.Env) error {
	h.Matrix = h.Machine.Matrix(h.used())
	if given := env.Transport.TopologyFile; given != "" {
		matrix, err := topo.ReadMatrix(given)
		if err != nil {
			h.note("MC_CUSTOM_TOPO_JSON is not taken: %w", err)
		} else {
			h.names.Used = h.used()
			if h.Matrix, err = topo.Adopt(matrix, h.names, h.Machine.Infos()); err != nil {
				return fmt.Errorf("MC_CUSTOM_TOPO_JSON: %w", err)
			}
			h.note("the matrix is that of MC_CUSTOM_TOPO_JSON")
		}
	}
	var nics []plan.NIC
	for _, name := range h.used() {
		g := h.gids[name]
		nics = append(nics, plan.NIC{Device: name, GID: g.Addr, Subnet: g.Subnet})
	}
	rails := plan.NewRails(env.PXN.RailMap, nics)
	if len(nics) > 0 {
		rule, why := rails.Rule()
		h.Rule, h.Why = rule.String(), why
	}
	for _, name := range h.used() {
		h.Rails[name] = rails.Local(name)
	}
	return nil
}
