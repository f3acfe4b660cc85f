package railhop_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/softnic"
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
			want: map[string][2][]string{"cpu:0": {{"mlx5_1"}, {}}, "cuda:0": {{"mlx5_1"}, {}}},
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
