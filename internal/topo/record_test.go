package topo

import (
	"fmt"
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

// TestRecordedSoftRoCE reads what was recorded on a virtual machine with Soft-RoCE
// devices on one switch.
func TestRecordedSoftRoCE(t *testing.T) {
	tree, err := Open("testdata/rxe-vm.sysfs")
	must(t, err)
	m, err := Read(tree, nil)
	must(t, err)
	if len(m.GPUs) != 0 || len(m.NICs) != 3 {
		t.Fatalf("%+v", m)
	}
	for i := range m.NICs {
		n := &m.NICs[i]
		best, ok := n.Port(1).Best()
		if n.Problem(1) != "" || !ok || best.Index != 1 || best.Netdev != fmt.Sprintf("net%d", i) || best.Subnet.String() != "::ffff:10.99.0.0/120" {
			t.Errorf("%s: %q, %+v", n.Name, n.Problem(1), best)
		}
		for _, g := range n.Port(1).GIDs {
			if !g.Subnet.Contains(g.Addr) {
				t.Errorf("%s: %v is not in its subnet, %v", n.Name, g.Addr, g.Subnet)
			}
		}
	}
	diff(t, lines(m.Matrix(names(m))), "cpu:0: | rxe0 rxe1 rxe2\n")
}

// FuzzRecord reads whatever is given for a record.
func FuzzRecord(f *testing.F) {
	for _, name := range []string{"rxe-vm", "no-nic", "h200-vm"} { // the small ones
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
