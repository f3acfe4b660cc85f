package faulttest

import (
	"testing"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

// TestDoorbellByCPU is the relay's failures where the sender's CPU rings, also for
// pieces that it has taken back.
func TestDoorbellByCPU(t *testing.T) {
	for _, s := range []stage{
		{name: "before the claim", at: Claim, wire: -1},
		{name: "claimed and not posted", at: Post, wire: -1},
		{name: "posted", wire: 0},
	} {
		s.set = Settings{"MC_PXN_DOORBELL": "cpu"}
		for h, name := range map[how]string{killed: "killed", stopped: "stopped"} {
			t.Run(s.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				n := start(t, s, NoBug)
				n.fail(h)
				n.check(s, h == stopped)
				if h == killed {
					n.RestartRelay()
				}
				n.AwaitRelayed()
				n.Target.Verify(n.Dst, n.Size, Written)
				n.Balance()
				n.AwaitLanes(1)
				n.Close()
			})
		}
	}
}

// TestStoppedThenKilled kills a relay that was stopped and never woken.
func TestStoppedThenKilled(t *testing.T) {
	t.Parallel()
	s := stage{name: "posted"}
	n := start(t, s, NoBug)
	n.Relay.Stop()
	n.Complete(n.write)
	n.Target.Reuse(n.Dst, n.Size, Written, Reused)
	n.Relay.Kill()
	n.Relay.Reap()
	n.Wire.Release()
	n.check(s, false)
	n.RestartRelay()
	n.AwaitRelayed()
	n.Close()
}

// TestSenderStopped stops the sender for longer than a heartbeat may stand still.
// The relay takes nothing new from it meanwhile, and keeps its lane.
func TestSenderStopped(t *testing.T) {
	t.Parallel()
	n := start(t, stage{name: "before the second claim", at: Claim, nth: 2, wire: 0}, NoBug)
	n.Sender.Stop()
	n.Relay.Free()
	n.Wire.Release()
	time.Sleep(beyond * time.Second)
	n.AwaitLanes(1)
	n.Sender.Continue()
	n.Complete(n.write)
	n.Target.Verify(n.Dst, n.Size, Written)
	n.AwaitRelayed()
	n.Balance()
	if ops := n.Relay.Status().Stats.Reasons[xfer.SenderDead].Ops; ops > 0 {
		t.Errorf("the stopped sender is counted as dead %d times", ops)
	}
	n.Close()
}

// TestSenderCloses closes the sender while the relay is stopped and has claimed
// pieces of it. The sender must leave nothing behind in its process, nor a lane in
// the relay once that is woken.
func TestSenderCloses(t *testing.T) {
	t.Parallel()
	n := start(t, stage{name: "posted"}, NoBug)
	n.Relay.Stop()
	n.Complete(n.write)
	n.Target.Reuse(n.Dst, n.Size, Written, Reused)
	n.Sender.Close()
	n.Relay.Continue()
	n.Wire.Release()
	time.Sleep(beyond * time.Second)
	if bad := n.Target.Unwatch(); bad > 0 {
		t.Errorf("%d bytes have landed late", bad)
	}
	n.AwaitLanes(0)
	n.StartSender(Options{})
	n.AwaitRelayed()
	n.Close()
}

// TestRelayCloses closes the relay in the middle of a write. It must not wait for
// ever for what is on the wire, and the write must complete.
func TestRelayCloses(t *testing.T) {
	t.Parallel()
	s := stage{name: "posted"}
	n := start(t, s, NoBug)
	n.Relay.Close()
	n.Complete(n.write)
	n.Target.Reuse(n.Dst, n.Size, Written, Reused)
	n.Wire.Release()
	time.Sleep(beyond * time.Second)
	if bad := n.Target.Unwatch(); bad > 0 {
		t.Errorf("%d bytes have landed late", bad)
	}
	n.Balance()
	AwaitStatus(n.Sender, "the closed relay's arena is let go", func(s *Status) bool { return s.Imports == 0 })
	n.Relay.Kill()
	n.Relay.Reap()
	n.RestartRelay()
	n.AwaitRelayed()
	n.Close()
}

