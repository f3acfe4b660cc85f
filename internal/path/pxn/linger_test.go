package pxn

import (
	"context"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/xfer"
)

// TestLingerer has the relay answer with an error before the bell has been seen here:
// the share ends only once its copy has, and until then the pump must come back by
// itself, since the GPU wakes nobody.
func TestLingerer(t *testing.T) {
	r, o := newRig(t), &owner{}
	direct := 0
	r.path.opts.Direct = func(Item, xfer.Reason) error { direct++; return nil }
	target := &Target{Session: []byte("node-b:1"), Fences: true}
	submit := func(i uint64) {
		t.Helper()
		it := &Item{Span: xfer.Span{Source: 1<<30 + 2*i*rigSlot, Dest: 1<<20 + 2*i*rigSlot, Length: rigSlot}, Owner: o, Target: target}
		if why := r.path.Submit(time.Second, "m1", it); why != xfer.NoReason {
			t.Fatal(why)
		}
	}
	submit(0)
	for deadline := time.Now().Add(10 * time.Second); len(r.gpu.given) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing was published")
		}
		r.path.Step(time.Second)
	}
	answer := func(seq uint64, status xfer.Code) {
		t.Helper()
		r.mem.Store(lane.Word{Kind: lane.Doorbell}, seq)
		if at, offer := r.rx.Look(); at != seq || offer != lane.Piece || !r.rx.Claim(seq) {
			t.Fatalf("piece %d cannot be claimed: %d, %v", seq, at, offer)
		}
		r.rx.Pass()
		r.rx.Complete(status)
	}
	answer(1, xfer.ErrInvalidArgument)
	for range 3 {
		r.path.Step(time.Second)
	}
	if direct != 1 || o.closed != 0 {
		t.Errorf("%d shares went direct and %d ended, want 1 and 0", direct, o.closed)
	}
	if d := r.path.Arm(time.Second); d != time.Millisecond {
		t.Errorf("the pump may sleep for %v (0 is for ever) while a copy reads a source, want %v", d, time.Millisecond)
	}
	// The stream is never idle here: the bell of a later piece says that the copy has
	// ended.
	submit(1)
	r.path.Step(time.Second)
	r.mem.Store(lane.Word{Kind: lane.Doorbell}, 2)
	for range 3 {
		r.path.Step(time.Second)
	}
	if o.closed != 1 {
		t.Errorf("%d shares ended after the second bell, want 1", o.closed)
	}
	answer(2, xfer.OK)
	r.path.Step(2 * time.Second)
	if o.closed != 2 {
		t.Errorf("%d shares ended, want 2", o.closed)
	}
	if d := r.path.Arm(2 * time.Second); d != 0 {
		t.Errorf("the pump sleeps for %v with nothing under way, want 0, for ever", d)
	}
}

// TestScribbledCompletion has somebody write over a completion before it is taken. The
// piece goes direct once the target has closed the relay's way.
func TestScribbledCompletion(t *testing.T) {
	r, o := newRig(t), &owner{}
	direct, fenced := 0, make(chan uint64, 1)
	r.path.opts.Direct = func(Item, xfer.Reason) error { direct++; return nil }
	r.path.opts.Fence = func(_ context.Context, _ *Target, epoch uint64) error { fenced <- epoch; return nil }
	it := &Item{Span: xfer.Span{Source: 1 << 30, Dest: 1 << 20, Length: rigSlot}, Owner: o, Target: &Target{Session: []byte("node-b:1"), Fences: true}}
	if why := r.path.Submit(time.Second, "m1", it); why != xfer.NoReason {
		t.Fatal(why)
	}
	for now, deadline := time.Second, time.Now().Add(10*time.Second); o.closed == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the share does not end; %d went direct", direct)
		}
		now += time.Millisecond
		r.path.Step(now)
		if len(r.gpu.given) > 0 && r.mem.Load(lane.Word{Kind: lane.Completed}) == 0 {
			r.lands(t, 1, 1)
			r.mem.Store(lane.Word{Kind: lane.DoneCommit}, 99)
			r.rx.Flush()
		}
	}
	if direct != 1 || len(fenced) != 1 {
		t.Errorf("%d shares went direct after %d fences, want 1 and 1", direct, len(fenced))
	}
}
