package model

import (
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"
)

var (
	full   = flag.Bool("full", false, "explore the large configurations, as make model does")
	traces = flag.Bool("traces", false, "show how each planted bug shows")
)

// small are configurations of a second or less, each with something of its own.
var small = []Config{
	{Name: "every access a step", Senders: 1, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 1, Faults: 1, Fine: true},
	{Name: "a slot used again, every access a step", Senders: 1, Lanes: 1, Slots: 1, Pieces: 3, Epochs: 1, Patience: 1, Fine: true},
	{Name: "a lane claimed again, every access a step", Senders: 2, Lanes: 1, Slots: 1, Pieces: 1, Epochs: 2, Faults: 1, Fine: true},
	{Name: "three slots, four pieces", Senders: 1, Lanes: 1, Slots: 3, Pieces: 4, Epochs: 1, Faults: 1},
	{Name: "timeouts and aborts", Senders: 1, Lanes: 1, Slots: 2, Pieces: 3, Epochs: 1, Faults: 1, Patience: 1},
	{Name: "a lane claimed again", Senders: 2, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 2, Faults: 1},
	{Name: "two lanes of a relay", Senders: 2, Lanes: 2, Slots: 1, Pieces: 1, Epochs: 2, Faults: 1},
	{Name: "the CPU rings", Senders: 1, Lanes: 1, Slots: 3, Pieces: 4, Epochs: 1, Faults: 1, CPUBell: true},
	{Name: "the CPU rings for what was taken back", Senders: 1, Lanes: 1, Slots: 1, Pieces: 2, Epochs: 1, Faults: 1, CPUBell: true, Patience: 1},
	{Name: "a NIC whose work outlives its process", Senders: 1, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 1, Faults: 2, Outlives: true},
	{Name: "lanes given back at any time", Senders: 1, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 2, Faults: 1, Leave: true},
	{Name: "a relay that leaves", Senders: 1, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 2, Faults: 1, Stops: true},
	{Name: "a file cut short", Senders: 1, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 1, Faults: 2, Truncate: true},
	{Name: "a file cut short, every access a step", Senders: 1, Lanes: 1, Slots: 1, Pieces: 1, Epochs: 1, Faults: 2, Truncate: true, Fine: true},
	{Name: "pumps that sleep", Senders: 1, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 1, Faults: 1, Park: true},
	{Name: "pumps that sleep without a limit", Senders: 1, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 1, Faults: 1, Park: true, Strict: true},
}

// large are the bounds that the lane is held to, the first above all, and further
// ones for what the first leaves out. The longest are begun first.
var large = []Config{
	{Name: "2 senders, 4 pieces, 2 faults", Senders: 2, Lanes: 1, Slots: 3, Pieces: 4, Epochs: 2, Faults: 2},
	{Name: "2 senders, 2 slots, 3 pieces, 2 faults, 1 abort", Senders: 2, Lanes: 1, Slots: 2, Pieces: 3, Epochs: 2, Faults: 2, Patience: 1},
	{Name: "2 senders on 2 lanes, 2 pieces, 1 fault", Senders: 2, Lanes: 2, Slots: 2, Pieces: 2, Epochs: 2, Faults: 1},
	{Name: "2 senders, 4 pieces, 1 fault, 1 abort", Senders: 2, Lanes: 1, Slots: 3, Pieces: 4, Epochs: 2, Faults: 1, Patience: 1},
	{Name: "2 senders, 4 pieces, 2 faults, the CPU rings", Senders: 2, Lanes: 1, Slots: 3, Pieces: 4, Epochs: 2, Faults: 2, CPUBell: true},
	{Name: "2 senders, 2 pieces, 1 fault, pumps that sleep", Senders: 2, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 2, Faults: 1, Park: true},
	{Name: "2 senders on 2 lanes, 1 piece, 2 faults, 1 abort", Senders: 2, Lanes: 2, Slots: 1, Pieces: 1, Epochs: 3, Faults: 2, Patience: 1},
	{Name: "1 sender, 4 pieces, 2 faults, 1 abort", Senders: 1, Lanes: 1, Slots: 3, Pieces: 4, Epochs: 1, Faults: 2, Patience: 1},
	{Name: "2 senders, 2 pieces, 2 faults, 2 aborts", Senders: 2, Lanes: 1, Slots: 3, Pieces: 2, Epochs: 2, Faults: 2, Patience: 2},
	{Name: "2 senders, 2 pieces, 1 fault, every access a step", Senders: 2, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 2, Faults: 1, Fine: true},
	{Name: "2 senders, 1 piece, 2 faults, 1 abort, every access a step", Senders: 2, Lanes: 1, Slots: 1, Pieces: 1, Epochs: 2, Faults: 2, Patience: 1, Fine: true},
	{Name: "1 sender, 3 pieces, 1 fault, every access a step", Senders: 1, Lanes: 1, Slots: 2, Pieces: 3, Epochs: 1, Faults: 1, Fine: true},
	{Name: "2 senders, 2 pieces, 2 faults, files cut short", Senders: 2, Lanes: 1, Slots: 3, Pieces: 2, Epochs: 2, Faults: 2, Truncate: true},
	{Name: "2 senders, 2 pieces, 2 faults, posted work outlives", Senders: 2, Lanes: 1, Slots: 3, Pieces: 2, Epochs: 2, Faults: 2, Outlives: true},
	{Name: "1 sender, 3 pieces, 1 fault, pumps that sleep", Senders: 1, Lanes: 1, Slots: 2, Pieces: 3, Epochs: 1, Faults: 1, Park: true},
	{Name: "2 senders, 2 pieces, 3 epochs, 1 fault, leaving at any time", Senders: 2, Lanes: 1, Slots: 3, Pieces: 2, Epochs: 3, Faults: 1, Leave: true},
	{Name: "2 senders, 2 pieces, 1 fault, the relay leaves", Senders: 2, Lanes: 1, Slots: 3, Pieces: 2, Epochs: 2, Faults: 1, Stops: true},
}

