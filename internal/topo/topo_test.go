package topo

import (
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/nic"
)

func diff(t *testing.T, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// lines writes a matrix in short: "cuda:0: a b | c".
func lines(m Matrix) string {
	var b strings.Builder
	for _, at := range slices.SortedFunc(maps.Keys(m), natural) {
		line := at + ": " + strings.Join(m[at][0], " ") + " | " + strings.Join(m[at][1], " ")
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

func names(m *Machine) []string {
	var all []string
	for _, n := range m.NICs {
		all = append(all, n.Name)
	}
	return all
}

func TestMatrix(t *testing.T) {
	for _, tc := range []struct {
		machine string
		nics    []string // nil means all
		want    string   // the first lines
	}{
		{"dgx-h100", nil, `cpu:0: mlx5_0 mlx5_3 mlx5_4 mlx5_5 | mlx5_6 mlx5_9 mlx5_10 mlx5_11
cpu:1: mlx5_6 mlx5_9 mlx5_10 mlx5_11 | mlx5_0 mlx5_3 mlx5_4 mlx5_5
cuda:0: mlx5_0 | mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_9 mlx5_10 mlx5_11
cuda:1: mlx5_3 | mlx5_0 mlx5_4 mlx5_5 mlx5_6 mlx5_9 mlx5_10 mlx5_11
cuda:2: mlx5_4 | mlx5_0 mlx5_3 mlx5_5 mlx5_6 mlx5_9 mlx5_10 mlx5_11
cuda:3: mlx5_5 | mlx5_0 mlx5_3 mlx5_4 mlx5_6 mlx5_9 mlx5_10 mlx5_11
cuda:4: mlx5_6 | mlx5_0 mlx5_3 mlx5_4 mlx5_5 mlx5_9 mlx5_10 mlx5_11
cuda:5: mlx5_9 | mlx5_0 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_10 mlx5_11
cuda:6: mlx5_10 | mlx5_0 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_9 mlx5_11
cuda:7: mlx5_11 | mlx5_0 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_9 mlx5_10
`},
		// The GPU's own NIC is not used: the others of its node are all as far.
		{"dgx-h100", []string{"mlx5_11", "mlx5_4", "mlx5_3"}, `cpu:0: mlx5_4 mlx5_3 | mlx5_11
cpu:1: mlx5_11 | mlx5_4 mlx5_3
cuda:0: mlx5_4 mlx5_3 | mlx5_11
cuda:1: mlx5_3 | mlx5_11 mlx5_4
cuda:2: mlx5_4 | mlx5_11 mlx5_3
cuda:3: mlx5_4 mlx5_3 | mlx5_11
cuda:4: mlx5_11 | mlx5_4 mlx5_3
`},
		// No NIC of the GPU's node: all others count.
		{"dgx-h100", []string{"mlx5_0"}, `cpu:0: mlx5_0 |
cpu:1: | mlx5_0
cuda:0: mlx5_0 |
cuda:1: mlx5_0 |
cuda:2: mlx5_0 |
cuda:3: mlx5_0 |
cuda:4: mlx5_0 |
`},
		{"hgx-dual-port", nil, `cpu:0: mlx5_0 mlx5_1 mlx5_2 mlx5_3 | mlx5_4 mlx5_5 mlx5_6 mlx5_7
cpu:1: mlx5_4 mlx5_5 mlx5_6 mlx5_7 | mlx5_0 mlx5_1 mlx5_2 mlx5_3
cuda:0: mlx5_0 mlx5_1 | mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7
cuda:1: mlx5_0 mlx5_1 | mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7
cuda:2: mlx5_2 mlx5_3 | mlx5_0 mlx5_1 mlx5_4 mlx5_5 mlx5_6 mlx5_7
`},
		// A node of -1 is unknown, and not node 0.
		{"cloud-flat", []string{"rdmap0s0", "rdmap1s0"}, `cpu:0: | rdmap0s0 rdmap1s0
cpu:1: | rdmap0s0 rdmap1s0
cuda:0: rdmap0s0 rdmap1s0 |
cuda:1: rdmap0s0 rdmap1s0 |
`},
		{"no-nic", nil, "cpu:0: |\ncuda:0: |\ncuda:1: |\n"},
		{"soft-roce", nil, "cpu:0: | rxe0 rxe1\n"},
		{"soft-roce", []string{"not_there"}, "cpu:0: | not_there\n"},
	} {
		t.Run(tc.machine, func(t *testing.T) {
			m := machine(t, tc.machine)
			nics := tc.nics
			if nics == nil {
				nics = names(m)
			}
			got := lines(m.Matrix(nics))
			if !strings.HasPrefix(got, tc.want) {
				t.Errorf("got\n%swant\n%s", got, tc.want)
			}
		})
	}
}

// TestVisible has processes that see some of the GPUs, in an order of their own: GPUs
// are known by their bus ids.
func TestVisible(t *testing.T) {
	all := machineGPUs("hgx-links")
	seen := []GPU{all[5], all[0]}
	for i := range seen {
		seen[i].Index = i
		seen[i].BusID = "0000" + strings.ToUpper(seen[i].BusID) // as some drivers spell it
	}
	m, err := Read(build(machines["hgx-links"]), seen)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, lines(m.Matrix([]string{"rocep24s0", "rocep29s0"})), "cpu:0: rocep24s0 | rocep29s0\ncpu:1: rocep29s0 | rocep24s0\ncuda:0: rocep29s0 | rocep24s0\ncuda:1: rocep24s0 | rocep29s0\n")
	if len(m.GPUs) != 8 || m.GPUs[2].Visible() || m.GPUs[2].BusID != all[1].BusID || !m.GPUs[2].Unsaid {
		t.Errorf("GPUs = %+v: want the two that are seen, then the other six", m.GPUs)
	}
	none, err := Read(build(machines["hgx-links"]), []GPU{})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range none.GPUs {
		if g.Visible() {
			t.Errorf("no GPU is seen, and %+v is", g)
		}
	}
}

// TestUnasked has a host whose driver could not be asked.
func TestUnasked(t *testing.T) {
	m, err := Read(build(machines["dgx-h100"]), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range m.GPUs {
		if g.Index != i || !g.Unsaid || g.Name != "NVIDIA 2330" || g.NUMA != i/4 || g.Place.BusID != g.BusID {
			t.Errorf("GPU %d = %+v", i, g)
		}
	}
	diff(t, lines(m.Matrix(names(m))), lines(machine(t, "dgx-h100").Matrix(names(m))))
}

func TestPlayed(t *testing.T) {
	gpus := []gpu.Info{{Index: 0, NUMA: 1}, {Index: 1, NUMA: -1}, {Index: 2, NUMA: 0}}
	nics := []nic.Attr{{Name: "a", NUMA: -1}, {Name: "b", NUMA: 1}}
	diff(t, lines(Played(gpus, nics)), "cpu:0: a b |\ncuda:0: b | a\ncuda:1: b | a\ncuda:2: a | b\n")
	diff(t, lines(Played(gpus[:1], nil)), "cpu:0: |\ncuda:0: |\n")
	// NICs on no bus, GPUs too.
	m := machine(t, "soft-roce")
	m.GPUs = []GPU{{Info: gpu.Info{Index: 0, BusID: "0000:a0:00.0"}, Place: Place{NUMA: -1}}, {Info: gpu.Info{Index: 1, BusID: "0000:a1:00.0"}, Place: Place{NUMA: -1}}}
	diff(t, lines(m.Matrix(names(m))), "cpu:0: | rxe0 rxe1\ncuda:0: rxe0 | rxe1\ncuda:1: rxe1 | rxe0\n")
}

func TestDistance(t *testing.T) {
	at := func(path string) Place { return Place{BusID: "x", Path: path} }
	for _, tc := range []struct {
		name, a, b string
		want       int
	}{
		{"one switch", "devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", "devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:19:00.0", 2},
		{"functions of one card", "devices/pci0000:15/0000:15:01.0/0000:16:00.0", "devices/pci0000:15/0000:15:01.0/0000:16:00.1", 0},
		{"two host bridges", "devices/pci0000:15/0000:15:01.0/0000:16:00.0", "devices/pci0000:3d/0000:3d:01.0/0000:3e:00.0", 4},
		{"flat", "devices/pci0000:00/0000:00:04.0", "devices/pci0000:00/0000:00:10.0", 0},
		{"nowhere", "", "devices/pci0000:00/0000:00:10.0", -1},
	} {
		if got := Distance(at(tc.a), at(tc.b)); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
		if got := Distance(at(tc.b), at(tc.a)); got != tc.want {
			t.Errorf("%s, the other way: %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestGroups(t *testing.T) {
	for _, tc := range []struct {
		machine string
		want    []Group // the first
		groups  int
	}{
		{"dgx-h100", []Group{
			{NUMA: 0, Host: "pci0000:15", Switch: "0000:16:00.0", GPUs: []int{0}, NICs: []int{0}},
			{NUMA: 0, Host: "pci0000:3d", Switch: "0000:3e:00.0", GPUs: []int{1}, NICs: []int{1}},
		}, 8},
		{"hgx-dual-port", []Group{{NUMA: 0, Host: "pci0000:15", Switch: "0000:16:00.0", GPUs: []int{0, 1}, NICs: []int{0, 1}}}, 4},
		{"no-nic", []Group{{NUMA: 0, Host: "pci0000:10", GPUs: []int{0}}, {NUMA: 0, Host: "pci0000:20", GPUs: []int{1}}}, 2},
		{"cloud-flat", []Group{{NUMA: -1, Host: "pci0000:00", GPUs: []int{0, 1, 2, 3, 4, 5, 6, 7}, NICs: []int{0, 1, 2, 3, 4, 5, 6, 7}}}, 1},
		{"soft-roce", []Group{{NUMA: -1, NICs: []int{0, 1}}}, 1},
	} {
		t.Run(tc.machine, func(t *testing.T) {
			got := machine(t, tc.machine).Groups()
			if len(got) != tc.groups {
				t.Errorf("%d groups, want %d", len(got), tc.groups)
			}
			diff(t, got[:min(len(got), len(tc.want))], tc.want)
		})
	}
}

func TestNICs(t *testing.T) {
	m := machine(t, "hgx-rails")
	if got := m.NICs[3].Problem(0); got != "port 1 is DOWN (Disabled)" {
		t.Errorf("a pulled cable: %q", got)
	}
	if got := m.NICs[0].Problem(2); got != "it has no port 2" {
		t.Errorf("another port: %q", got)
	}
	n := &m.NICs[2]
	if n.Problem(0) != "" || n.Device != "uverbs2" || n.Place.BusID != "0000:4f:00.0" || n.Place.Link != "32.0 GT/s x16" || n.Place.Reduced != "" {
		t.Errorf("%+v: %s", n, n.Problem(0))
	}
	p := n.Port(0)
	best, ok := p.Best()
	want := GID{Index: 3, Addr: netip.MustParseAddr("::ffff:10.0.2.17"), Type: "RoCE v2", Netdev: "eth2", Subnet: netip.MustParsePrefix("::ffff:10.0.2.0/120")}
	if !ok || best != want || p.Rate != 400 || len(p.GIDs) != 4 {
		t.Errorf("%+v of %+v, want %+v", best, p, want)
	}
	ib := machine(t, "dgx-h100").NICs[1].Port(1)
	if best, ok := ib.Best(); !ok || best.Subnet != netip.MustParsePrefix("fe80::/64") || ib.LID != 17 || !ib.InfiniBand() {
		t.Errorf("InfiniBand: %+v of %+v", best, ib)
	}
}

// TestBest has GID tables of the field.
func TestBest(t *testing.T) {
	for _, tc := range []struct {
		name  string
		table string // "type addr, …"
		want  int
	}{
		{"private IPv4", "v2 fe80::690:81ff:fe00:a1, v2 ::ffff:10.11.12.13", 1},
		{"carrier-grade IPv4", "v2 fe80::690:81ff:fe00:a1, v2 ::ffff:100.70.0.9", 1},
		{"v1 beside v2", "v1 fe80::1, v2 fe80::1, v1 ::ffff:192.0.2.7, v2 ::ffff:192.0.2.7", 3},
		{"unique-local IPv6", "v2 fe80::1, v2 fd00::7", 1},
		{"v2 link-local before v1 routable", "v1 ::ffff:192.0.2.7, v2 fe80::1", 1},
		{"the first of several", "v2 fd00::7, v2 2001:db8::1", 0},
	} {
		p := Port{Layer: "Ethernet"}
		for i, entry := range strings.Split(tc.table, ", ") {
			kind, addr, _ := strings.Cut(entry, " ")
			p.GIDs = append(p.GIDs, GID{Index: i, Addr: netip.MustParseAddr(addr), Type: "RoCE " + kind})
		}
		if best, ok := p.Best(); !ok || best.Index != tc.want {
			t.Errorf("%s: index %d, want %d", tc.name, best.Index, tc.want)
		}
	}
	if _, ok := (&Port{}).Best(); ok {
		t.Error("the best of an empty table")
	}
}

func TestProblem(t *testing.T) {
	for _, tc := range []struct {
		want  string
		ports []Port
	}{
		{"it has no port", nil},
		{"port 1 is in an unknown state", []Port{{Num: 1}}},
		{"port 1 is INIT", []Port{{Num: 1, State: "INIT", Phys: "LinkUp"}}},
		{"port 2 has no GID", []Port{{Num: 1, State: "DOWN"}, {Num: 2, State: "ACTIVE"}}},
	} {
		if got := (&NIC{Ports: tc.ports}).Problem(0); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.ports, got, tc.want)
		}
	}
}

// TestDir reads a folder with links, as sysfs has them.
func TestDir(t *testing.T) {
	root := t.TempDir()
	b := build(machines["hgx-dual-port"])
	for name, text := range b.texts {
		if strings.HasPrefix(name, pciDevices) {
			continue // there behind a link
		}
		must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(root, name), []byte(text+"\n"), 0o644))
	}
	for name, to := range b.links {
		must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		up, err := filepath.Rel(filepath.Dir(name), to)
		must(t, err)
		must(t, os.Symlink(up, filepath.Join(root, name)))
	}
	tree, err := Open(root)
	must(t, err)
	got, err := Read(tree, b.gpus)
	must(t, err)
	diff(t, got, machine(t, "hgx-dual-port"))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestHost reads whatever this machine has.
func TestHost(t *testing.T) {
	m, err := Read(Host(), nil)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip(err)
	}
	must(t, err)
	matrix := m.Matrix(names(m))
	if len(matrix) == 0 {
		t.Error("no location: want cpu:0 at least")
	}
	text, err := Host().ReadFile(netFolder + "/lo")
	if err != nil || !strings.Contains(text, "127.0.0.1/") {
		t.Errorf("addresses of lo: %q, %v", text, err)
	}
}

func TestRefused(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"not a record", "hello\n", `line 1 is "hello": want "railhop topology record 1"`},
		{"empty", "", "want sysfs or a copy of it"},
		{"no fact", recordHead + "\nwhat\n", `line 2: "what": want path = text`},
		{"absolute path", recordHead + "\n/sys/x = 1\n", "line 2"},
		{"path outside", recordHead + "\nx -> ../y\n", "line 2"},
		{"bad quotes", recordHead + "\na = \"b\n", "line 2"},
		{"bad GPUs", recordHead + "\ndevices/x = 1\n" + gpusFile + " = {]\n", gpusFile},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "r")
			must(t, os.WriteFile(file, []byte(tc.text), 0o644))
			tree, err := Open(file)
			if err == nil {
				_, err = Read(tree, nil)
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("err = %v, want one with %q", err, tc.want)
			}
		})
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestBusID(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"0000:1b:00.0", "0000:1b:00.0"}, {"00000000:1B:00.0", "0000:1b:00.0"}, {"10000:e1:00.0", "10000:e1:00.0"}, {"0001:00:1f.7", "0001:00:1f.7"},
		{"", ""}, {"1b:00.0", ""}, {"0000:1b:00", ""}, {"0000:xx:00.0", ""}, {"virtual", ""}, {"123456789:1b:00.0", ""},
	} {
		if got, ok := busID(tc.in); got != tc.want || ok != (tc.want != "") {
			t.Errorf("busID(%q) = %q, %v, want %q", tc.in, got, ok, tc.want)
		}
	}
}

func TestNatural(t *testing.T) {
	got := []string{"mlx5_10", "mlx5_2", "mlx5", "mlx5_bond_0", "a02", "a1"}
	slices.SortFunc(got, natural)
	diff(t, got, []string{"a1", "a02", "mlx5", "mlx5_2", "mlx5_10", "mlx5_bond_0"})
}

func TestPageNode(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 2*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	defer unix.Munmap(mem)
	mem[10] = 1
	addr := hostAddress(mem)
	if _, ok := PageNode(addr + uint64(os.Getpagesize())); ok {
		t.Error("a page that was never touched has a node")
	}
	if _, ok := PageNode(0); ok {
		t.Error("what is not mapped has a node")
	}
	node, ok := PageNode(addr + 10)
	if !ok {
		t.Skip("the kernel does not say where pages are")
	}
	m, err := Read(Host(), nil)
	if err == nil && len(m.Nodes) > 0 && !slices.ContainsFunc(m.Nodes, func(n Node) bool { return n.ID == node }) {
		t.Errorf("a page is on node %d, and there are %+v", node, m.Nodes)
	}
}
