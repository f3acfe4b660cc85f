package fabric

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/nic/softnic"
	"github.com/railhop/railhop/internal/worker"
)

// TestMain makes the test binary a rank, if it is told to be one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		if err := worker.Serve(context.Background(), os.Stdin, os.Stdout, worker.Options{}); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func play(t *testing.T) *Fabric {
	t.Helper()
	f := New(Options{Exe: os.Args[0], Args: []string{"worker", "{name}"}, Name: "railhop-fabric-test", SlotSize: 256 << 10})
	t.Cleanup(func() { f.Close() })
	return f
}

// TestEnvIsTaken loads what a member is given, and finds nothing to warn of.
func TestEnvIsTaken(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts Options
		m    Member
		nics []softnic.DeviceConfig
		gpus []string
	}{
		{"capped", Options{LinkRate: 4e8, CrossRate: 5e7, SlotSize: 1 << 20}, Member{Node: 1, Rails: []int{1}, PXN: true},
			[]softnic.DeviceConfig{{Name: "mlx5_1", Rail: "r1", Rate: 4e8, CrossRate: 5e7, NUMA: -1}}, []string{"0000:a1:00.0"}},
		{"not capped, two rails", Options{}, Member{Node: 250, Rails: []int{0, 63}},
			[]softnic.DeviceConfig{{Name: "mlx5_0", Rail: "r0", NUMA: -1}, {Name: "mlx5_63", Rail: "r63", NUMA: -1}}, []string{"0000:a0:00.0", "0000:df:00.0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.opts.Name = "railhop-x"
			vars := New(tc.opts).Env(tc.m)
			env, warnings := config.Load(func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
			if len(warnings) > 0 {
				t.Errorf("warnings %v", warnings)
			}
			if !env.Providers.Soft || env.PXN.On() != tc.m.PXN || env.PXN.RailMap["mlx5_5"] != "r5" {
				t.Errorf("environment %+v", env)
			}
			nics, err := softnic.ParseDevices(env.Providers.SoftNICs)
			if err != nil {
				t.Fatal(err)
			}
			for i := range nics {
				if want := Addr(tc.m.Node, tc.m.Rails[i]); nics[i].Addr.String() != want || nics[i].Port != 0 {
					t.Errorf("NIC %d at %v: want %s", i, nics[i].Addr, want)
				}
				nics[i].Addr = tc.nics[i].Addr
			}
			if d := cmp.Diff(tc.nics, nics, cmp.Comparer(func(a, b softnic.DeviceConfig) bool { return a == b })); d != "" {
				t.Error(d)
			}
			gpus, err := softgpu.ParseDevices(env.Providers.SoftGPUs)
			if err != nil {
				t.Fatal(err)
			}
			for i, g := range gpus {
				if g.BusID != tc.gpus[i] {
					t.Errorf("GPU %d is %s: want %s", i, g.BusID, tc.gpus[i])
				}
			}
		})
	}
}

func TestMembersAreChecked(t *testing.T) {
	f := play(t)
	for _, tc := range []struct {
		name string
		m    Member
		want string
	}{
		{"no rail", Member{Name: "a", Node: 1}, "a: no rail"},
		{"no node", Member{Name: "a", Rails: []int{0}}, "a: node 0: want 1..250"},
		{"node too high", Member{Name: "a", Node: 251, Rails: []int{0}}, "node 251"},
		{"rail too high", Member{Name: "a", Node: 1, Rails: []int{64}}, "rail 64: want 0..63"},
		{"rail twice", Member{Name: "a", Node: 1, Rails: []int{3, 3}}, "two NICs on rail 3"},
	} {
		if _, err := f.Start(t.Context(), tc.m); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v: want %q", tc.name, err, tc.want)
		}
	}
	if _, err := f.StartAll(t.Context(), Member{Name: "a", Node: 1, Rails: []int{0}}, Member{Name: "a", Node: 2, Rails: []int{0}}); err == nil || !strings.Contains(err.Error(), `two processes are called "a"`) {
		t.Errorf("two of a name: %v", err)
	}
}

// TestRelayedWrite plays the smallest fabric in which rails are crossed.
func TestRelayedWrite(t *testing.T) {
	const size = 1 << 20
	f, ctx := play(t), t.Context()
	ranks, err := f.StartAll(ctx,
		Member{Name: "rank 0", Node: 1, Rails: []int{0}, PXN: true},
		Member{Name: "rank 1", Node: 1, Rails: []int{1}, PXN: true},
		Member{Name: "target", Node: 2, Rails: []int{1}},
	)
	if err != nil {
		t.Fatal(err)
	}
	sender, target := ranks[0], ranks[2]
	to, err := target.Alloc(ctx, worker.AllocArgs{Memory: "m", Bytes: size})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sender.Alloc(ctx, worker.AllocArgs{Memory: "m", Bytes: size}); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Rank{sender, target} {
		if err := r.Register(ctx, worker.RegisterArgs{Engine: Engine, Memory: "m"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := sender.Fill(ctx, worker.FillArgs{Memory: "m", Seed: 1}); err != nil {
		t.Fatal(err)
	}
	id, err := sender.Proc.Segment(ctx, Engine, target.Segment)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sender.Stream(ctx, worker.StreamArgs{Engine: Engine, Segment: id, Memory: "m", Addr: to, Block: 100_000, Batch: 4, Window: 2}, nil); err != nil {
		t.Fatal(err)
	}
	if v, err := target.Verify(ctx, worker.FillArgs{Memory: "m", Seed: 1}); err != nil || v.Mismatched > 0 || v.Bytes != size {
		t.Errorf("verified %+v, %v", v, err)
	}
	counters, err := target.Counters(ctx)
	if err != nil || len(counters) != 1 || counters[0].PeerAddr != Addr(1, 1) || counters[0].WroteHere != size {
		t.Errorf("counters %+v, %v: want all bytes from %s", counters, err, Addr(1, 1))
	}
	s, err := sender.Stats(ctx, Engine)
	if err != nil || s.Relayed.Bytes != size || len(s.Fallbacks) != 0 || len(s.Lanes) != 1 {
		t.Errorf("stats %+v, %v", s, err)
	}

	dir := filepath.Join("/dev/shm", f.Group(1))
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the group's directory: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the group's directory is left behind: %v", err)
	}
	for _, r := range ranks {
		<-r.Ended()
	}
}
