package faulttest

import (
	"flag"
	"testing"
	"time"
)

var (
	rounds = flag.Int("rounds", 8, "rounds of TestKill")
	seed   = flag.Uint64("seed", 1, "of TestKill")
	rolls  = flag.Int("rolls", 2, "rolling restarts of TestRolling")
	leaks  = flag.Int("leaks", 12, "faults of TestLeaks")
	wire   = flag.Bool("wire", false, "keep bytes of TestKill on their way while a relay dies")
	memory = flag.Uint64("touch", 64, "MiB that each process of TestKill touches")
)

// TestKill kills, stops and wakes processes at random instants of streams of
// writes, whose destinations are used again at once.
func TestKill(t *testing.T) {
	o := FabricOptions{Senders: 2, Relays: 2, Touch: *memory << 20, Wire: *wire}
	if o.Wire {
		o.Relays = 1 // the wire would keep the living one's bytes, too
	}
	f := NewFabric(t, o)
	r := Kill(f, *rounds, *seed)
	t.Logf("%d rounds, seed %d, %d MiB touched\n%s", *rounds, *seed, *memory, r)
	if r.Wrong+r.Late+r.Lost+r.Double > 0 {
		t.Errorf("wrong, late, lost, double: %+v, want none", r.Tally)
	}
}

// TestKillSees leaves the fence out. The rounds must see what lands late.
func TestKillSees(t *testing.T) {
	f := NewFabric(t, FabricOptions{Bug: NoFence, Wire: true})
	r := new(Report)
	for range 40 {
		f.AwaitRelaying()
		f.Park()
		f.relayDies(r, f.Relays[0])
		f.Relays[0].Reap()
		time.Sleep(watchedLate)
		if s := f.Seen(); s.Wrong+s.Late > 0 {
			return
		}
		f.StartRelay(0)
	}
	t.Error("nothing wrong or late is seen in 40 deaths without a fence: the rounds could not tell")
}