func TestSmall(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine; slow with the race detector")
	}
	for _, c := range small {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			explore(t, c)
		})
	}
}

func explore(t *testing.T, c Config) {
	t.Helper()
	begin := time.Now()
	r := Run(c)
	complete := "exhausted"
	if !r.Complete {
		complete = "NOT exhausted"
	}
	t.Logf("%s: %d states, %d steps, depth %d, %d ends, %s, %v", c.Name, r.States, r.Steps, r.Depth, r.Finals, complete, time.Since(begin).Round(time.Millisecond))
	switch {
	case r.Violation != nil:
		t.Errorf("%s: %v", c.Name, r.Violation)
	case !r.Complete:
		t.Errorf("%s: more than %d states", c.Name, c.Max)
	case r.Finals == 0:
		t.Errorf("%s: no state in which all has ended", c.Name)
	}
}

// TestBugs plants each mistake and wants it found, by the property that it breaks
// first.
func TestBugs(t *testing.T) {
	one := Config{Name: "one slot", Senders: 1, Lanes: 1, Slots: 1, Pieces: 2, Epochs: 1, Faults: 1, Patience: 1}
	fine := Config{Name: "every access a step", Senders: 1, Lanes: 1, Slots: 1, Pieces: 2, Epochs: 1, Faults: 1, Patience: 1, Fine: true}
	again := Config{Name: "a lane claimed again", Senders: 2, Lanes: 1, Slots: 2, Pieces: 1, Epochs: 2, Faults: 1}
	leaves := Config{Name: "a relay that leaves", Senders: 1, Lanes: 1, Slots: 1, Pieces: 1, Epochs: 1, Stops: true}
	cut := Config{Name: "a file cut short", Senders: 1, Lanes: 1, Slots: 1, Pieces: 1, Epochs: 1, Faults: 1, Truncate: true}
	fineCut := Config{Name: "a file cut short, every access a step", Senders: 1, Lanes: 1, Slots: 1, Pieces: 1, Epochs: 1, Faults: 2, Truncate: true, Fine: true}
	sleeps := Config{Name: "pumps that sleep", Senders: 1, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 1, Park: true}
	strict := Config{Name: "pumps that sleep without a limit", Senders: 1, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 1, Park: true, Strict: true}
	two := Config{Name: "two slots", Senders: 1, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 1, Faults: 1, Patience: 1}
	for _, tc := range []struct {
		bug      Bug
		config   Config
		property string
	}{
		{NoClaim, one, "late"},
		{BindAfterClaim, fine, "late"},
		{Repost, one, "late"},
		{CompleteEarly, one, "content"},
		{SequenceFirst, fine, "content"},
		{FreeOutstanding, again, "slot"},
		{FreeOnSuspicion, one, "lane"},
		{FreeStateFirst, again, "stuck"},
		{ForgetsDead, again, "stuck"},
		{RelayWakesFirst, strict, "stuck"},
		{RelayLooksOnce, sleeps, "stuck"},
		{BellBeforeCopy, one, "source"},
		{BellBeforeCommit, one, "source"},
		{SenderWakesFirst, sleeps, "stuck"},
		{SkipFence, one, "late"},
		{FenceCoversAll, two, "late"},
		{ReuseOnRevoke, one, "slot"},
		{EndOnRevoke, one, "source"},
		{DropOnError, one, "once"},
		{RingUncopied, one, "content"},
		{ExitBlind, leaves, "arena"},
		{LostInPublish, cut, "stuck"},
		{LostInReap, fineCut, "stuck"},
		{BlindClaim, cut, "source"},
		{DeadStreamUnseen, one, "stuck"},
	} {
		t.Run(tc.bug.String(), func(t *testing.T) {
			t.Parallel()
			c := tc.config
			c.Bug = tc.bug
			r := Run(c)
			if r.Violation == nil {
				t.Fatalf("not found in %d states of %s", r.States, c.Name)
			}
			v := r.Violation
			t.Logf("found after %d states and %d steps: %s: %s", r.States, len(v.Trace), v.Property, v.Detail)
			if *traces {
				t.Log(v)
			}
			if v.Property != tc.property {
				t.Errorf("found by %q, want %q", v.Property, tc.property)
			}
		})
	}
}

