package faulttest

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestStorm lets relays fail at random moments of a stream of writes, and checks
// every write as it completes.
func TestStorm(t *testing.T) {
	for seed := range uint64(2) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 7))
			n := NewNode(t, 8<<20, Options{Set: Settings{"RAILHOP_SOFT_NICS": "rate=200MB"}}, Options{})
			n.Warm()
			for i := range 8 {
				w := n.Begin(Patience)
				time.Sleep(time.Duration(rnd.IntN(45_000)) * time.Microsecond)
				kill, long := rnd.IntN(3) == 0, rnd.IntN(2) == 0
				if kill {
					n.Relay.Kill()
				} else {
					n.Relay.Stop()
				}
				if !kill && !long {
					time.Sleep(time.Duration(rnd.IntN(100_000)) * time.Microsecond)
					n.Relay.Continue()
				}
				n.Complete(w)
				n.Target.Reuse(n.Dst, n.Size, Written, Reused)
				switch {
				case kill:
					n.Relay.Reap()
				case long:
					n.Relay.Continue()
				}
				time.Sleep(300 * time.Millisecond)
				if bad := n.Target.Unwatch(); bad > 0 {
					t.Fatalf("round %d, kill %v, long %v: %d bytes have landed late", i, kill, long, bad)
				}
				if kill {
					n.RestartRelay()
				}
				n.AwaitRelayed()
				n.Target.Fill(n.Dst, n.Size, Poison)
			}
			n.Balance()
			n.AwaitLanes(1)
			AwaitMaps(n.Sender, 2)
			n.Close()
		})
	}
}
