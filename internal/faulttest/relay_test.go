package faulttest

import (
	"testing"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

// size is what is written: four slots, so that a relay holds one piece while
// others are on their way or waiting.
const size = 1 << 20

// stage is a place at which a relay is held, or where the wire holds its bytes.
type stage struct {
	name  string
	at    Stage
	nth   int
	wire  int      // bytes that pass the wire before it holds the rest; -1: it holds nothing
	fresh bool     // nothing was relayed before
	there bool     // the target is held, not the relay
	set   Settings // of the sender
	// With kill and with stop, the bug that must make late writes; NoBug where
	// none can, and why.
	kill, stop Bug
}

var stages = []stage{
	// A relay that dies before the claim has posted nothing, so that nothing can
	// come late, whatever is broken; what shows the claim's worth is that no fence
	// is asked for. Stopped and woken, it would post what was taken back.
	{name: "before the claim", at: Claim, wire: -1, stop: NoClaim},
	{name: "before the second claim", at: Claim, nth: 2, wire: 0, kill: NoFence, stop: NoClaim},
	// The first half of the piece, that of the first queue pair, is posted.
	{name: "claimed and half posted", at: Post, nth: 2, wire: 0, kill: NoFence, stop: NoFence},
	// Nothing is: it cannot come late from the dead, but does from the woken.
	{name: "claimed and not posted", at: Post, wire: -1, stop: NoFence},
	{name: "half a message in the socket", wire: 100_000, kill: NoFence, stop: NoFence},
	{name: "posted", wire: 0, kill: NoFence, stop: NoFence},
	// All bytes have landed, so that none can come late; what could go wrong is
	// that they are counted twice.
	{name: "completed and not stored", at: Store, wire: -1},
	// Nothing is claimed before the queue pairs are ready: as before the claim.
	{name: "in mid-handshake", at: Handshake, wire: -1, fresh: true, stop: NoClaim},
	{name: "in mid-handshake at the target", at: Handshake, wire: -1, fresh: true, there: true, stop: NoClaim},
}

// TestRelayKilled kills the relay at each stage. The write must complete by the
// direct way, and nothing of the relay's may land on what the target then puts in
// its place; where the proof that the way is closed is left out, it does.
func TestRelayKilled(t *testing.T) {
	for _, s := range stages {
		if s.kill != NoBug {
			t.Run(s.name+"/with "+string(s.kill), func(t *testing.T) {
				t.Parallel()
				seesLate(t, s, s.kill, killed)
			})
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			n := start(t, s, NoBug)
			n.fail(killed)
			n.check(s, false)
			n.RestartRelay()
			n.AwaitRelayed()
			n.Target.Verify(n.Dst, n.Size, Written)
			n.Balance()
			n.AwaitLanes(1)
			AwaitMaps(n.Sender, 2) // its own entry, and the new relay's
			n.Close()
		})
	}
}

// TestRelayStopped stops the relay at each stage, and wakes it once the write has
// completed by the direct way and the target has put something else in its place.
func TestRelayStopped(t *testing.T) {
	for _, s := range stages {
		if s.stop != NoBug {
			t.Run(s.name+"/with "+string(s.stop), func(t *testing.T) {
				t.Parallel()
				seesLate(t, s, s.stop, stopped)
			})
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			n := start(t, s, NoBug)
			n.fail(stopped)
			n.check(s, true)
			n.AwaitRelayed()
			n.Target.Verify(n.Dst, n.Size, Written)
			n.Balance()
			n.AwaitLanes(1)
			AwaitMaps(n.Sender, 2)
			n.Close()
		})
	}
}

type how bool

const (
	killed  how = false
	stopped how = true
)

// faulty is a node whose relay is at a stage, with a write under way.
type faulty struct {
	*Node
	write <-chan Answer
	held  *Process // the one that is at its stage
}

func start(t *testing.T, s stage, bug Bug) *faulty {
	t.Helper()
	n := build(t, s, bug)
	n.hold(s, Patience)
	return n
}

func build(t *testing.T, s stage, bug Bug) *faulty {
	t.Helper()
	relay, sender := Options{Stage: s.at, Nth: s.nth}, Options{Set: s.set}
	if s.fresh { // it looks for its route for as long as it is held
		relay.Set = Settings{"MC_PXN_CREDIT_TIMEOUT_MS": "60000"}
	}
	if bug == NoClaim {
		relay.Bug = bug
	} else {
		sender.Bug = bug
	}
	n := &faulty{Node: NewNode(t, size, relay, sender)}
	if !s.fresh {
		n.Warm()
	}
	return n
}

// hold begins a write that comes to a stage.
func (n *faulty) hold(s stage, limit time.Duration) {
	n.T.Helper()
	n.Wire.Hold(s.wire)
	n.held = n.Relay
	if s.there {
		n.held = n.Target
	}
	n.held.Arm()
	n.write = n.Begin(limit)
	if s.at != Nowhere {
		n.held.AwaitHeld()
	}
	if s.wire >= 0 {
		n.Wire.AwaitHeld(1)
	}
}

// fail lets the relay fail, the write complete and the target use its memory
// again, and then everything go on that was held.
func (n *faulty) fail(h how) {
	n.T.Helper()
	if h == stopped {
		n.Relay.Stop()
	} else {
		n.Relay.Kill()
	}
	n.Complete(n.write)
	n.Target.Reuse(n.Dst, n.Size, Written, Reused)
	if h == stopped {
		n.Relay.Continue()
		n.held.Free()
	} else {
		n.Relay.Reap()
		n.Target.Free()
	}
	n.Wire.Release()
}

// seesLate runs a scenario with a planted bug, until a late write is seen.
func seesLate(t *testing.T, s stage, bug Bug, h how) {
	t.Helper()
	n := start(t, s, bug)
	n.fail(h)
	n.awaitLate(bug)
}

func (n *faulty) awaitLate(bug Bug) {
	n.T.Helper()
	for end := time.Now().Add(Patience); n.Target.Late() == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			n.T.Fatalf("no late write is seen with %s: the test could not tell", bug)
		}
	}
}

// check watches beyond the end, and looks at what the sender has made of it.
func (n *faulty) check(s stage, woken bool) {
	n.T.Helper()
	time.Sleep(beyond * time.Second)
	if bad := n.Target.Unwatch(); bad > 0 {
		n.T.Errorf("%d bytes have landed late", bad)
	}
	n.Balance()
	st := n.Sender.Status()
	if st.Stats.Fallbacks[xfer.RelaySuspected].Bytes == 0 && st.Stats.Fallbacks[xfer.NotClaimed].Bytes == 0 {
		n.T.Errorf("fallbacks are %v, want some because the relay was suspected or did not claim", st.Stats.Fallbacks)
	}
	// What was never claimed is taken back without asking anybody.
	if unclaimed := s.fresh || s.at == Claim && s.nth <= 1; unclaimed && st.Fences > 0 {
		n.T.Errorf("%d fences were asked for, although nothing was claimed", st.Fences)
	} else if !unclaimed && st.Fences == 0 {
		n.T.Error("no fence was asked for, although pieces were claimed")
	}
	if !woken {
		AwaitStatus(n.Sender, "the dead relay's arena is let go", func(s *Status) bool { return s.Imports == 0 })
	}
}
