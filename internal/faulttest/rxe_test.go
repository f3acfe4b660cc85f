package faulttest

import (
	"os/exec"
	"regexp"
	"strings"
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
	wire := "net" + strings.TrimPrefix(devices[1], "rxe")
	tc := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("tc", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("tc %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	kill := func(t *testing.T, bug Bug) *Node {
		patient := Settings{"MC_PXN_CREDIT_TIMEOUT_MS": "20000", "MC_PXN_HEARTBEAT_TIMEOUT_MS": "20000"}
		n := NewNode(t, size, Options{Set: patient}, Options{Set: patient, Bug: bug})
		n.Warm()
		tc("qdisc", "add", "dev", wire, "root", "netem", "delay", slow.String(), "limit", "100000")
		t.Cleanup(func() { tc("qdisc", "del", "dev", wire, "root") })
		write := n.Begin(Patience)
		for end := time.Now().Add(Patience); !waits.MatchString(tc("-s", "qdisc", "show", "dev", wire)); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the relay posts nothing")
			}
		}
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

// waits is what tc says of a queue with at least one data packet in it.
var waits = regexp.MustCompile(`backlog [1-9][0-9]*(b|Kb|Mb) [1-9]`)
