package faulttest

import (
	"cmp"
	"flag"
	"testing"
	"time"
)

var (
	rounds = flag.Int("rounds", 0, "rounds of TestKill (8) and TestRXEKill (20)")
	seed   = flag.Uint64("seed", 1, "of TestKill")
	rolls  = flag.Int("rolls", 2, "rolling restarts of TestRolling")
	leaks  = flag.Int("leaks", 12, "faults of TestLeaks")
	wire   = flag.Bool("wire", false, "keep bytes of TestKill on their way while a relay dies")
	memory = flag.Uint64("touch", 64, "MiB that each process of both touches")
	slot   = flag.Uint64("slot", 0, "KiB of the longest write of TestKill (128) and TestRXEKill (16)")
	deep   = flag.Int("depth", 0, "writes of a sender of both at once (3)")
)

// TestKill kills, stops and wakes processes at random instants of streams of
// writes, whose destinations are used again at once.
func TestKill(t *testing.T) { killing(t, 8, *slot, *wire) }

func killing(t *testing.T, n int, slot uint64, wire bool) {
	t.Helper()
	n = cmp.Or(*rounds, n)
	o := FabricOptions{Senders: 2, Relays: 2, Touch: *memory << 20, Slot: slot << 10, Depth: *deep, Wire: wire}
	if o.Wire {
		o.Relays = 1 // the wire would keep the living one's bytes, too
	}
	f := NewFabric(t, o)
	r := Kill(f, n, *seed)
	t.Logf("%d rounds, seed %d, %d MiB touched\n%s", n, *seed, *memory, r)
	if r.Wrong+r.Late+r.Lost+r.Double > 0 {
		t.Errorf("wrong, late, lost, double: %+v, want none", r.Tally)
	}
}

// TestKillSees leaves the fence out. The rounds must see what lands late.
func TestKillSees(t *testing.T) { seeing(t, 0) }

func seeing(t *testing.T, slot uint64) {
	t.Helper()
	f := NewFabric(t, FabricOptions{Bug: NoFence, Wire: true, Slot: slot << 10})
	r := new(Report)
	for i := range 40 {
		f.AwaitRelaying()
		f.Park()
		f.relayDies(r, f.Relays[0])
		f.Relays[0].Reap()
		time.Sleep(watchedLate)
		if s := f.Seen(); s.Wrong+s.Late > 0 {
			t.Logf("without the fence, after %d deaths: %+v", i+1, s)
			return
		}
		f.StartRelay(0)
	}
	t.Error("nothing wrong or late is seen in 40 deaths without a fence: the rounds could not tell")
}
