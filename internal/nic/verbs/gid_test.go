package verbs

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/railhop/railhop/internal/nic"
)

func gidOf(t *testing.T, text string) nic.GID {
	t.Helper()
	a, err := netip.ParseAddr(text)
	if err != nil {
		t.Fatal(err)
	}
	return nic.GID(a.As16())
}

// line is an entry of a table under test.
type line struct {
	kind   gidKind
	addr   string // "" is an empty entry
	netdev string
}

func tableOf(t *testing.T, lines []line) []gidEntry {
	t.Helper()
	var table []gidEntry
	for i, l := range lines {
		e := gidEntry{index: i, kind: l.kind, netdev: l.netdev}
		if l.addr != "" {
			e.gid = gidOf(t, l.addr)
		}
		table = append(table, e)
	}
	return table
}

func TestChooseGID(t *testing.T) {
	const v1, v2, ib = gidRoCE1, gidRoCE2, gidInfiniBand
	private := func(addr string) []line {
		return []line{{v2, "fe80::690:81ff:fe00:a1", "eth2"}, {v2, "::ffff:" + addr, "eth2"}}
	}
	for _, tc := range []struct {
		name  string
		lines []line
		ib    bool
		tried map[int]bool
		want  int // -1: none
	}{
		{name: "private IPv4 of class A", lines: private("10.11.12.13"), want: 1},
		{name: "private IPv4 of class B", lines: private("172.20.0.9"), want: 1},
		{name: "private IPv4 of carriers", lines: private("100.70.0.9"), want: 1},
		{name: "private IPv4 of class C", lines: private("192.168.1.1"), want: 1},
		{name: "RoCE v1 beside v2, short table", lines: []line{{v1, "fe80::1", "eth0"}, {v2, "fe80::1", "eth0"}, {v1, "::ffff:192.0.2.7", "eth0"}, {v2, "::ffff:192.0.2.7", "eth0"}}, want: 3},
		{name: "RoCE v2 link-local before routable v1", lines: []line{{v1, "::ffff:192.0.2.7", "eth0"}, {v2, "fe80::1", "eth0"}}, want: 1},
		{name: "global IPv6 is as good as IPv4", lines: []line{{v2, "fe80::1", "eth0"}, {v2, "2001:db8::7", "eth0"}, {v2, "::ffff:192.0.2.7", "eth0"}}, want: 1},
		{name: "unique-local IPv6 too", lines: []line{{v2, "fe80::1", "eth0"}, {v2, "fd00::7", "eth0"}, {v2, "::ffff:192.0.2.7", "eth0"}}, want: 1},
		{name: "IPv4 of a link that found no server", lines: []line{{v2, "::ffff:169.254.3.4", "eth0"}, {v2, "::ffff:192.0.2.7", "eth0"}}, want: 1},
		{name: "overlay networks come later", lines: []line{{v2, "::ffff:10.244.0.1", "cni0"}, {v2, "::ffff:10.0.0.1", "eth0"}}, want: 1},
		{name: "and before nothing", lines: []line{{v2, "fe80::1", "eth0"}, {v2, "::ffff:10.244.0.1", "flannel.1"}}, want: 1},
		{name: "of a network device that is not seen here", lines: []line{{v2, "::ffff:10.0.0.1", ""}, {v2, "::ffff:10.0.0.2", "eth0"}}, want: 1},
		{name: "holes", lines: []line{{}, {v2, "fe80::1", "eth0"}, {}, {}, {v2, "::ffff:10.0.0.2", "eth0"}}, want: 4},
		{name: "InfiniBand", lines: []line{{ib, "fe80::2:c903:1:2", ""}}, ib: true, want: 0},
		{name: "InfiniBand with another prefix", lines: []line{{}, {ib, "fec0::2:c903:1:2", ""}, {ib, "fec0::3", ""}}, ib: true, want: 1},
		{name: "the best did not connect", lines: []line{{v2, "fe80::1", "eth0"}, {v2, "::ffff:10.0.0.1", "eth0"}, {v2, "::ffff:10.0.0.2", "eth0"}}, tried: map[int]bool{1: true}, want: 2},
		{name: "none did", lines: []line{{v2, "fe80::1", "eth0"}}, tried: map[int]bool{0: true}, want: -1},
		{name: "empty", want: -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table := tableOf(t, tc.lines)
			best, others, ok := chooseGID(table, tc.ib, tc.tried)
			if !ok {
				best.index = -1
			}
			if best.index != tc.want {
				t.Errorf("chose %d, want %d", best.index, tc.want)
			}
			seen := len(others)
			if ok {
				seen++
			}
			for _, e := range table {
				if e.gid == (nic.GID{}) {
					seen++
				}
			}
			if seen != len(table) {
				t.Errorf("%d of %d entries are accounted for", seen, len(table))
			}
			for _, o := range others {
				if o.why == "" || o.entry.index == best.index {
					t.Errorf("rejected %v: %q", o.entry, o.why)
				}
			}
		})
	}
}

