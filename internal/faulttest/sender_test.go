package faulttest

import (
	"testing"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

// TestSenderGivesUp lets the sender's deadline pass with the relay at each stage:
// the error comes only once nothing can land any more, so that the target may use
// its memory again at once, although the sender is then killed and the relay goes
// on. Where the relay does not see what is taken back, or the fence is left out,
// bytes land late.
func TestSenderGivesUp(t *testing.T) {
	for _, s := range stages {
		if s.stop != NoBug {
			t.Run(s.name+"/with "+string(s.stop), func(t *testing.T) {
				t.Parallel()
				n := build(t, s, s.stop)
				n.giveUp(s, s.stop)
				n.awaitLate(s.stop)
			})
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			n := build(t, s, NoBug)
			n.giveUp(s, NoBug)
			n.Sender.Reap()
			time.Sleep(beyond * time.Second)
			if bad := n.Target.Unwatch(); bad > 0 {
				t.Errorf("%d bytes have landed late", bad)
			}
			n.freed()
			n.again()
		})
	}
}

func (n *faulty) giveUp(s stage, bug Bug) {
	n.T.Helper()
	n.hold(s, 700*time.Millisecond)
	if a := n.Sender.Await("write", n.write); !a.Late {
		n.T.Fatalf("the write ends with %+v, want its deadline, honoured", a)
	}
	n.Target.Reuse(n.Dst, n.Size, 0, Reused)
	// A relay that has yet to claim takes nothing from the dead, bug or no bug.
	if !s.fresh || bug == NoBug {
		n.Sender.Kill()
	}
	n.held.Free()
	n.Wire.Release()
}

// TestSenderKilled kills the sender, in the middle of a write, with the relay at
// each stage. The relay sends what it has claimed, or what nobody can take back
// any more, and then frees the lane; from then on nothing lands.
func TestSenderKilled(t *testing.T) {
	for _, s := range stages {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			n := start(t, s, NoBug)
			n.Sender.Kill()
			n.Sender.Reap()
			n.held.Free()
			n.Wire.Release()
			n.freed()
			n.Target.Reuse(n.Dst, n.Size, 0, Reused)
			time.Sleep(beyond * time.Second)
			if bad := n.Target.Unwatch(); bad > 0 {
				t.Errorf("%d bytes have landed after the lane was free", bad)
			}
			n.again()
		})
	}
	// What is on the wire when the sender dies does land: that is why the lane
	// must not be free before.
	t.Run("posted/used too early", func(t *testing.T) {
		t.Parallel()
		s := stage{name: "posted"}
		n := start(t, s, NoBug)
		n.Sender.Kill()
		n.Sender.Reap()
		n.Target.Reuse(n.Dst, n.Size, 0, Reused)
		time.Sleep(500 * time.Millisecond)
		n.AwaitLanes(1)
		n.Wire.Release()
		n.awaitLate("a lane that is not free")
		n.freed()
	})
}

// TestSenderKilledEarly kills senders whose lane the relay knows little of.
func TestSenderKilledEarly(t *testing.T) {
	for _, s := range []Stage{Attach, Copy} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			n := &faulty{Node: NewNode(t, size, Options{}, Options{Stage: s})}
			n.Sender.Arm()
			n.write = n.Begin(Patience)
			n.Sender.AwaitHeld()
			n.Sender.Kill()
			n.Sender.Reap()
			n.AwaitLanes(0)
			n.Target.Verify(n.Dst, n.Size, Poison)
			n.again()
		})
	}
}

// freed waits until the relay has given up the dead sender's lane, once, and all
// that it had of it.
func (n *faulty) freed() {
	n.T.Helper()
	n.AwaitLanes(0)
	AwaitMaps(n.Relay, 1) // its own entry
	if ops := n.Relay.Status().Stats.Reasons[xfer.SenderDead].Ops; ops != 1 {
		n.T.Errorf("the dead sender is counted %d times, want once", ops)
	}
}

// again starts the sender anew, which must get a lane as the first did, and ends.
func (n *faulty) again() {
	n.T.Helper()
	n.StartSender(Options{})
	n.AwaitRelayed()
	n.Target.Verify(n.Dst, n.Size, Written)
	n.Balance()
	n.AwaitLanes(1)
	n.Close()
}
