package faulttest

import (
	"cmp"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/testkit"
)

// slow is how long packets of the relay's card stay on the wire, and thus how long its
// work outlives it.
const slow = 4 * time.Second

// TestRXERelayKilled kills a relay whose card has work under way, on real queue pairs:
// without the fence it lands on what the target has put in its place, and with it
// nothing does.
func TestRXERelayKilled(t *testing.T) {
	devices := testkit.RealDevices()
	if len(devices) < 3 {
		t.Skipf("it wants 3 RDMA devices, and there are %d: make test-rxe plays them", len(devices))
	}
	kill := func(t *testing.T, bug Bug) *Node {
		patient := Settings{"MC_PXN_CREDIT_TIMEOUT_MS": "20000", "MC_PXN_HEARTBEAT_TIMEOUT_MS": "20000"}
		n := NewNode(t, size, Options{Set: patient}, Options{Set: patient, Bug: bug})
		n.Warm()
		wire := NewNetem(t, devices[1])
		wire.Delay(slow)
		write := n.Begin(Patience)
		wire.AwaitHeld()
		n.Relay.Kill()
		n.Complete(write)
		n.Target.Reuse(n.Dst, n.Size, Written, Reused)
		return n
	}
	t.Run("without the fence", func(t *testing.T) {
		n := kill(t, NoFence)
		(&faulty{Node: n}).awaitLate(NoFence)
		t.Logf("%d bytes have landed late", n.Target.Unwatch())
	})
	t.Run("with the fence", func(t *testing.T) {
		n := kill(t, NoBug)
		time.Sleep(slow + beyond*time.Second)
		if bad := n.Target.Unwatch(); bad > 0 {
			t.Errorf("%d bytes have landed late", bad)
		}
		n.Balance()
		if n.Sender.Status().Fences == 0 {
			t.Error("no fence was asked for")
		}
	})
}

// TestRXEKill is TestKill and TestKillSees on real queue pairs. Their machine is slow,
// and so their writes are small.
func TestRXEKill(t *testing.T) {
	if n := len(testkit.RealDevices()); n < 2 {
		t.Skipf("it wants 2 RDMA devices, and there are %d: make kill-rxe plays them", n)
	}
	if testing.Short() {
		t.Skip("takes ten seconds a round: make kill-rxe and make test-rxe-full do it")
	}
	small := cmp.Or(*slot, 16)
	t.Run("without the fence", func(t *testing.T) { seeing(t, small) })
	t.Run("rounds", func(t *testing.T) { killing(t, 20, small, *wire) })
}
