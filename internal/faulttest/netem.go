package faulttest

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/testkit"
)

// Netem is a [Wire] of a real device in a machine of tools/rxe-vm: packets stay on the
// way for a while, and come to the target even if the process that sent them is long
// dead.
type Netem struct {
	t    testing.TB
	link string
	on   bool
}

// NewNetem returns the wire of one of the real devices.
func NewNetem(t testing.TB, device string) *Netem {
	w := &Netem{t: t, link: "net" + strings.TrimPrefix(device, "rxe")}
	t.Cleanup(w.remove)
	return w
}

func (w *Netem) tc(args ...string) string {
	w.t.Helper()
	out, err := exec.Command("tc", args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("tc %v: %v: %s", args, err, out)
	}
	return string(out)
}

// Delay makes what is sent from now on take so much longer.
func (w *Netem) Delay(d time.Duration) {
	w.t.Helper()
	w.tc("qdisc", "add", "dev", w.link, "root", "netem", "delay", d.String(), "limit", "100000")
	w.on = true
}

// held is what tc says of a queue with at least one data packet in it.
var held = regexp.MustCompile(`backlog [1-9][0-9]*(b|Kb|Mb) [1-9]`)

// await waits until packets are on their way, or until none is.
func (w *Netem) await(some bool) {
	w.t.Helper()
	for end := time.Now().Add(Patience); held.MatchString(w.tc("-s", "qdisc", "show", "dev", w.link)) != some; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("packets on their way by %s: %v, want %v within %v", w.link, !some, some, Patience)
		}
	}
}

// AwaitHeld waits until packets are on their way.
func (w *Netem) AwaitHeld() { w.t.Helper(); w.await(true) }

// Drain waits until all have arrived, and makes the wire fast again.
func (w *Netem) Drain() {
	w.t.Helper()
	w.await(false)
	w.remove()
}

// remove loses what is still on its way.
func (w *Netem) remove() {
	if w.on {
		w.on = false
		w.tc("qdisc", "del", "dev", w.link, "root")
	}
}

// fabricWire keeps what a relay has sent while it dies.
type fabricWire interface {
	hold()
	release()
}

func (w *Wire) hold() {
	w.Hold(0)
	time.Sleep(time.Millisecond)
}

func (w *Wire) release() { w.Release() }

func (w *Netem) hold() {
	w.t.Helper()
	w.Delay(2 * time.Second) // longer than a death takes to be dealt with in a machine that is emulated
	w.AwaitHeld()
}

func (w *Netem) release() { w.t.Helper(); w.Drain() }

// newFabricWire returns the wire between relay 0 and a target.
func newFabricWire(t testing.TB, target *Process) fabricWire {
	if devices := testkit.RealDevices(); len(devices) > 0 {
		return NewNetem(t, devices[1])
	}
	return NewWire(t, target.NIC)
}
