package pxn

import (
	"context"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// submitter gives a rig shares of 16 bytes that lie apart, and looks at the pieces.
type submitter struct {
	*rig
	t      *testing.T
	n      uint64 // shares
	pieces uint64
}

func (s *submitter) submit(rail string, to *Target, o Owner, want xfer.Reason) {
	s.t.Helper()
	it := &Item{Span: xfer.Span{Source: 1<<30 + 32*s.n, Dest: 1<<20 + 32*s.n, Length: 16}, Owner: o, Target: to}
	s.n++
	if why := s.path.Submit(0, rail, it); why != want {
		s.t.Fatalf("share %d to %s by %s: %v, want %v", s.n, to.Session, rail, why, want)
	}
}

// piece waits for the next piece.
func (s *submitter) piece(what string, rail uint32, spans int, session string) {
	s.t.Helper()
	s.pieces++
	s.await(what, func() bool { return s.mem.Load(lane.Word{Kind: lane.Head}) >= s.pieces })
	var b lane.Body
	s.mem.GetBody(int(s.pieces-1)%shmabi.Slots, &b)
	if len(b.Plans) != spans || string(b.Session) != session || b.RailIndex != rail {
		s.t.Errorf("%s: piece %d has %d spans to %q on rail %d, want %d to %q on %d", what, s.pieces, len(b.Plans), b.Session, b.RailIndex, spans, session, rail)
	}
}

func (s *submitter) await(what string, done func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: waited too long", what)
		}
		s.path.Step(0)
	}
}

// TestSubmitGoesWhereItShould has shares that follow each other, which is a short way in,
// differ in all that may part them.
func TestSubmitGoesWhereItShould(t *testing.T) {
	const ok = xfer.NoReason
	a, b := &Target{Session: []byte("a:1"), Fences: true}, &Target{Session: []byte("b:1"), Fences: true}
	s, o, other := &submitter{rig: newRig(t), t: t}, &owner{}, &owner{}
	fence, direct := make(chan struct{}), 0
	s.path.opts.Fence = func(context.Context, *Target, uint64) error { <-fence; return nil }
	s.path.opts.Direct = func(Item, xfer.Reason) error { direct++; return nil }

	s.submit("m1", a, o, ok)
	s.piece("the first", 0, 1, "a:1")
	s.submit("m1", a, o, ok)
	s.submit("m1", a, o, ok)
	s.piece("two in a row", 0, 2, "a:1")
	s.submit("m1", a, o, ok)
	s.piece("one after the piece has gone", 0, 1, "a:1")

	s.submit("m1", a, o, ok)
	s.submit("m1", b, o, ok)
	s.submit("m1", a, o, ok)
	s.piece("to two targets in turn", 0, 2, "a:1")
	s.piece("to two targets in turn", 0, 1, "b:1")

	s.submit("m1", a, o, ok)
	s.submit("m2", a, o, ok)
	s.piece("by two rails", 0, 1, "a:1")
	s.piece("by two rails", 1, 1, "a:1")

	for range shmabi.MaxSpans + 1 {
		s.submit("m1", a, o, ok)
	}
	s.piece("as many as a piece has", 0, shmabi.MaxSpans, "a:1")
	s.piece("one more", 0, 1, "a:1")

	s.submit("m1", b, other, ok)
	s.piece("a piece that the relay claims", 0, 1, "b:1")
	s.mem.Store(lane.Word{Kind: lane.Doorbell}, s.pieces)
	for seq := uint64(1); seq <= s.pieces; seq++ {
		if !s.rx.Claim(seq) {
			t.Fatalf("piece %d cannot be claimed", seq)
		}
		s.rx.Pass()
		if seq < s.pieces {
			s.rx.Complete(xfer.OK)
		}
	}
	s.submit("m1", b, o, ok)
	s.path.Abort(0, func(o Owner) bool { return o == other }, xfer.ErrContext)
	s.submit("m1", b, o, xfer.WayNotClosed)
	close(fence)
	s.await("the way is closed", func() bool { return other.closed == 1 })
	if direct != 0 {
		t.Errorf("%d shares go direct, want none", direct)
	}
	s.path.Release(0, xfer.PXNOff)
	s.submit("m1", a, o, xfer.PXNOff)
}

// TestSubmitMindsTheTarget has a target lose its fence, the relay fail to reach it, and
// the path lose its lanes, between shares that follow each other.
func TestSubmitMindsTheTarget(t *testing.T) {
	a, b := &Target{Session: []byte("a:1"), Fences: true}, &Target{Session: []byte("b:1"), Fences: true}
	s, o, direct := &submitter{rig: newRig(t), t: t}, &owner{}, 0
	s.path.opts.Direct = func(Item, xfer.Reason) error { direct++; return nil }
	s.submit("m1", a, o, xfer.NoReason)
	s.piece("the first", 0, 1, "a:1")
	s.submit("m1", a, o, xfer.NoReason)
	a.Fences = false // restarted as another build
	s.submit("m1", a, o, xfer.NoTargetFence)
	a.Fences = true
	s.piece("before it lost its fence", 0, 1, "a:1")

	for s.pieces < shmabi.Slots {
		s.submit("m1", a, o, xfer.NoReason)
		s.piece("in the slots", 0, 1, "a:1")
	}
	s.submit("m1", a, o, xfer.NoReason)
	s.path.Step(0) // it waits for a slot
	s.submit("m1", b, o, xfer.NoReason)
	s.submit("m1", a, o, xfer.NoReason)
	s.mem.Store(lane.Word{Kind: lane.Doorbell}, s.pieces)
	if !s.rx.Claim(1) {
		t.Fatal("piece 1 cannot be claimed")
	}
	s.rx.Pass()
	s.rx.Complete(xfer.ErrEndpoint)
	s.path.Step(0)
	s.submit("m1", a, o, xfer.RelayNICError)
	if direct != 1 {
		t.Errorf("%d shares go direct, want that of the piece that failed", direct)
	}

	s.submit("m1", b, o, xfer.NoReason)
	s.path.Release(0, xfer.PXNOff)
	s.submit("m1", b, o, xfer.PXNOff)
}

// TestPeerIsLookedAtBeforeSleep has the pump woken because the peer has died, right after
// it looked at it: it must look once more before it sleeps.
func TestPeerIsLookedAtBeforeSleep(t *testing.T) {
	a := &Target{Session: []byte("a:1"), Fences: true}
	s, o := &submitter{rig: newRig(t), t: t}, &owner{}
	s.submit("m1", a, o, xfer.NoReason)
	s.piece("the first", 0, 1, "a:1")
	s.lands(t, 1, 1)
	now := time.Second
	s.path.Step(now)
	if limit := s.path.Arm(now); limit != 0 || o.closed != 1 {
		t.Fatalf("an idle path sleeps for %v with %d shares ended, want for ever, with one", limit, o.closed)
	}
	s.suspected = true
	now += time.Microsecond
	s.path.Step(now)
	limit := s.path.Arm(now)
	if limit <= 0 || limit > time.Millisecond {
		t.Fatalf("sleeps for %v, want a millisecond at most", limit)
	}
	s.path.Step(now + limit)
	if c := s.path.conns[0]; !c.quarantined {
		t.Error("the lane of a dead relay is kept")
	}
}
