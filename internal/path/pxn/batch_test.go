package pxn

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/tally"
	"github.com/railhop/railhop/internal/xfer"
)

// recorder is a device whose stream notes what it is given, and runs nothing.
type recorder struct {
	gpu.Device
	copies int      // since the last bell
	given  []string // "copies:bell"
	failed error
	closed chan struct{} // what Close waits for; nil if it does not
}

type event struct{ gpu.Event }

func (event) Close() error        { return nil }
func (event) Done() (bool, error) { return true, nil }

func (r *recorder) Info() gpu.Info                            { return gpu.Info{StreamMemOps: true, BatchedCopy: true} }
func (r *recorder) Import(gpu.Handle, uint64) (uint64, error) { return 1 << 40, nil }
func (r *recorder) CloseImport(uint64) error                  { return nil }
func (r *recorder) PeerAtomics(string) bool                   { return true }
func (r *recorder) NewStream() (gpu.Stream, error)            { return r, nil }
func (r *recorder) NewEvent() (gpu.Event, error)              { return event{}, nil }
func (r *recorder) MapHost([]byte) (uint64, func() error, error) {
	return 0, func() error { return nil }, nil
}
func (r *recorder) Wait(gpu.Event) error   { return nil }
func (r *recorder) Record(gpu.Event) error { return nil }
func (r *recorder) Idle() (bool, error)    { return false, r.failed }

func (r *recorder) Close() error {
	if r.closed != nil {
		<-r.closed
	}
	return nil
}

func (r *recorder) Copy(copies []gpu.Copy) error {
	r.copies += len(copies)
	return nil
}

func (r *recorder) Write64(_, value uint64) error {
	if value > 0 { // the proof that it can be written
		r.given = append(r.given, fmt.Sprintf("%d:%d", r.copies, value))
	}
	r.copies = 0
	return nil
}

type livePeer struct {
	Peer
	suspected *bool
}

func (livePeer) Name() string  { return "peer" }
func (livePeer) Epoch() uint64 { return 7 }
func (p livePeer) Suspected(time.Duration) (bool, xfer.Reason) {
	if *p.suspected {
		return true, xfer.RelaySuspected
	}
	return false, xfer.NoReason
}
func (livePeer) Gone() bool           { return false }
func (livePeer) Leaving() xfer.Reason { return xfer.NoReason }
func (livePeer) Wake()                {}

type owner struct{ closed int }

func (o *owner) Opened(int)           {}
func (o *owner) Closed(uint64, error) { o.closed++ }

// rig is a path with one lane, whose relay the test plays.
type rig struct {
	path *Path
	gpu  *recorder
	rx   *lane.Relay
	mem  lane.Mem

	suspected bool // the relay is
}

const rigSlot = 1 << 20

func newRig(t *testing.T) *rig {
	t.Helper()
	block, err := shmabi.ControlAt(make([]byte, shmabi.ControlBytes))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{gpu: &recorder{}, mem: lane.Map(block, 0)}
	g := lane.Geometry{Slots: shmabi.Slots, SlotSize: rigSlot, MaxSpans: shmabi.MaxSpans}
	r.mem.Store(lane.Word{Kind: lane.State}, uint64(shmabi.LaneReady))
	r.mem.Store(lane.Word{Kind: lane.SenderEpoch}, 3)
	r.rx = lane.NewRelay(r.mem, g, 2)
	r.rx.Adopt()
	r.path = New(Options{
		Device: r.gpu, BusOf: func(uint64) string { return "" }, Epoch: 3, Tally: tally.New(nil), Wake: func() {}, Credit: time.Hour, NoCut: true,
		Find: func(_ context.Context, _ string, held func(uint64) bool) (*Claim, xfer.Reason, error) {
			return &Claim{Peer: livePeer{suspected: &r.suspected}, Held: held(7), Mem: r.mem, Geometry: g, Rails: map[string]uint32{"m1": 0, "m2": 1}}, xfer.NoReason, nil
		},
		Direct: func(Item, xfer.Reason) error { t.Error("a share goes direct"); return nil },
	})
	return r
}

// lands has the stream's bell at seq, and the relay complete all up to done.
func (r *rig) lands(t *testing.T, seq, done uint64) {
	t.Helper()
	r.mem.Store(lane.Word{Kind: lane.Doorbell}, seq)
	for {
		at, offer := r.rx.Look()
		if offer != lane.Piece || at > done {
			return
		}
		var b lane.Body
		if !r.rx.Claim(at) {
			t.Fatalf("piece %d cannot be claimed", at)
		}
		if err := r.rx.Read(at, &b); err != nil {
			t.Fatal(err)
		}
		r.rx.Pass()
		r.rx.Complete(xfer.OK)
	}
}

// TestPiecesShareDoorbells has pieces of one copy behind others ring together, and wait
// for slots while the stream is far behind; each is a piece of the lane's all the same.
func TestPiecesShareDoorbells(t *testing.T) {
	const pieces = 26
	r, o := newRig(t), &owner{}
	target := &Target{Session: []byte("node-b:1"), Fences: true}
	for i := range uint64(pieces) {
		it := &Item{Span: xfer.Span{Source: 1<<30 + 2*i*rigSlot, Dest: 1<<20 + 2*i*rigSlot, Length: rigSlot}, Owner: o, Target: target}
		if why := r.path.Submit(0, "m1", it); why != xfer.NoReason {
			t.Fatal(why)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); len(r.path.conns) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no lane")
		}
		r.path.Step(0)
	}
	for _, step := range []struct {
		what         string
		landed, done uint64
		want         []string
	}{
		{"the first alone, so that the relay starts early; five slots wait for a sixth", 0, 0, []string{"1:1", "6:7", "6:13"}},
		{"it comes back", 1, 1, []string{"6:19"}},
		{"five come back, and wait", 7, 6, nil},
		{"another", 13, 7, []string{"6:25"}},
		{"the last has nothing to wait for", 13, 8, []string{"1:26"}},
		{"nothing is left", 26, 26, nil},
	} {
		r.lands(t, step.landed, step.done)
		for range 3 {
			r.path.Step(0)
		}
		if !slices.Equal(r.gpu.given, step.want) {
			t.Errorf("%s: the stream got %q, want %q", step.what, r.gpu.given, step.want)
		}
		r.gpu.given = nil
	}
	if o.closed != pieces {
		t.Errorf("%d shares ended, want %d", o.closed, pieces)
	}
}
