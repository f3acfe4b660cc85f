package faulttest

import (
	"testing"
	"time"
)

// TestNextWrite lets the sender itself write the destination again, as soon as
// the first write has completed without its killed relay.
func TestNextWrite(t *testing.T) {
	t.Parallel()
	n := start(t, stage{name: "posted"}, NoBug)
	n.Relay.Kill()
	n.Complete(n.write)
	n.Sender.Fill(n.Src, n.Size, Reused)
	n.Write()
	n.Target.Reuse(n.Dst, n.Size, Reused, Reused) // watches what is there
	n.Relay.Reap()
	n.Wire.Release()
	n.check(stage{}, false)
	n.RestartRelay()
	n.AwaitRelayed()
	n.Close()
}

// TestFenceCoversNoLaterClaim lets a relay claim a piece after the fence for an
// earlier one, on fresh queue pairs: that fence must not count for it. The fence
// that does is held, so that the second write cannot be closed in time.
func TestFenceCoversNoLaterClaim(t *testing.T) {
	t.Parallel()
	const piece = 256 << 10
	patient := Settings{"MC_PXN_CREDIT_TIMEOUT_MS": "60000"}
	relay := Settings{"MC_PXN_CREDIT_TIMEOUT_MS": "60000", "MC_PXN_INFLIGHT_DEPTH": "1"}
	n := NewNode(t, 2*piece, Options{Set: relay}, Options{Set: patient, Stage: Fence, Nth: 2})
	n.Warm()
	n.Wire.Hold(0)
	n.Sender.Arm()
	first := n.Sender.Write(n.Target.Name, n.Src, n.Dst, piece, 500*time.Millisecond)
	n.Wire.AwaitHeld(1)
	second := n.Sender.Write(n.Target.Name, n.Src+piece, n.Dst+piece, piece, 4*time.Second)
	if a := n.Sender.Await("write", first); !a.Late {
		t.Fatalf("a write held on the wire ends with %+v, want its deadline", a)
	}
	if a := n.Sender.Await("write", second); a.Err == "" || a.Late {
		t.Fatalf("a write that is held on the wire, and not fenced, ends with %+v, want the word that it may still land", a)
	}
	n.Sender.Free()
	AwaitStatus(n.Sender, "nothing can land any more", func(s *Status) bool { return len(s.Stats.MayLand) == 0 })
	n.Target.Reuse(n.Dst, n.Size, 0, Reused)
	n.Wire.Release()
	time.Sleep(beyond * time.Second)
	if bad := n.Target.Unwatch(); bad > 0 {
		t.Errorf("%d bytes have landed late", bad)
	}
	n.AwaitRelayed()
	n.Balance()
	n.Close()
}

// TestWokenRelayStillBusy writes while a woken relay, which beats again, cannot
// give back what it had claimed: that lane is spent, and must not be taken for one
// that can be used.
func TestWokenRelayStillBusy(t *testing.T) {
	t.Parallel()
	n := start(t, stage{name: "posted"}, NoBug)
	n.Wire.Freeze()
	n.Relay.Stop()
	n.Complete(n.write)
	n.Relay.Continue()
	for range 10 {
		n.Write()
		time.Sleep(100 * time.Millisecond)
	}
	n.Wire.Release()
	n.AwaitRelayed()
	n.Target.Verify(n.Dst, n.Size, Written)
	n.Balance()
	n.Close()
}
