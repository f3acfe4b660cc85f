package softnic

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseDevices(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []DeviceConfig
	}{
		{"least", "mlx5_0=127.0.0.1", []DeviceConfig{{Name: "mlx5_0", Addr: netip.MustParseAddr("127.0.0.1"), NUMA: -1}}},
		{"all", " mlx5_0 = 127.0.0.2:7000 , rail=r0, rate=2GB,cross=1.5MiB,latency=10us,numa=1,maxmr=1GiB,subnet=127.0.0.0/24;; ",
			[]DeviceConfig{{
				Name: "mlx5_0", Addr: netip.MustParseAddr("127.0.0.2"), Port: 7000, Rail: "r0", Rate: 2e9, CrossRate: 3 << 19,
				Latency: 10 * time.Microsecond, NUMA: 1, MaxMR: 1 << 30, Subnet: netip.MustParsePrefix("127.0.0.0/24"),
			}}},
		{"two, one of them IPv6", "a=127.0.0.1,rate=100;b=[::1]:1", []DeviceConfig{
			{Name: "a", Addr: netip.MustParseAddr("127.0.0.1"), Rate: 100, NUMA: -1},
			{Name: "b", Addr: netip.MustParseAddr("::1"), Port: 1, NUMA: -1},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseDevices(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
				t.Error(d)
			}
			if _, err := New(Options{Devices: got}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestParseDevicesNamesWhatIsWrong(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"", `no device in ""`},
		{"mlx5_0", `"mlx5_0": want name=address`},
		{"=127.0.0.1", `device name ""`},
		{"a=127.0.0.1;a=127.0.0.2", `"a" is configured twice`},
		{"a=localhost", `address "localhost"`},
		{"a=127.0.0.1:70000", `address "127.0.0.1:70000"`},
		{"a=0.0.0.0", "address 0.0.0.0"},
		{"a=127.0.0.1,rate", `option "rate"`},
		{"a=127.0.0.1,rate=fast", `size "fast"`},
		{"a=127.0.0.1,rate=0", `size "0"`},
		{"a=127.0.0.1,rate=-1", `size "-1"`},
		{"a=127.0.0.1,rate=2Gb", `size "2Gb"`},
		{"a=127.0.0.1,rate=NaN", `size "NaN"`},
		{"a=127.0.0.1,latency=10", `"10"`},
		{"a=127.0.0.1,latency=-1s", "latency -1s"},
		{"a=127.0.0.1,numa=-2", "-2: want a node"},
		{"a=127.0.0.1,subnet=10.0.0.0/8", "subnet 10.0.0.0/8"},
		{"a=127.0.0.1,speed=1", `option "speed"`},
	} {
		t.Run(tc.text, func(t *testing.T) {
			devs, err := ParseDevices(tc.text)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%+v, error %v; want an error with %q", devs, err, tc.want)
			}
		})
	}
}
