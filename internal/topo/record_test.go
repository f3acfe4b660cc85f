package topo

import (
	"os"
	"strings"
	"testing"
)

// TestRecordedVM reads what was recorded on a virtual machine with a real H200.
func TestRecordedVM(t *testing.T) {
	tree, err := Open("testdata/h200-vm.sysfs")
	must(t, err)
	m, err := Read(tree, nil)
	must(t, err)
	if len(m.GPUs) != 1 || len(m.NICs) != 0 || len(m.Nodes) != 1 {
		t.Fatalf("%+v", m)
	}
	g := m.GPUs[0]
	if !g.Visible() || g.Unsaid || !g.DMABuf || !g.IPC || !g.StreamMemOps || g.Place.NUMA != -1 || g.Place.Link != "32.0 GT/s x16" {
		t.Errorf("%+v", g)
	}
	diff(t, lines(m.Matrix(nil)), "cpu:0: |\ncuda:0: |\n")
	diff(t, m.Groups(), []Group{{NUMA: -1, Host: "pci0000:00", GPUs: []int{0}}})
}

// FuzzRecord reads whatever is given for a record.
func FuzzRecord(f *testing.F) {
	for _, name := range []string{"soft-roce", "no-nic", "h200-vm"} { // the small ones
		text, err := os.ReadFile("testdata/" + name + ".sysfs")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add(recordHead + "\ndevices/a = 1\nclass/infiniband/x/ports/1/gids/0 = ::\nbus/pci/devices/y -> pci:/\n")
	f.Fuzz(func(t *testing.T, text string) {
		tree, err := parseRecord("fuzz", strings.NewReader(text))
		if err != nil {
			return
		}
		rec := Record(tree)
		m, err := Read(rec, nil)
		if err != nil {
			return
		}
		m.Groups()
		m.Matrix(names(m))
		for i := range m.NICs {
			n := &m.NICs[i]
			if n.Problem(0) == "" {
				if _, ok := n.Port(0).Best(); !ok {
					t.Errorf("%s has no problem, and no GID", n.Name)
				}
			}
		}
		// What is recorded of it can be read again.
		must(t, KeepGPUs(rec, m.GPUs))
		var again strings.Builder
		must(t, rec.Write(&again))
		_, err = parseRecord("again", strings.NewReader(again.String()))
		must(t, err)
	})
}
