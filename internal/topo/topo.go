// Package topo finds out where the GPUs and NICs of a host are: on which NUMA node,
// behind which PCIe switch, how near to each other. Of that it makes the matrix by
// which Mooncake chooses NICs.
//
// It owns the reading of sysfs, what was recorded of another machine's included, and
// the rules of the matrix. It opens no device and sends nothing: what the drivers say
// of GPUs is given to it, and which NICs are used is for its callers to choose.
//
//	Tree (sysfs, or a record) --Read--> Machine --Matrix--> location: preferred, others
//
// There are no goroutines; a Machine does not change.
package topo

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/railhop/railhop/internal/gpu"
)

// Machine is what is known of a host.
type Machine struct {
	Nodes []Node `json:"nodes"` // by number
	GPUs  []GPU  `json:"gpus"`  // those that the process sees, by ordinal; then the others, by bus id
	NICs  []NIC  `json:"nics"`  // as the kernel has numbered them
	// Peermem is the kernel module by which NICs reach GPU memory, or "".
	Peermem string `json:"peermem,omitempty"`
}

// Node is a NUMA node.
type Node struct {
	ID        int    `json:"id"`
	CPUs      string `json:"cpus"`                // such as "0-55,112-167"
	Distances []int  `json:"distances,omitempty"` // to each node, by number; 10 is near
}

// Place is where a device is.
type Place struct {
	BusID string `json:"bus_id,omitempty"` // PCI bus id, "" for a device that is not on PCIe
	// Path is the device's own folder in sysfs, "" if it is not there: the way from the
	// processor, bridge by bridge.
	Path string `json:"path,omitempty"`
	NUMA int    `json:"numa"`           // node, -1 if unknown
	Link string `json:"link,omitempty"` // such as "32.0 GT/s x16"
	// Reduced says what the link could do, if it does less.
	Reduced string `json:"reduced,omitempty"`
}

// GPU is a GPU, visible to the process or not.
type GPU struct {
	gpu.Info        // Index is -1 if it is not visible, and then the driver says nothing of it
	Place    Place  `json:"place,omitzero"`
	Peers    []Peer `json:"peers,omitempty"` // the other visible ones
	// Unsaid means that no driver was asked: what the GPU can is not known.
	Unsaid bool `json:"unsaid,omitempty"`
}

// Visible reports whether the process sees the GPU.
func (g *GPU) Visible() bool { return g.Index >= 0 }

// Peer is how a GPU reaches another.
type Peer struct {
	BusID string `json:"bus_id"`
	gpu.Link
}

// gpusFile is where a record has what the driver said, which sysfs does not hold.
const gpusFile = "railhop/gpus.json"

// AskGPUs asks a provider of its GPUs, and how they reach each other if it knows.
func AskGPUs(p gpu.Provider) ([]GPU, error) {
	infos, err := p.Devices()
	if err != nil {
		return nil, err
	}
	gpus := make([]GPU, len(infos))
	for i, info := range infos {
		gpus[i] = GPU{Info: info}
		linker, ok := p.(gpu.Linker)
		for j := 0; ok && j < len(infos); j++ {
			if i == j {
				continue
			}
			l, err := linker.Link(info.BusID, infos[j].BusID)
			if err != nil {
				return nil, err
			}
			gpus[i].Peers = append(gpus[i].Peers, Peer{BusID: infos[j].BusID, Link: l})
		}
	}
	return gpus, nil
}

// Read reads a tree. gpus are those that the process sees; nil means that no driver
// could be asked: then they are those of the record, or else all that are on PCIe, in
// order of their bus ids. It fails only if there is nothing of sysfs at t.
func Read(t Tree, gpus []GPU) (*Machine, error) {
	return read(reader{t: t}, gpus)
}

// ReadPlaces is Read with no more of ports than their numbers, since their GIDs are most
// of the work: enough for a matrix.
func ReadPlaces(t Tree, gpus []gpu.Info) (*Machine, error) {
	all := make([]GPU, len(gpus))
	for i, g := range gpus {
		all[i] = GPU{Info: g}
	}
	return read(reader{t: t, brief: true}, all)
}

func read(r reader, gpus []GPU) (*Machine, error) {
	t := r.t
	if !r.has("devices") && !r.has("class") && !r.has("bus") {
		return nil, fmt.Errorf("topo: %s: want sysfs or a copy of it: it has neither class, bus nor devices", t.Name())
	}
	m := &Machine{Nodes: r.nodes(), NICs: r.nics()}
	for _, name := range []string{"nvidia_peermem", "nv_peer_mem"} {
		if r.text("module/"+name+"/initstate") == "live" {
			m.Peermem = name
			break
		}
	}
	if gpus == nil {
		text, err := t.ReadFile(gpusFile)
		switch {
		case err == nil:
			if err := json.Unmarshal([]byte(text), &gpus); err != nil {
				return nil, fmt.Errorf("topo: %s: %s: %w", t.Name(), gpusFile, err)
			}
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("topo: %s: %w", t.Name(), err)
		}
	}
	m.GPUs = r.gpus(gpus)
	return m, nil
}

// KeepGPUs puts what a driver said into a record.
func KeepGPUs(rec *Recorder, gpus []GPU) error {
	text, err := json.Marshal(gpus)
	if err == nil {
		rec.put(gpusFile, string(text))
	}
	return err
}

// reader reads what is there, and takes what is not for unknown.
type reader struct {
	t     Tree
	brief bool // leave out all of ports but their numbers
}

func (r reader) text(path string) string {
	text, err := r.t.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

func (r reader) number(path string, unknown int) int {
	n, err := strconv.Atoi(r.text(path))
	if err != nil {
		return unknown
	}
	return n
}

func (r reader) list(path string) []string {
	names, err := r.t.ReadDir(path)
	if err != nil {
		return nil
	}
	slices.SortFunc(names, natural)
	return names
}

func (r reader) has(path string) bool {
	names, err := r.t.ReadDir(path)
	return err == nil && len(names) > 0
}

func (r reader) nodes() []Node {
	const root = "devices/system/node"
	nodes := []Node{}
	for _, name := range r.list(root) {
		digits, ok := strings.CutPrefix(name, "node")
		id, err := strconv.Atoi(digits)
		if !ok || err != nil || id < 0 {
			continue
		}
		n := Node{ID: id, CPUs: r.text(root + "/" + name + "/cpulist")}
		for word := range strings.FieldsSeq(r.text(root + "/" + name + "/distance")) {
			if d, err := strconv.Atoi(word); err == nil {
				n.Distances = append(n.Distances, d)
			}
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return nodes
}

// natural orders names as a person would: mlx5_2 before mlx5_10.
func natural(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			x, y := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits is how many digits s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

// Infos describes the GPUs that the process sees, by ordinal.
func (m *Machine) Infos() []gpu.Info {
	var infos []gpu.Info
	for i := range m.GPUs {
		if m.GPUs[i].Visible() {
			infos = append(infos, m.GPUs[i].Info)
		}
	}
	return infos
}
