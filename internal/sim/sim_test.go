package sim

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/railhop/railhop"
)

var (
	seeds = flag.Uint64("seeds", 200, "how many seeds to run")
	from  = flag.Uint64("from", 1, "the first seed")
	trace = flag.Bool("trace", false, "print the trace of each seed")
)

// one runs a seed in a bubble of its own.
func one(t *testing.T, o Options) (r Result) {
	t.Helper()
	defer func() {
		if v := recover(); v != nil {
			r.Seed = o.Seed
			if o.Trace != nil {
				stacks := make([]byte, 1<<20)
				fmt.Fprintf(o.Trace, "%s\n", stacks[:runtime.Stack(stacks, true)])
			}
			r.Violations = append(r.Violations, fmt.Sprintf("panic: %v", v))
		}
	}()
	synctest.Test(t, func(*testing.T) { r = Run(o) })
	return r
}

func out() io.Writer {
	if *trace {
		return os.Stdout
	}
	return nil
}

func TestSeeds(t *testing.T) {
	if raceEnabled {
		*seeds = min(*seeds, 30)
	}
	m := NewMemory()
	begin := time.Now()
	var events, faults, requests, failed int
	var relayed, direct uint64
	bad := 0
	reasons := make(map[railhop.Reason]uint64)
	for s := *from; s < *from+*seeds; s++ {
		r := one(t, Options{Seed: s, Memory: m, Trace: out()})
		events += r.Events
		faults += r.Faults
		requests += r.Requests
		failed += r.Failed
		relayed += r.Relayed
		direct += r.Direct
		for why, n := range r.Reasons {
			reasons[why] += n
		}
		if len(r.Violations) > 0 {
			bad++
			t.Errorf("seed %d: %s\nreplay: make sim FROM=%d SEEDS=1 TRACE=1", s, r.Violations[0], s)
			if bad > 10 {
				break
			}
		}
	}
	n := float64(*seeds)
	t.Logf("%d seeds in %v (%.0f a second), %d events, %d faults, %d requests (%d failed), relayed %.1f MB, direct %.1f MB",
		*seeds, time.Since(begin).Round(time.Millisecond), n/time.Since(begin).Seconds(), events, faults, requests, failed, float64(relayed)/1e6, float64(direct)/1e6)
	for _, why := range slices.SortedFunc(maps.Keys(reasons), func(a, b railhop.Reason) int { return cmp.Compare(a, b) }) {
		t.Logf("%-24v %d", why, reasons[why])
	}
}

// TestReplay runs seeds twice: the traces must be the same.
func TestReplay(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector shuffles goroutines")
	}
	m := NewMemory()
	for s := uint64(1); s <= 25; s++ {
		a, b := one(t, Options{Seed: s, Memory: m}), one(t, Options{Seed: s, Memory: m})
		if a.Hash != b.Hash || a.Events != b.Events {
			t.Errorf("seed %d: %d events, trace %x; again %d events, trace %x", s, a.Events, a.Hash, b.Events, b.Hash)
		}
	}
}

var tries = flag.Uint64("tries", 2000, "within how many seeds a planted bug must be found")

// TestBugs plants mistakes: each must be found.
func TestBugs(t *testing.T) {
	if raceEnabled {
		t.Skip("it takes long, and other runs show it")
	}
	m := NewMemory()
	for _, bug := range Bugs() {
		t.Run(bug.String(), func(t *testing.T) {
			for s := *from; s < *from+*tries; s++ {
				if r := one(t, Options{Seed: s, Memory: m, Bug: bug, Trace: out()}); len(r.Violations) > 0 {
					t.Logf("found by seed %d: %s", s, r.Violations[0])
					return
				}
			}
			t.Errorf("not found in %d seeds", *tries)
		})
	}
}