func TestRejectionsSayWhy(t *testing.T) {
	table := tableOf(t, []line{{gidRoCE2, "fe80::1", "eth0"}, {gidRoCE1, "::ffff:192.0.2.7", "eth0"}, {gidRoCE2, "::ffff:192.0.2.7", "eth0"}, {gidRoCE2, "::ffff:192.0.2.8", "eth0"}})
	_, others, _ := chooseGID(table, false, nil)
	got := map[int]string{}
	for _, o := range others {
		got[o.entry.index] = o.why
	}
	want := map[int]string{0: "it is link-local", 1: "it is RoCE v1", 3: "a lower index is as good"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// fakeSysfs writes files below a folder of the test's own.
func fakeSysfs(t *testing.T, files map[string]string) tree {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return tree{filepath.Join(dir, "sys"), filepath.Join(dir, "dev")}
}

func TestTree(t *testing.T) {
	names := []string{"mlx5_0", "mlx5_bond_0", "rocep5s0f0", "rdmap135s0", "irdma0", "bnxt_re0", "rdma3"}
	files := map[string]string{"dev/infiniband/rdma_cm": ""}
	for i, name := range names {
		port := "sys/class/infiniband/" + name + "/ports/1/"
		files["sys/class/infiniband_verbs/uverbs"+strconv.Itoa(i)+"/ibdev"] = name
		files["dev/infiniband/uverbs"+strconv.Itoa(i)] = ""
		files[port+"state"] = "4: ACTIVE"
		files[port+"link_layer"] = "Ethernet"
		for j, l := range []line{{gidRoCE1, "fe80::1", "eth0"}, {gidRoCE2, "fe80::1", "eth0"}, {}, {gidRoCE2, "::ffff:192.0.2.7", "eth0"}} {
			n := strconv.Itoa(j)
			files[port+"gids/"+n] = "0000:0000:0000:0000:0000:0000:0000:0000"
			if l.addr != "" {
				files[port+"gids/"+n] = netip.AddrFrom16(gidOf(t, l.addr)).StringExpanded()
				files[port+"gid_attrs/types/"+n] = map[gidKind]string{gidRoCE1: "IB/RoCE v1", gidRoCE2: "RoCE v2"}[l.kind]
				files[port+"gid_attrs/ndevs/"+n] = l.netdev
			}
		}
	}
	files["sys/class/infiniband/mlx5_0/device/numa_node"] = "1"
	files["sys/class/infiniband/irdma0/device/numa_node"] = "-1"
	files["sys/class/infiniband/irdma0/ports/1/state"] = "1: DOWN"
	s := fakeSysfs(t, files)

	for _, name := range names {
		if path, why := s.node(name); why != "" {
			t.Errorf("%s: %s: %s", name, path, why)
		}
	}
	if _, why := s.node("mlx5_1"); why == "" {
		t.Error("a device that is not there has a node")
	}
	want := tableOf(t, []line{{gidRoCE1, "fe80::1", "eth0"}, {gidRoCE2, "fe80::1", "eth0"}, {}, {gidRoCE2, "::ffff:192.0.2.7", "eth0"}})
	want = append(want[:2], want[3])
	if diff := cmp.Diff(want, s.gids("mlx5_0", 1), cmp.AllowUnexported(gidEntry{})); diff != "" {
		t.Error(diff)
	}
	if got := s.gids("mlx5_0", 2); got != nil {
		t.Errorf("a port that is not there has GIDs: %v", got)
	}
	for name, want := range map[string]int{"mlx5_0": 1, "irdma0": -1, "rdma3": -1} {
		if got := s.numa(name); got != want {
			t.Errorf("%s is on node %d, want %d", name, got, want)
		}
	}

	logs, p := testProvider(t, Options{GIDIndex: -1, Sysfs: s.sysfs, Dev: s.dev})
	for name, want := range map[string]string{
		"mlx5_0": "", "rdma3": "",
		"irdma0": "port 1 is not active: DOWN",
		"mlx5_9": "it has no device node: the kernel module ib_uverbs does not know it",
	} {
		if got := p.unusable(name, 1); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if err := os.Remove(filepath.Join(s.dev, "infiniband/uverbs1")); err != nil {
		t.Fatal(err)
	}
	if why := p.unusable("mlx5_bond_0", 1); why == "" {
		t.Error("a device without a node is used")
	}
	logs.want(t, "GID chosen", "GID 3, RoCE v2 ::ffff:192.0.2.7 on eth0", "GID not chosen", "it is link-local", "it is RoCE v1")
}

func TestFixedGID(t *testing.T) {
	table := tableOf(t, []line{{gidRoCE1, "fe80::1", "eth0"}, {gidRoCE2, "::ffff:192.0.2.7", "eth0"}, {}})
	logs, p := testProvider(t, Options{GIDIndex: 0, GIDIndexFrom: "NCCL_IB_GID_INDEX"})
	if e, err := p.pick(table, false, "mlx5_0", nil); err != nil || e.index != 0 {
		t.Errorf("picked %v, %v", e, err)
	}
	logs.want(t, "NCCL_IB_GID_INDEX")
	for _, index := range []int{2, 3} {
		_, p := testProvider(t, Options{GIDIndex: index, GIDIndexFrom: "MC_GID_INDEX"})
		if e, err := p.pick(table, false, "mlx5_0", nil); err == nil {
			t.Errorf("index %d: picked %v", index, e)
		}
	}
}

func TestSplit(t *testing.T) {
	_, p := testProvider(t, Options{Port: 3})
	for _, tc := range []struct {
		name, base string
		port       int
		bad        bool
	}{
		{name: "mlx5_0", base: "mlx5_0", port: 3},
		{name: "mlx5_0:1", base: "mlx5_0", port: 1},
		{name: "mlx5_0:0", bad: true},
		{name: "mlx5_0:x", bad: true},
		{name: "mlx5_0:256", bad: true},
	} {
		base, port, err := p.split(tc.name)
		if (err != nil) != tc.bad || base != tc.base || port != tc.port {
			t.Errorf("%s: %q, %d, %v", tc.name, base, port, err)
		}
	}
}
