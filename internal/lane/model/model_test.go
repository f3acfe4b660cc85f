package model

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
)

var full = flag.Bool("full", false, "explore the large configurations, as make model does")

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

// large are the bounds that the lane is held to, and what they leave out. They are
// in the order in which they are begun.
var large = []Config{
	{Name: "2 senders, 4 pieces, 2 faults", Senders: 2, Lanes: 1, Slots: 3, Pieces: 4, Epochs: 2, Faults: 2},
	{Name: "2 senders, 4 pieces, 2 faults, the CPU rings", Senders: 2, Lanes: 1, Slots: 3, Pieces: 4, Epochs: 2, Faults: 2, CPUBell: true},
	{Name: "2 senders, 4 pieces, 1 fault, 1 abort", Senders: 2, Lanes: 1, Slots: 3, Pieces: 4, Epochs: 2, Faults: 1, Patience: 1},
	{Name: "2 senders, 3 pieces, 2 faults, 1 abort", Senders: 2, Lanes: 1, Slots: 3, Pieces: 3, Epochs: 2, Faults: 2, Patience: 1},
	{Name: "1 sender, 4 pieces, 2 faults, 1 abort", Senders: 1, Lanes: 1, Slots: 3, Pieces: 4, Epochs: 1, Faults: 2, Patience: 1},
	{Name: "2 senders, 2 pieces, 2 faults, 2 aborts", Senders: 2, Lanes: 1, Slots: 3, Pieces: 2, Epochs: 2, Faults: 2, Patience: 2},
	{Name: "2 senders, 2 pieces, 1 fault, leave at any time", Senders: 2, Lanes: 1, Slots: 3, Pieces: 2, Epochs: 3, Faults: 1, Leave: true},
	{Name: "2 senders, 2 pieces, 1 fault, the relay leaves", Senders: 2, Lanes: 1, Slots: 3, Pieces: 2, Epochs: 2, Faults: 1, Stops: true},
	{Name: "2 senders on 2 lanes, 2 pieces, 1 fault", Senders: 2, Lanes: 2, Slots: 2, Pieces: 2, Epochs: 2, Faults: 1, Max: 40e6},
	{Name: "2 senders on 2 lanes, 1 piece, 2 faults, 1 abort", Senders: 2, Lanes: 2, Slots: 1, Pieces: 1, Epochs: 3, Faults: 2, Patience: 1},
	{Name: "2 senders, 2 pieces, 2 faults, the NIC outlives", Senders: 2, Lanes: 1, Slots: 3, Pieces: 2, Epochs: 2, Faults: 2, Outlives: true},
	{Name: "2 senders, 2 pieces, 2 faults, files cut", Senders: 2, Lanes: 1, Slots: 3, Pieces: 2, Epochs: 2, Faults: 2, Truncate: true},
	{Name: "2 senders, 2 pieces, sleeping pumps", Senders: 2, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 2, Faults: 1, Park: true, Max: 40e6},
	{Name: "1 sender, 3 pieces, 1 fault, sleeping pumps", Senders: 1, Lanes: 1, Slots: 2, Pieces: 3, Epochs: 1, Faults: 1, Park: true},
	{Name: "1 sender, 3 pieces, 1 fault, fine", Senders: 1, Lanes: 1, Slots: 2, Pieces: 3, Epochs: 1, Faults: 1, Fine: true},
	{Name: "2 senders, 2 pieces, 1 fault, fine", Senders: 2, Lanes: 1, Slots: 2, Pieces: 2, Epochs: 2, Faults: 1, Fine: true, Max: 40e6},
	{Name: "2 senders, 1 piece, 2 faults, 1 abort, fine", Senders: 2, Lanes: 1, Slots: 1, Pieces: 1, Epochs: 2, Faults: 2, Patience: 1, Fine: true, Max: 40e6},
}

func TestSmall(t *testing.T) {
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

// TestBugs plants each mistake and wants it found. Where a bug is found by one
// property only, that one is named.
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
			t.Logf("found after %d states: %v", r.States, r.Violation)
			if r.Violation.Property != tc.property {
				t.Errorf("found by %q, want %q", r.Violation.Property, tc.property)
			}
		})
	}
}

// TestReduction wants the model to find the same whether every access is a step or
// only those that somebody else can see: but for mistakes that let somebody see
// what should have been private.
func TestReduction(t *testing.T) {
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
		t.Skip("takes minutes and gigabytes; make model runs it")
	}
	begin := time.Now()
	var mu sync.Mutex
	var states, steps int
	var wait sync.WaitGroup
	todo := make(chan Config, len(large)+len(small))
	for _, c := range append(large, small...) {
		todo <- c
	}
	close(todo)
	for range min(2, runtime.GOMAXPROCS(0)) {
		wait.Go(func() {
			for c := range todo {
				began := time.Now()
				r := Run(c)
				mu.Lock()
				states, steps = states+r.States, steps+r.Steps
				end := "exhausted"
				if !r.Complete {
					end = "NOT exhausted"
				}
				fmt.Printf("%-60s %11d states %12d steps  depth %3d  %8d ends  %s  %6.1fs\n", c.Name, r.States, r.Steps, r.Depth, r.Finals, end, time.Since(began).Seconds())
				if r.Violation != nil {
					t.Errorf("%s: %v", c.Name, r.Violation)
				} else if !r.Complete {
					t.Errorf("%s: not exhausted", c.Name)
				}
				mu.Unlock()
				runtime.GC()
			}
		})
	}
	wait.Wait()
	fmt.Printf("%d states and %d steps in %.0fs\n", states, steps, time.Since(begin).Seconds())
}
