package cli

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/railhop/railhop/internal/topo"
)

const recorded = "../topo/testdata/"

// showTopology runs topology on a recorded machine.
func showTopology(t *testing.T, machine string, args ...string) string {
	t.Helper()
	status, out, errOut := runMain(append([]string{"topology", "--root", recorded + machine + ".sysfs"}, args...)...)
	if status != 0 || errOut != "" {
		t.Fatalf("status %d, %q", status, errOut)
	}
	return out
}

func TestTopologyTables(t *testing.T) {
	for _, machine := range []string{"hgx-rails", "no-nic", "soft-roce"} {
		golden(t, "topology-"+machine+".txt", showTopology(t, machine))
	}
}

// TestTopologyJSON wants Mooncake's form: locations, each with two lists of names.
func TestTopologyJSON(t *testing.T) {
	var got topo.Matrix
	if err := json.Unmarshal([]byte(showTopology(t, "hgx-dual-port", "--json")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 10 {
		t.Errorf("%d locations: want 2 nodes and 8 GPUs", len(got))
	}
	want := [2][]string{{"mlx5_2", "mlx5_3"}, {"mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"}}
	if d := cmp.Diff(want, got["cuda:3"]); d != "" {
		t.Errorf("cuda:3 -want +got:\n%s", d)
	}
	var all struct {
		Machine topo.Machine
		Matrix  topo.Matrix
		Rails   map[string]string
		Unused  map[string]string `json:"unused_nics"`
		By      string            `json:"rails_by"`
	}
	if err := json.Unmarshal([]byte(showTopology(t, "hgx-rails", "--json", "--all")), &all); err != nil {
		t.Fatal(err)
	}
	if len(all.Machine.GPUs) != 8 || len(all.Rails) != 7 || len(all.Unused) != 1 || all.By != "subnet" || len(all.Matrix) != 10 {
		t.Errorf("all = %+v", all)
	}
}

func TestTopologySettings(t *testing.T) {
	for _, tc := range []struct {
		name, variable, value string
		machine               string
		args                  []string
		want                  []string
		status                int
	}{
		{"filter", "MC_TE_FILTERS", "mlx5_1, mlx5_10", "hgx-rails", nil, []string{"MC_TE_FILTERS leaves it out", "MC_TE_FILTERS names mlx5_10, which is not there"}, 0},
		{"filter with a port", "MC_TE_FILTERS", "mlx5_1:1", "hgx-rails", nil, []string{"│ mlx5_1 "}, 0},
		{"filter with a port that is not there", "MC_TE_FILTERS", "mlx5_1:2", "hgx-rails", nil, []string{"mlx5_1:2", "it has no port 2", "no NIC can be used"}, 0},
		{"own matrix with ports", "MC_CUSTOM_TOPO_JSON", `{"cuda:0":[["mlx5_4:1"],["mlx5_5"]]}`, "hgx-rails", []string{"--json"}, []string{`"mlx5_4"`}, 0},
		{"own matrix, no such port", "MC_CUSTOM_TOPO_JSON", `{"cuda:0":[["mlx5_4:2"],[]]}`, "hgx-rails", nil, []string{`MC_CUSTOM_TOPO_JSON: NIC "mlx5_4:2" of location "cuda:0" is not there`}, 1},
		{"rail map with a port", "MC_PXN_RAIL_MAP", `{"mlx5_0:1":"red"}`, "hgx-rails", nil, []string{"│ red "}, 0},
		{"rail map", "MC_PXN_RAIL_MAP", `{"mlx5_0":"red"}`, "hgx-rails", nil, []string{"│ red ", "rails are known by map"}, 0},
		{"GID", "MC_GID_INDEX", "1", "hgx-rails", nil, []string{"fe80::a288:c203:0:1000 (1)"}, 0},
		{"no such GID", "MC_GID_INDEX", "9", "hgx-rails", nil, []string{"MC_GID_INDEX is 9, and the GID table has nothing there", "no NIC can be used"}, 0},
		{"port", "MC_IB_PORT", "2", "dgx-h100", nil, []string{"it has no port 2"}, 0},
		{"own matrix", "MC_CUSTOM_TOPO_JSON", `{"cuda:0":[["mlx5_4"],["mlx5_5"]]}`, "hgx-rails", []string{"--json"}, []string{`"mlx5_4"`}, 0},
		{"own matrix, no such NIC", "MC_CUSTOM_TOPO_JSON", `{"cuda:0":[["mlx5_9"],[]]}`, "hgx-rails", nil, []string{`MC_CUSTOM_TOPO_JSON: NIC "mlx5_9" of location "cuda:0" is not there`}, 1},
		{"own matrix, no such file", "MC_CUSTOM_TOPO_JSON", "/not/there", "hgx-rails", nil, []string{"MC_CUSTOM_TOPO_JSON is not taken", "/not/there"}, 0},
		{"flat", "", "", "cloud-flat", nil, []string{"all 8", "PCIe tells no NIC from another for all GPUs"}, 0},
		{"links", "", "", "hgx-links", nil, []string{"10.9.3.34 (3)", "a target on other links"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.variable != "" {
				t.Setenv(tc.variable, tc.value)
			}
			status, out, errOut := runMain(append([]string{"topology", "--root", recorded + tc.machine + ".sysfs"}, tc.args...)...)
			for _, want := range tc.want {
				if !strings.Contains(out+errOut, want) {
					t.Errorf("no %q in\n%s%s", want, out, errOut)
				}
			}
			if status != tc.status {
				t.Errorf("status %d, %q", status, errOut)
			}
		})
	}
}

// TestTopologyPlayed has the hardware that a process would play.
func TestTopologyPlayed(t *testing.T) {
	t.Setenv("RAILHOP_SOFT_NICS", "a=127.0.0.1,subnet=127.0.0.0/24,numa=1,rate=50GB;b=127.0.1.1,subnet=127.0.1.0/24")
	t.Setenv("RAILHOP_SOFT_GPUS", "0000:a0:00.0,numa=1,memops=off;0000:a1:00.0,peer=off")
	status, out, errOut := runMain("topology", "--soft")
	for _, want := range []string{"played in software", "400 Gb/s software", "127.0.1.0/24", "rails are known by subnet", "1 PCIe", "played"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if status != 0 || errOut != "" {
		t.Errorf("status %d, %q", status, errOut)
	}
	t.Setenv("RAILHOP_PROVIDERS", "soft,verbs")
	if status, out, errOut := runMain("topology"); status != 0 || !strings.Contains(out, "this host") || !strings.Contains(out, "soft GPU") {
		t.Errorf("GPUs played beside this host's NICs: status %d, %s%s", status, out, errOut)
	}
	t.Setenv("RAILHOP_SOFT_NICS", "a")
	if status, _, errOut := runMain("topology", "--soft"); status != 1 || !strings.Contains(errOut, "RAILHOP_SOFT_NICS") {
		t.Errorf("bad NICs: status %d, %q", status, errOut)
	}
}

// TestTopologyPicture draws every machine; one is kept for the documents.
func TestTopologyPicture(t *testing.T) {
	files, err := filepath.Glob(recorded + "*.sysfs")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		machine := strings.TrimSuffix(filepath.Base(f), ".sysfs")
		t.Run(machine, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "host.svg")
			showTopology(t, machine, "--svg", file)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			d := xml.NewDecoder(strings.NewReader(string(text)))
			for {
				if _, err := d.Token(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if machine == "hgx-rails" {
				golden(t, "../../../docs/topology.svg", string(text))
			}
			if got := showTopology(t, machine, "--svg", "-"); got != string(text) {
				t.Error("standard output has another picture")
			}
		})
	}
}

// TestTopologyHere shows this machine, whatever it has, and what was recorded of it.
func TestTopologyHere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "here.sysfs")
	status, out, errOut := runMain("topology", "--record", file)
	if status != 0 || !strings.Contains(out, "this host") {
		t.Fatalf("status %d, %q, %q", status, out, errOut)
	}
	_, live, _ := runMain("topology", "--json")
	status, played, errOut := runMain("topology", "--root", file, "--json")
	if status != 0 {
		t.Fatalf("status %d, %q", status, errOut)
	}
	if !strings.Contains(out, "cannot be opened") && live != played { // a record does not have the device nodes
		t.Errorf("here\n%s, recorded\n%s", live, played)
	}
}

func TestTopologyUsage(t *testing.T) {
	for _, tc := range []struct {
		args   string
		status int
		want   string
	}{
		{"--soft --root x", 2, "--soft and --root exclude each other"},
		{"--soft --record x", 2, "--record is for this host's own hardware"},
		{"--record -", 2, "want a file"},
		{"--record /not/there/x", 1, "--record: open /not/there/x"},
		{"--all", 2, "--all is for --json"},
		{"--json --svg -", 2, "both write to standard output"},
		{"x", 2, `unexpected argument "x"`},
		{"--root /not/there", 1, "/not/there"},
		{"--root testdata", 1, "testdata: want sysfs or a copy of it"},
		{"--root topology_test.go", 1, "line 1 is"},
		{"--soft --svg /not/there/x", 1, "--svg: open /not/there/x"},
	} {
		status, _, errOut := runMain(append([]string{"topology"}, strings.Fields(tc.args)...)...)
		if status != tc.status || !strings.Contains(errOut, tc.want) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("topology %s: status %d, %q: want %d, one line with %q", tc.args, status, errOut, tc.status, tc.want)
		}
	}
}