// TestReduction wants the model to find the same whether every access is a step or
// only those that somebody else can see: but for mistakes that let somebody see
// what should have been private.
func TestReduction(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine; slow with the race detector")
	}
	for b := None; b < bugs; b++ {
		if b == BindAfterClaim || b == SequenceFirst || b == LostInReap {
			continue
		}
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			for _, c := range []Config{
				{Senders: 1, Lanes: 1, Slots: 1, Pieces: 2, Epochs: 1, Faults: 1},
				{Senders: 1, Lanes: 1, Slots: 1, Pieces: 1, Epochs: 1, Faults: 1, Patience: 1, CPUBell: true},
				{Senders: 1, Lanes: 1, Slots: 1, Pieces: 1, Epochs: 1, Faults: 1, Patience: 1, Truncate: true, Stops: true},
				{Senders: 2, Lanes: 1, Slots: 1, Pieces: 1, Epochs: 2, Faults: 1},
			} {
				c.Bug = b
				coarse := Run(c)
				c.Fine = true
				fine := Run(c)
				if (coarse.Violation == nil) != (fine.Violation == nil) {
					t.Errorf("%+v: in few steps %v, in all %v", c, coarse.Violation, fine.Violation)
				}
			}
		})
	}
}

// TestFull explores the large configurations, two at a time.
func TestFull(t *testing.T) {
	if !*full {
		t.Skip("takes minutes and gigabytes: see make model")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(40))
	begin := time.Now()
	todo := make(chan Config, len(large)+len(small))
	for _, c := range slices.Concat(large, small) {
		todo <- c
	}
	close(todo)
	var (
		mu            sync.Mutex
		states, steps int
		broken, open  int
		workers       sync.WaitGroup
	)
	fmt.Printf("%-60s %10s %11s %5s %7s %8s\n", "a ring of up to 3 slots, 1 relay", "states", "steps", "depth", "ends", "seconds")
	for range min(2, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for c := range todo {
				began := time.Now()
				r := Run(c)
				mu.Lock()
				states, steps = states+r.States, steps+r.Steps
				end := "exhausted, no violation"
				switch {
				case r.Violation != nil:
					broken++
					end = "VIOLATION: " + r.Violation.Property
					t.Errorf("%s: %v", c.Name, r.Violation)
				case !r.Complete:
					open++
					end = "not exhausted"
					t.Errorf("%s: not exhausted", c.Name)
				}
				fmt.Printf("%-60s %10d %11d %5d %7d %8.1f  %s\n", c.Name, r.States, r.Steps, r.Depth, r.Finals, time.Since(began).Seconds(), end)
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	fmt.Printf("%d states, %d steps, %d violations, %d configurations not exhausted, %.0f s\n", states, steps, broken, open, time.Since(begin).Seconds())
}
