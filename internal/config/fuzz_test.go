package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzLoad sets two variables of the table to anything and checks that what
// comes out is usable, and that what was refused changed nothing.
func FuzzLoad(f *testing.F) {
	names := knownNames()
	for i, name := range names {
		f.Add(uint(i), "1", uint(i+1), " 0 ")
		f.Add(uint(i), name, uint(i), "-99999999999999999999")
	}
	f.Add(uint(0), `{"a":"b"}`, uint(1), "a=b;c=d,e")
	f.Fuzz(func(t *testing.T, a uint, aValue string, b uint, bValue string) {
		v := vars{names[a%uint(len(names))]: aValue}
		v[names[b%uint(len(names))]] = bValue
		env, warnings := Load(v.lookup)
		checkEnv(t, env)
		for _, w := range warnings {
			if w.Name == "" || w.Effect == "" || strings.ContainsAny(w.String(), "\n\r") {
				t.Errorf("warning %+v", w)
			}
		}
		if len(warnings) == 0 && env.PXN.Off != "" {
			t.Errorf("PXN is off without a warning: %s", env.PXN.Off)
		}
		if len(env.Set) == 0 {
			env.Set, env.PXN.Off = nil, ""
			env.RDMA.FragmentLimit = Default().RDMA.FragmentLimit // a bad ratio counts as 4
			if diff := cmp.Diff(Default(), env); diff != "" {
				t.Errorf("nothing was taken, but (-want +got):\n%s", diff)
			}
		}
	})
}

// checkEnv checks the bounds on which the engine relies.
func checkEnv(t *testing.T, e Env) {
	t.Helper()
	for name, ok := range map[string]bool{
		"ports":      e.Names.MinRPCPort >= 1024 && e.Names.MinRPCPort <= e.Names.MaxRPCPort && e.Names.MaxRPCPort <= 65535,
		"port":       e.Names.HandshakePort >= 1 && e.Names.HandshakePort <= 65535,
		"frame":      e.Names.MaxFrame >= 1<<20 && e.Names.MaxFrame <= 128<<20,
		"connect":    e.Names.ConnectTimeout > 0,
		"gid":        e.RDMA.GIDIndex >= -1 && e.RDMA.GIDIndex <= 255,
		"qps":        e.RDMA.QPsPerEndpoint >= 1 && e.RDMA.QPsPerEndpoint <= 255,
		"wr":         e.RDMA.MaxWR >= 1 && e.RDMA.MaxCQE >= 1 && e.RDMA.MaxSGE >= 1,
		"workers":    e.RDMA.Workers >= 1 && e.RDMA.Workers <= 8,
		"slice":      e.RDMA.SliceSize >= 1,
		"fragment":   e.RDMA.FragmentLimit >= 0,
		"retries":    e.RDMA.RetryCount >= 1,
		"depth":      e.PXN.Depth >= 1 && e.PXN.Depth <= 64,
		"timeouts":   e.PXN.CreditTimeout > 0 && e.PXN.HeartbeatTimeout > 0,
		"slot":       e.PXN.SlotSize >= minSlot && e.PXN.SlotSize <= maxSlot && e.PXN.SlotSize&(e.PXN.SlotSize-1) == 0,
		"sms":        e.PXN.GatherSMs >= 1,
		"group":      !e.PXN.On() || validGroupID(e.PXN.GroupID),
		"tcp":        e.TCP.SliceSize >= 1 && e.TCP.LanesPerPeer >= 1 && e.TCP.StatusTimeout > 0,
		"deadline":   e.Log.TransferTimeout.Seconds() >= 5,
		"affinities": !e.Transport.DestDeviceAffinity || !e.Transport.HCAPeerAffinity,
	} {
		if !ok {
			t.Errorf("%s out of bounds: %s", name, e)
		}
	}
}

func FuzzParseDeviceArg(f *testing.F) {
	for _, seed := range []string{"", "mlx5_0,mlx5_1:2", "a;b,c;", `{"0":"a,b","1":["c"]}`, `{0: "ib0"}`, "/etc/ib.json", "^a", "a:0", "\xff", "{"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		a, err := ParseDeviceArg(arg)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error of more than a line: %q", err)
			}
			return
		}
		lists := [][]Device{a.All}
		for gpu, l := range a.ByGPU {
			if gpu < 0 || gpu > maxGPU || len(l) == 0 {
				t.Errorf("GPU %d: %v", gpu, l)
			}
			lists = append(lists, l)
		}
		for _, l := range lists {
			for _, d := range l {
				again, err := parseDevice(d.String())
				if err != nil || again != d {
					t.Errorf("%+v reads back as %+v, %v", d, again, err)
				}
			}
		}
	})
}

func FuzzParseRailMap(f *testing.F) {
	for _, seed := range []string{`{}`, `{"mlx5_0":"rail0","mlx5_1":"rail1"}`, `{"a":"b","a":"c"}`, `{"a":1}`, `{"\u0000":"x"}`, `[]`, ``, `{"a":"b"} `} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rails, err := parseRailMap(text)
		if err != nil {
			return
		}
		for device, rail := range rails {
			for _, s := range []string{device, rail} {
				if len(s) < 1 || len(s) > 255 || strings.ContainsRune(s, 0) {
					t.Errorf("%q was let through", s)
				}
			}
		}
	})
}
