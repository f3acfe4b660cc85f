package faulttest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestLeaks looks at what the survivors of many faults hold: the first sender, and
// the target.
func TestLeaks(t *testing.T) {
	f := NewFabric(t, FabricOptions{Senders: 2, Set: Settings{"MC_MAX_EP_PER_CTX": fmt.Sprint(maxEndpoints)}})
	rnd := rand.New(rand.NewPCG(*seed, 3))
	fault := func(k int) {
		f.AwaitRelaying()
		time.Sleep(time.Duration(rnd.IntN(5_000)) * time.Microsecond)
		switch k {
		default:
			f.Relays[0].Kill()
			f.Relays[0].Reap()
			f.StartRelay(0)
		case 1:
			f.Relays[0].Stop()
			time.Sleep(500 * time.Millisecond) // longer than a heartbeat may stand still
			f.Relays[0].Continue()
		case 2:
			f.Senders[1].Kill()
			f.Senders[1].Reap()
			f.AwaitLanesFreed(f.Senders[1].cmd.Process.Pid)
			f.Settle()
			f.StartSender(1)
		}
	}
	for k := range 3 { // every way has been taken once
		fault(k)
	}
	before := f.rest()
	for range *leaks {
		fault(rnd.IntN(8))
		if t.Failed() {
			return
		}
	}
	// A leak of one thing a fault is more than that.
	const slack = 4
	var more []string
	for end := time.Now().Add(Patience); ; time.Sleep(200 * time.Millisecond) {
		if more = f.rest().beyond(before, slack); len(more) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, what := range more {
		t.Errorf("after %d faults: %s", *leaks, what)
	}
	sum := f.Close()
	t.Logf("%d faults: %+v", *leaks, sum)
	if sum.Wrong+sum.Late+sum.Lost+sum.Double > 0 {
		t.Errorf("wrong, late, lost, double: %+v, want none", sum)
	}
}

// resting is what is held of the system where nothing goes on.
type resting struct {
	Sender, Target Held
	Files          int // in the registry
}

// rest stops the streams, counts, and starts them again.
func (f *Fabric) rest() resting {
	f.T.Helper()
	f.AwaitRelaying()
	for i := range f.Senders {
		f.StopStream(i, false)
	}
	f.Settle()
	time.Sleep(300 * time.Millisecond)
	r := resting{Sender: *f.Senders[0].Do(command{Op: "held"}).Held, Target: *f.Targets[0].Do(command{Op: "held"}).Held}
	files, err := os.ReadDir(filepath.Join(f.Registry, "g"))
	if err != nil {
		f.T.Fatal(err)
	}
	r.Files = len(files)
	for i := range f.Senders {
		f.Stream(i)
	}
	return r
}

// beyond lists what is held more than before.
func (r resting) beyond(before resting, slack int) (more []string) {
	for _, p := range []struct {
		name     string
		was, now Held
	}{{"sender", before.Sender, r.Sender}, {"target", before.Target, r.Target}} {
		for _, h := range []struct {
			what            string
			was, now, slack int
		}{
			{"goroutines", p.was.Goroutines, p.now.Goroutines, slack},
			{"threads", p.was.Threads, p.now.Threads, 2 * slack}, // Go ends none that it has started
			{"descriptors", p.was.Descriptors, p.now.Descriptors, slack},
			{"mappings", p.was.Mappings, p.now.Mappings, slack},
			{"registered keys", p.was.Keys, p.now.Keys, 0},
			{"queue pairs", 2 * maxEndpoints, p.now.QPs, 0},
			{"allocations", p.was.GPU.Allocs, p.now.GPU.Allocs, 0},
			{"imports", p.was.GPU.Imports, p.now.GPU.Imports, 0},
			{"doorbell pages", p.was.GPU.HostMaps, p.now.GPU.HostMaps, 0},
			{"streams", p.was.GPU.Streams, p.now.GPU.Streams, 0},
			{"events", p.was.GPU.Events, p.now.GPU.Events, slack},
		} {
			if h.now > h.was+h.slack {
				more = append(more, fmt.Sprintf("the %s holds %d %s, %d before", p.name, h.now, h.what, h.was))
			}
		}
	}
	if r.Files > before.Files {
		more = append(more, fmt.Sprintf("the registry has %d files, %d before", r.Files, before.Files))
	}
	return more
}

// maxEndpoints bounds what a target keeps toward peers that have died: nothing
// tells the passive end of a queue pair.
const maxEndpoints = 8
