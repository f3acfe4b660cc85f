package plan

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/railhop/railhop/internal/xfer"
)

func nics(text string) []NIC { // "name=addr/bits name=addr"
	var all []NIC
	for _, f := range strings.Fields(text) {
		name, at, _ := strings.Cut(f, "=")
		n := NIC{Device: name}
		if p, err := netip.ParsePrefix(at); err == nil {
			n.GID, n.Subnet = p.Addr(), p.Masked()
		} else if a, err := netip.ParseAddr(at); err == nil {
			n.GID = a
		}
		all = append(all, n)
	}
	return all
}

func TestRails(t *testing.T) {
	for _, tc := range []struct {
		name   string
		names  map[string]string
		local  string
		target string
		want   []string
		rule   Rule
	}{
		{"by name", nil, "m0 m1", "m1 m0", []string{"m1", "m0"}, ByName},
		{"by map", map[string]string{"m0": "a", "x7": "a"}, "m0 m1", "x7 m1", []string{"a", "m1"}, ByMap},
		{"by subnet", nil, "m0=10.0.0.1/24 m1=10.0.1.1/24", "eth5=10.0.1.77 eth9=10.0.0.3", []string{"m1", "m0"}, BySubnet},
		{"a map beats subnets", map[string]string{"z": "y"}, "m0=10.0.0.1/24 m1=10.0.1.1/24", "eth5=10.0.1.77", []string{"eth5"}, ByName},
		{"one subnet for all is no rail", nil, "m0=10.0.0.1/16 m1=10.0.1.1/16", "m1=10.0.1.77", []string{"m1"}, ByName},
		{"one device outside", nil, "m0=10.0.0.1/24 m1=10.0.1.1/24", "m0=10.0.1.77 m1=10.9.0.1", []string{"m0", "m1"}, ByName},
		{"/31 links", nil, "m0=10.0.0.0/31 m1=10.0.0.2/31", "p=10.0.0.3 q=10.0.0.1", []string{"m1", "m0"}, BySubnet},
		{"links elsewhere", nil, "m0=10.0.0.0/31 m1=10.0.0.2/31", "m0=10.0.8.1 m1=10.0.8.3", []string{"m0", "m1"}, ByName},
		{"InfiniBand's one subnet", nil, "m0=fe80::1/64 m1=fe80::2/64", "m1=fe80::7 m0=fe80::8", []string{"m1", "m0"}, ByName},
		{"InfiniBand, a subnet a rail", nil, "m0=fec0:0:0:1::1/64 m1=fec0:0:0:2::1/64", "ib1=fec0:0:0:2::9", []string{"m1"}, BySubnet},
		{"subnet unknown", nil, "m0=10.0.0.1/24 m1", "m1=10.0.0.7", []string{"m1"}, ByName},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, rule := NewRails(tc.names, nics(tc.local)).Target(nics(tc.target))
			if d := cmp.Diff(tc.want, got); d != "" || rule != tc.rule {
				t.Errorf("rule %v, want %v; rails -want +got:\n%s", rule, tc.rule, d)
			}
		})
	}
}

func TestRule(t *testing.T) {
	for _, tc := range []struct {
		name  string
		names map[string]string
		local string
		rule  Rule
		why   string // a part
	}{
		{"map", map[string]string{"m0": "a"}, "m0=10.0.0.1/24 m1=10.0.1.1/24", ByMap, "MC_PXN_RAIL_MAP"},
		{"subnets", nil, "m0=10.0.0.1/24 m1=10.0.1.1/24", BySubnet, "a subnet of its own"},
		{"links", nil, "m0=10.0.0.1/31 m1=10.0.1.1/31", BySubnet, "goes by the names of its NICs"},
		{"InfiniBand", nil, "m0=fe80::1/64 m1=fe80::2/64", ByName, "m0 and m1 share a subnet, fe80::/64"},
		{"InfiniBand, a subnet each", nil, "m0=fec0:0:0:1::1/64 m1=fec0:0:0:2::2/64", BySubnet, "a subnet of its own"},
		{"mapped IPv4", nil, "m0=::ffff:10.0.0.1/112 m1=::ffff:10.0.0.2/112", ByName, "share a subnet, 10.0.0.0/16"},
		{"unknown", nil, "m0=10.0.0.1/24 m1", ByName, "the subnet of m1 is not known"},
		{"one", nil, "m0=10.0.0.1/24", ByName, "no second NIC"},
		{"none", nil, "", ByName, "no second NIC"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rule, why := NewRails(tc.names, nics(tc.local)).Rule()
			if rule != tc.rule || !strings.Contains(why, tc.why) {
				t.Errorf("%v, %q: want %v, %q", rule, why, tc.rule, tc.why)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	good := Task{Op: xfer.Write, Length: 1, Source: OwnGPU, Session: 12, Rails: []string{"r1", "r2"}, Preferred: 1}
	for _, tc := range []struct {
		name   string
		change func(*Task)
		rail   string
		why    xfer.Reason
	}{
		{"cross rail", func(*Task) {}, "r1", xfer.NoReason},
		{"read", func(t *Task) { t.Op = xfer.Read }, "", xfer.NotWrite},
		{"empty", func(t *Task) { t.Length = 0 }, "", xfer.ZeroLength},
		{"host source", func(t *Task) { t.Source = NotGPU }, "", xfer.SourceNotGPU},
		{"other GPU", func(t *Task) { t.Source = OtherGPU }, "", xfer.OtherGPU},
		{"no name", func(t *Task) { t.Session = 0 }, "", xfer.NoSegmentName},
		{"long name", func(t *Task) { t.Session = 257 }, "", xfer.NoSegmentName},
		{"longest name", func(t *Task) { t.Session = 256 }, "r1", xfer.NoReason},
		{"no device", func(t *Task) { t.Rails = nil }, "", xfer.NoTargetDevice},
		{"same rail", func(t *Task) { t.Rails = []string{"r0"} }, "r0", xfer.SameRail},
		{"own rail among preferred", func(t *Task) { t.Rails, t.Preferred = []string{"r1", "r0"}, 2 }, "r0", xfer.SameRail},
		{"own rail only available", func(t *Task) { t.Rails = []string{"r1", "r0"} }, "r1", xfer.NoReason},
		{"nothing preferred, own rail available", func(t *Task) { t.Rails, t.Preferred = []string{"r1", "r0"}, 0 }, "r0", xfer.SameRail},
	} {
		t.Run(tc.name, func(t *testing.T) {
			task := good
			tc.change(&task)
			rail, why := Choose(task, []string{"r0"})
			if rail != tc.rail || why != tc.why {
				t.Errorf("got %q, %v; want %q, %v", rail, why, tc.rail, tc.why)
			}
		})
	}
}
