package railhop_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/softnic"
	"github.com/railhop/railhop/internal/topo"
)

// TestLocalTopology has the matrix that engines go by.
func TestLocalTopology(t *testing.T) {
	t.Parallel()
	const nics = "mlx5_0=127.0.0.1,numa=0;mlx5_1=127.0.0.1,numa=1;mlx5_10=127.0.0.1,numa=1"
	file := filepath.Join(t.TempDir(), "topology.json")
	if err := os.WriteFile(file, []byte(`{"cuda:0":[["mlx5_0"],["mlx5_1","mlx5_10"]]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		set     settings
		devices []string
		want    map[string][2][]string
		warns   string // in the log
		fails   error
	}{
		{name: "by node", want: map[string][2][]string{"cpu:0": {{"mlx5_0", "mlx5_1", "mlx5_10"}, {}}, "cuda:0": {{"mlx5_1", "mlx5_10"}, {"mlx5_0"}}}},
		{name: "device argument", devices: []string{"mlx5_0"}, want: map[string][2][]string{"cpu:0": {{"mlx5_0"}, {}}, "cuda:0": {{"mlx5_0"}, {}}}},
		{
			name: "filter", set: settings{"MC_TE_FILTERS": " mlx5_1 , mlx5_9"},
			want:  map[string][2][]string{"cpu:0": {{"mlx5_1"}, {}}, "cuda:0": {{"mlx5_1"}, {}}},
			warns: "nic=mlx5_9",
		},
		{name: "filter and argument", set: settings{"MC_TE_FILTERS": "mlx5_1"}, devices: []string{"mlx5_0"}, fails: railhop.ErrNoProvider},
		{
			name: "filter lets nothing through", set: settings{"MC_TE_FILTERS": "mlx5_9"}, warns: "MC_TE_FILTERS lets none of the NICs mlx5_0, mlx5_1, mlx5_10 through",
			want: map[string][2][]string{"cpu:0": {{}, {}}, "cuda:0": {{}, {}}},
		},
		{name: "file", set: settings{"MC_CUSTOM_TOPO_JSON": file}, want: map[string][2][]string{"cuda:0": {{"mlx5_0"}, {"mlx5_1", "mlx5_10"}}}},
		{name: "JSON", set: settings{"MC_CUSTOM_TOPO_JSON": `{"cpu:0":[["mlx5_10"],[]]}`}, want: map[string][2][]string{"cpu:0": {{"mlx5_10"}, {}}}},
		{
			name: "JSON and filter", set: settings{"MC_CUSTOM_TOPO_JSON": `{"cpu:0":[["mlx5_10"],["mlx5_1"]]}`, "MC_TE_FILTERS": "mlx5_1"},
			want: map[string][2][]string{"cpu:0": {{}, {"mlx5_1"}}},
		},
		{name: "JSON with a NIC that is not there", set: settings{"MC_CUSTOM_TOPO_JSON": `{"cpu:0":[["mlx5_9"],[]]}`}, fails: nic.ErrNoDevice},
		{
			name: "no such file", set: settings{"MC_CUSTOM_TOPO_JSON": file + ".not"}, warns: "setting not taken",
			want: map[string][2][]string{"cpu:0": {{"mlx5_0", "mlx5_1", "mlx5_10"}, {}}, "cuda:0": {{"mlx5_1", "mlx5_10"}, {"mlx5_0"}}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log strings.Builder
			env, warnings := config.Load(func(name string) (string, bool) { v, ok := tt.set[name]; return v, ok })
			if len(warnings) > 0 {
				t.Fatal(warnings)
			}
			cfg := railhop.Config{Host: "127.0.0.1", Devices: tt.devices, Settings: env, Registry: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil))}
			cfg.NICs = must(softnic.New(softnic.Options{Devices: must(softnic.ParseDevices(nics))}))
			cfg.GPUs = must(softgpu.New(softgpu.Options{Devices: must(softgpu.ParseDevices("0000:a0:00.0,numa=1")), Current: -1}))
			got, err := railhop.LocalTopology(cfg)
			if tt.fails != nil {
				if !errors.Is(err, tt.fails) {
					t.Errorf("err = %v, want %v", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			e, err := railhop.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			if !strings.Contains(log.String(), tt.warns) {
				t.Errorf("no %q logged:\n%s", tt.warns, log.String())
			}
		})
	}
}

// TestLocalTopologyWithoutNICs has the nodes of this machine, whatever they are.
func TestLocalTopologyWithoutNICs(t *testing.T) {
	t.Parallel()
	cfg := railhop.Defaults()
	cfg.Host, cfg.Registry, cfg.Protocol = "127.0.0.1", t.TempDir(), "tcp"
	cfg.Settings.Providers = config.Providers{Soft: true}
	got, err := railhop.LocalTopology(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 {
		t.Error("no location: want a node at least")
	}
	for location, lists := range got {
		if !strings.HasPrefix(location, "cpu:") || len(lists[0]) > 0 || len(lists[1]) > 0 {
			t.Errorf("%s: %q: want nodes without NICs", location, lists)
		}
	}
}

// lineLog keeps lines, as long as there is room.
type lineLog chan string

func (l lineLog) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default:
	}
	return len(b), nil
}

// TestPeerNIC has the ways to say which of the peer's NICs a local one writes to.
func TestPeerNIC(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, nics, topology string, set settings, log lineLog) (*railhop.Engine, uint64) {
		env, warnings := config.Load(func(name string) (string, bool) { v, ok := set[name]; return v, ok })
		if len(warnings) > 0 {
			t.Fatal(warnings)
		}
		env.Transport.TopologyFile = topology
		cfg := railhop.Config{Host: "127.0.0.1", Settings: env, Registry: t.TempDir(), Logger: slog.New(slog.NewTextHandler(log, nil))}
		cfg.NICs = must(softnic.New(softnic.Options{Devices: must(softnic.ParseDevices(nics))}))
		cfg.GPUs = must(softgpu.New(softgpu.Options{Devices: softgpu.Uniform(1), Current: -1}))
		e, err := railhop.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		dev := must(cfg.GPUs.Open("0000:a0:00.0"))
		addr := must(dev.Alloc(4096))
		t.Cleanup(func() {
			if err := errors.Join(e.Close(), dev.Free(addr), dev.Close()); err != nil {
				t.Error(err)
			}
		})
		if err := e.Register(addr, 4096, ""); err != nil {
			t.Fatal(err)
		}
		return e, addr
	}
	const (
		plain    = "m0=127.0.0.1;m1=127.0.0.1;m2=127.0.0.1"
		here     = "m0=127.0.0.1,subnet=127.0.0.0/24;m1=127.0.1.1,subnet=127.0.1.0/24"
		there    = "x0=127.0.1.9;x1=127.0.0.9"
		allThree = `{"cuda:0":[["m0","m1","m2"],[]]}`
	)
	for _, tt := range []struct {
		name                 string
		nics, peer, topology string
		set                  settings
		from, want           string
		rule                 string // in the log; "" if no rail is asked for
	}{
		{name: "same rail, by name", nics: plain, peer: plain, topology: allThree, from: "m1", want: "m1 m1 m1 m1", rule: "name"},
		{name: "same rail, none is preferred", nics: plain, peer: plain, topology: `{"cuda:0":[[],["m0","m1","m2"]]}`, from: "m1", want: "m1 m1 m1 m1", rule: "name"},
		{name: "same rail, by subnet", nics: here, peer: there, topology: `{"cuda:0":[["x0","x1"],[]]}`, from: "m1", want: "x0 x0 x0 x0", rule: "subnet"},
		{name: "same rail, by map", nics: plain, peer: plain, topology: allThree, set: settings{"MC_PXN_RAIL_MAP": `{"m0":"a","m1":"b","m2":"a","m7":"b"}`}, from: "m2", want: "m0 m0 m0 m0", rule: "map"},
		{name: "in turn", nics: plain, peer: "n0=127.0.0.1;n1=127.0.0.1", topology: `{"cuda:0":[["n0","n1"],[]]}`, set: settings{"MC_PATH_ROUNDROBIN": "1"}, from: "m0", want: "n0 n1 n0 n1", rule: "name"},
		{name: "same name, though another is preferred", nics: plain, peer: plain, topology: `{"cuda:0":[["m0"],["m2"]]}`, set: settings{"MC_ENABLE_DEST_DEVICE_AFFINITY": "1"}, from: "m2", want: "m2 m2 m2 m2"},
		{
			name: "paired", nics: plain, peer: plain, topology: allThree,
			set: settings{"MC_ENABLE_HCA_PEER_AFFINITY": "1", "MC_NIC_PEER_AFFINITY": "m0=m1,m2;m1=m0", "MC_PATH_ROUNDROBIN": "1"}, from: "m0", want: "m1 m2 m1 m2",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			log := make(lineLog, 256)
			to, addr := start(t, tt.peer, tt.topology, nil, nil)
			e, _ := start(t, tt.nics, "", tt.set, log)
			id, err := e.OpenSegment(t.Context(), to.Name())
			if err != nil {
				t.Fatal(err)
			}
			got, err := railhop.Chosen(e, id, tt.from, addr, 4)
			if err != nil || strings.Join(got, " ") != tt.want {
				t.Errorf("%s, %v, want %s", got, err, tt.want)
			}
			told := 0
			for len(log) > 0 {
				if line := <-log; strings.Contains(line, "rails of a target") && strings.Contains(line, " by="+tt.rule+" ") {
					told++
				}
			}
			if want := min(len(tt.rule), 1); told != want {
				t.Errorf("the rule %q was logged %d times, want %d", tt.rule, told, want)
			}
		})
	}
}

// TestLocation has the names that host memory is published by.
func TestLocation(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, topology, given, want string }{
		{"one node", `{"cpu:3":[["m0"],[]]}`, "", "cpu:3"},
		{"no node", `{"cuda:0":[["m0"],[]]}`, "*", "*"},
		{"two nodes", `{"cpu:0":[["m0"],[]],"cpu:1":[["m0"],[]]}`, "*", "of the page"},
		{"as the caller says", `{"cpu:0":[["m0"],[]],"cpu:1":[["m0"],[]]}`, "cpu:1", "cpu:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := railhop.Defaults()
			cfg.Host, cfg.Registry, cfg.Settings.Transport.TopologyFile = "127.0.0.1", t.TempDir(), tt.topology
			cfg.NICs = must(softnic.New(softnic.Options{Devices: must(softnic.ParseDevices("m0=127.0.0.1"))}))
			cfg.Settings.Providers = config.Providers{Soft: true}
			e, err := railhop.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			mem := railhop.Heap(8192)
			for i := range mem {
				mem[i] = 1
			}
			addr := railhop.AddressOf(mem)
			if err := e.Register(addr, 8192, tt.given); err != nil {
				t.Fatal(err)
			}
			want := tt.want
			if want == "of the page" {
				want = "*"
				if node, ok := topo.PageNode(addr); ok {
					want = fmt.Sprintf("cpu:%d", node)
				}
			}
			if got := railhop.Locations(e); len(got) != 1 || got[0] != want {
				t.Errorf("%q, want %s", got, want)
			}
			runtime.KeepAlive(mem)
		})
	}
}
