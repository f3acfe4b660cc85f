// Package pxntest has both ends of the relayed way in one goroutine, over a lane in
// memory, with a card that sends nothing and a GPU that copies nothing: what is
// left is what the engine itself costs.
package pxntest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/path/pxn"
	"github.com/railhop/railhop/internal/relay"
	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/tally"
	"github.com/railhop/railhop/internal/xfer"
)

const epoch = 42 // the sender's

// both is a sender and its relay.
type both struct {
	tb    testing.TB
	path  *pxn.Path
	relay *relay.Relay
	tally *tally.Tally
	to    *pxn.Target
	owner owner
	now   time.Duration
}

func newBoth(tb testing.TB) *both {
	tb.Helper()
	b := &both{tb: tb, tally: tally.New(nil), to: &pxn.Target{Session: []byte("target:1"), Fences: true}}
	block, err := shmabi.ControlAt(make([]byte, shmabi.ControlBytes))
	if err != nil {
		tb.Fatal(err)
	}
	g := lane.Geometry{Slots: shmabi.Slots, SlotSize: shmabi.MaxSlotSize, MaxSpans: shmabi.MaxSpans}
	h := &block.Lanes[0].Header
	h.SenderEpoch.Store(epoch)
	h.State.Store(shmabi.LaneReady)

	pd, _ := nullNIC{}.NewPD()
	set, err := endpoint.NewSet(endpoint.Options{
		NIC:    &endpoint.NIC{Name: "m1", Rail: "m1", Device: nullNIC{}, PD: pd},
		Server: "relay:1", Dialer: answers{}, RelayEpoch: 7,
	})
	if err != nil {
		tb.Fatal(err)
	}
	var lanes []lane.Mem
	for i := range shmabi.Lanes {
		lanes = append(lanes, lane.Map(block, i))
	}
	b.relay = relay.New(relay.Options{
		Lanes: lanes, Geometry: g, Arena: 1 << 41, Rails: []relay.Rail{{Name: "m1", Set: set, LKey: 5}},
		Depth: 4, SliceSize: 65536, Credit: time.Minute, Tally: b.tally, Wake: func() {}, DeathCloses: true,
		FindSender: func(context.Context, int) (relay.Sender, error) { return sender{}, nil },
		ClearClaim: func(int) error { return nil },
		FindRoute:  func(context.Context, string) (relay.Route, error) { return route{}, nil },
	})
	b.path = pxn.New(pxn.Options{
		Device: &nullGPU{lane: lanes[0]}, BusOf: func(uint64) string { return "0000:a1:00.0" }, Epoch: epoch,
		Tally: b.tally, Wake: func() {}, Credit: time.Minute, NoCut: true, DeathCloses: true, Guard: shm.Guard,
		Find: func(context.Context, string, func(uint64) bool) (*pxn.Claim, xfer.Reason, error) {
			return &pxn.Claim{Peer: peer{}, Mem: lanes[0], Geometry: g, Arena: 1 << 30, Rails: map[string]uint32{"m1": 0}}, xfer.NoReason, nil
		},
		Direct: func(it pxn.Item, why xfer.Reason) error { tb.Fatalf("a share goes direct: %v", why); return nil },
		Fence:  func(context.Context, *pxn.Target, uint64) error { return nil },
	})
	tb.Cleanup(func() {
		b.path.Release(b.now, xfer.PXNOff)
		for !b.path.Idle() {
			b.step()
		}
		if err := b.path.Close(); err != nil {
			tb.Error(err)
		}
		b.relay.Close()
		if err := set.Close(); err != nil {
			tb.Error(err)
		}
	})
	return b
}

// step is a turn of both pumps.
func (b *both) step() {
	b.now += time.Microsecond
	b.path.Step(b.now)
	b.relay.Step(b.now)
}

// piece sends a piece of spans, each length bytes, that lie apart.
func (b *both) piece(spans int, length uint64) {
	it := pxn.Item{Owner: &b.owner, Target: b.to}
	for i := range uint64(spans) {
		it.Span.Source, it.Span.Dest, it.Span.Length = 1<<50+i*2*length, 1<<51+i*2*length, length
		b.owner.open++
		if why := b.path.Submit(b.now, "m1", &it); why != xfer.NoReason {
			b.tb.Fatal(why)
		}
	}
	for b.owner.open > 0 {
		b.step()
	}
}

// cpu is the time that the process has run, whoever else runs on the machine.
func cpu(tb testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOverhead is what a piece costs both ends together: at most 3 µs with one
// span, and 100 µs with 4096.
func BenchmarkOverhead(b *testing.B) {
	for _, spans := range []int{1, 16, 256, 4096} {
		b.Run(fmt.Sprintf("spans=%d", spans), func(b *testing.B) {
			ends := newBoth(b)
			ends.piece(spans, 2048)
			ends.piece(spans, 2048)
			b.ReportAllocs()
			begin, n := cpu(b), 0
			for b.Loop() {
				ends.piece(spans, 2048)
				n++
			}
			b.ReportMetric(float64(cpu(b)-begin)/float64(n), "cpu-ns/op")
		})
	}
}

func TestAllocatesNothing(t *testing.T) {
	ends := newBoth(t)
	for _, spans := range []int{1, 4096} {
		f := func() { ends.piece(spans, 2048) }
		f()
		f()
		if n := testing.AllocsPerRun(100, f); n > 0 {
			t.Errorf("a piece of %d spans costs %v allocations", spans, n)
		}
	}
	if s := ends.tally.Snapshot(); len(s.Reasons) > 0 || s.Relayed.Ops == 0 {
		t.Errorf("%+v", s)
	}
}