// TestStrict lets the relay be stopped where nothing may go direct instead: the
// write fails, but only once nothing can land any more.
func TestStrict(t *testing.T) {
	t.Parallel()
	s := stage{name: "posted", set: Settings{"MC_PXN_STRICT": "1"}}
	n := start(t, s, NoBug)
	n.Relay.Stop()
	if a := n.Sender.Await("write", n.write); a.Err == "" {
		t.Error("the write completes, although its relay is stopped and nothing may go direct")
	}
	n.Target.Reuse(n.Dst, n.Size, 0, Reused)
	n.Relay.Continue()
	n.Wire.Release()
	time.Sleep(beyond * time.Second)
	if bad := n.Target.Unwatch(); bad > 0 {
		t.Errorf("%d bytes have landed late", bad)
	}
	n.Balance()
	n.Close()
}

// another starts a second sender beside the first, which it returns.
func (n *faulty) another() (first *Process) {
	first = n.Sender
	set := n.rank(0, nil)
	set["RAILHOP_SOFT_GPUS"] = "0000:a2:00.0"
	n.StartSender(Options{Set: set, Registry: n.Registry})
	return first
}

// TestFenceHitsOthers lets a sender give up a piece whose queue pairs carry pieces
// of another sender: the fence takes those along, but they arrive.
func TestFenceHitsOthers(t *testing.T) {
	t.Parallel()
	const piece = 256 << 10
	n := start(t, stage{name: "posted"}, NoBug)
	n.Wire.Release()
	n.Complete(n.write)
	from := n.Src
	first := n.another()
	n.AwaitRelayed()
	n.Wire.Hold(0)
	to := n.Target.Memory(piece)
	w := first.Write(n.Target.Name, from, to, piece, time.Second)
	n.Wire.AwaitHeld(1)
	other := n.Begin(Patience)
	if a := first.Await("write", w); !a.Late {
		t.Errorf("the write ends with %+v, want its deadline, honoured", a)
	}
	n.Target.Reuse(to, piece, 0, Reused)
	n.Wire.Release()
	n.Complete(other)
	n.Target.Verify(n.Dst, n.Size, Written)
	time.Sleep(beyond * time.Second)
	if bad := n.Target.Unwatch(); bad > 0 {
		t.Errorf("%d bytes have landed late", bad)
	}
	n.AwaitRelayed()
	n.Balance()
	first.Close()
	n.Close()
}

// TestOtherSender kills one of two senders: the other must not notice.
func TestOtherSender(t *testing.T) {
	t.Parallel()
	n := start(t, stage{name: "posted"}, NoBug)
	n.Wire.Release()
	n.Complete(n.write)
	dead := n.another()
	n.AwaitRelayed()
	before := n.Sender.Status().Stats
	n.Wire.Hold(100_000)
	w := n.Begin(Patience)
	n.Wire.AwaitHeld(1)
	dead.Kill()
	dead.Reap()
	n.Wire.Release()
	n.Complete(w)
	n.Write()
	n.AwaitLanes(1)
	n.Target.Verify(n.Dst, n.Size, Written)
	if after := n.Sender.Status().Stats; after.Relayed.Bytes != before.Relayed.Bytes+2*n.Size || len(after.Fallbacks) != len(before.Fallbacks) {
		t.Errorf("%d bytes were relayed, fallbacks are %v; want %d more than %d and none more than %v",
			after.Relayed.Bytes, after.Fallbacks, 2*n.Size, before.Relayed.Bytes, before.Fallbacks)
	}
	n.Close()
}

// TestSenderClosesAttaching closes the sender while it imports a relay's arena.
func TestSenderClosesAttaching(t *testing.T) {
	t.Parallel()
	n := NewNode(t, size, Options{}, Options{Stage: Attach})
	n.Sender.Arm()
	n.Begin(Patience)
	n.Sender.AwaitHeld()
	closed := n.Sender.Go(command{Op: "close"})
	time.Sleep(100 * time.Millisecond)
	n.Sender.Free()
	if a := n.Sender.Await("close", closed); a.Err != "" || len(a.Left) > 0 {
		t.Errorf("close: %s, left behind: %q", a.Err, a.Left)
	}
	n.AwaitLanes(0)
	n.StartSender(Options{})
	n.AwaitRelayed()
	n.Close()
}
