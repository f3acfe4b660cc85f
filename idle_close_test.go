package railhop_test

import (
	"os"
	"testing"

	"github.com/railhop/railhop/internal/registry"
)

// A relay that closes wakes the senders that hold lanes and sleep, so that they give
// them back, and its arena can be freed.
func TestRelayClosesUnderIdleSender(t *testing.T) {
	t.Parallel()
	target, name := start(t, targetSettings(), t.TempDir())
	r := newRig(t, target, name, small, settings{})
	r.open(options{})
	r.twice()
	until(t, "the sender sleeps, and has nothing more to report", func() bool {
		s, err := registry.View(registry.Options{Root: r.registry, Group: "g"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range s.Ranks {
			if int(k.Owner.PID) == os.Getpid() && k.Stats != nil && k.Stats.Counters["relayed.bytes"] > 0 {
				return k.Sleeping
			}
		}
		return false
	})
	r.relay.do(command{Op: "close"}) // fails if the device still has the arena
	r.write()
	if err := r.sender.close(); err != nil {
		t.Error(err)
	}
}
