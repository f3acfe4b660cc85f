package topo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/nic"
)

func TestAdopt(t *testing.T) {
	given, err := ReadMatrix(`{"cuda:0":[["mlx5_4"],["mlx5_5"]], "cuda:1":[["mlx5_5"],["mlx5_4"]],
		"cuda:4":[["mlx5_0"],["mlx5_1"]], "cuda:5":[["mlx5_1"],["mlx5_0"]], "cpu:0":[[],["mlx5_0"]]}`)
	must(t, err)
	known := []string{"mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5"}
	gpus := func(host ...int) []gpu.Info {
		var all []gpu.Info
		for i, h := range host {
			all = append(all, gpu.Info{Index: i, HostIndex: h})
		}
		return all
	}
	for _, tc := range []struct {
		name        string
		known, used []string
		gpus        []gpu.Info
		want        string // or the error's words
	}{
		{"some visible", known, known, gpus(4, 5), "cpu:0: | mlx5_0\ncuda:0: mlx5_0 | mlx5_1\ncuda:1: mlx5_1 | mlx5_0\n"},
		{"in another order", known, []string{"mlx5_1", "mlx5_5"}, gpus(5, 1), "cpu:0: |\ncuda:0: mlx5_1 |\ncuda:1: mlx5_5 |\n"},
		{"one that the file lacks", known, known, gpus(2, 0), "cpu:0: | mlx5_0\ncuda:1: mlx5_4 | mlx5_5\n"},
		{"ordinals of the host unknown", known, []string{"mlx5_4"}, gpus(-1), "cpu:0: |\ncuda:0: mlx5_4 |\ncuda:1: | mlx5_4\ncuda:4: |\ncuda:5: |\n"},
		{"a NIC that is not there", known[:3], known[:3], nil, `NIC "mlx5_5"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Adopt(given, Names{Known: tc.known, Used: tc.used, Port: 1}, tc.gpus)
			if err != nil {
				if !errors.Is(err, nic.ErrNoDevice) || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("err = %v, want one with %s", err, tc.want)
				}
				return
			}
			diff(t, lines(got), tc.want)
		})
	}
}

func TestReadMatrix(t *testing.T) {
	file := filepath.Join(t.TempDir(), "m.json")
	must(t, os.WriteFile(file, []byte(`{"cpu:0":[["a"],[]]}`), 0o644))
	for _, tc := range []struct{ in, want string }{
		{file, "cpu:0: a |\n"},
		{` {"cpu:1":[[],["b"]]}`, "cpu:1: | b\n"},
		{file + "x", "no such file"},
		{`{"cpu:1":[[]]}`, "two arrays"},
		{`{`, "topo: "},
	} {
		m, err := ReadMatrix(tc.in)
		if err != nil && !strings.Contains(err.Error(), tc.want) || err == nil && lines(m) != tc.want {
			t.Errorf("ReadMatrix(%q) = %q, %v: want %q", tc.in, lines(m), err, tc.want)
		}
	}
}

// TestAdoptPorts has NICs with two ports, by names with a port and without.
func TestAdoptPorts(t *testing.T) {
	m := &Machine{NICs: []NIC{{Name: "m0", Ports: []Port{{Num: 1}, {Num: 2}}}, {Name: "m1", Ports: []Port{{Num: 1}}}}}
	for _, tc := range []struct {
		name  string
		port  int
		used  []string
		given string // the preferred ones
		want  string // or the error's words
	}{
		{"the usual port by its number", 1, []string{"m0", "m1"}, `"m0:1","m1"`, "m0 m1 |"},
		{"a port that is used", 1, []string{"m0:2", "m1"}, `"m0:2"`, "m0:2 |"},
		{"a port that is not used", 1, []string{"m0", "m1"}, `"m0:2","m1"`, "m1 |"},
		{"both ports", 1, []string{"m0", "m0:2"}, `"m0:2","m0"`, "m0:2 m0 |"},
		{"one port twice", 1, []string{"m0"}, `"m0","m0:1"`, "m0 |"},
		{"the device, of which another port is used", 1, []string{"m0:2", "m1"}, `"m0","m1"`, "m0:2 m1 |"},
		{"the second port is the usual one", 2, []string{"m0", "m1:1"}, `"m0:2","m1:1","m0:1"`, "m0 m1:1 |"},
		{"no such port", 1, []string{"m0"}, `"m0:3"`, `NIC "m0:3" of location "cpu:0" is not there: want some of ["m0" "m0:2" "m1"]`},
		{"not a port", 1, []string{"m0"}, `"m0:x"`, `NIC "m0:x"`},
		{"a port of another device", 1, []string{"m0"}, `"m1:2"`, `NIC "m1:2"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			given, err := ReadMatrix(`{"cpu:0":[[` + tc.given + `],[]]}`)
			must(t, err)
			got, err := Adopt(given, m.Names(tc.used, tc.port), nil)
			if err != nil {
				if !errors.Is(err, nic.ErrNoDevice) || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("err = %v, want one with %s", err, tc.want)
				}
				return
			}
			diff(t, lines(got), "cpu:0: "+tc.want+"\n")
		})
	}
}
