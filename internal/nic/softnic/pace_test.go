package softnic

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// TestPaceHoldsRate plays a sender that sleeps as told, badly, and measures what
// it gets through.
func TestPaceHoldsRate(t *testing.T) {
	for _, rate := range []uint64{1e6, 100e6, 500e6, 2e9, 50e9} {
		for _, over := range []time.Duration{0, 60 * time.Microsecond, 3 * time.Millisecond, 15 * time.Millisecond} {
			for _, n := range []int{64, 64 << 10, paceChunkMax} {
				if float64(n) < float64(rate)/1e6 {
					continue // more steps than a test is worth
				}
				t.Run(fmt.Sprintf("%dMB/s, sleeps %v too long, %d bytes", rate/1e6, over, n), func(t *testing.T) {
					b := bucket{rate: rate}
					var now time.Duration
					sent := 0
					for now < 2*time.Second {
						if wait := b.take(n, now, false); wait > 0 {
							if wait < paceQuantum {
								t.Fatalf("told to sleep %v", wait)
							}
							now += wait + over
						}
						sent += n
					}
					got := float64(sent) / now.Seconds()
					// What is granted ahead at either end.
					slack := (2*float64(n) + paceCredit.Seconds()*float64(rate)) / 2
					if d := math.Abs(got - float64(rate)); d > 0.01*float64(rate)+slack {
						t.Errorf("%.0f bytes/s, want %d", got, rate)
					}
				})
			}
		}
	}
}

func TestPaceIdleEarnsLittle(t *testing.T) {
	b := bucket{rate: 1e9}
	b.take(1, 0, false)
	now := time.Hour
	burst := 0
	for b.take(64<<10, now, true) == 0 {
		burst += 64 << 10
	}
	if limit := int(1e9*(paceIdle+paceQuantum).Seconds()) + 64<<10; burst > limit {
		t.Errorf("%d bytes at once after an hour, want at most %d", burst, limit)
	}
}

func TestPaceUnlimited(t *testing.T) {
	var b bucket
	for range 100 {
		if wait := b.take(1<<30, 0, false); wait != 0 {
			t.Fatalf("told to wait %v", wait)
		}
	}
}

func TestPaceCross(t *testing.T) {
	p := newPacer(0, 1e6)
	if p.limited(false) || !p.limited(true) {
		t.Error("limited: want across rails only")
	}
	if wait := p.take(1e6, false, false); wait != 0 {
		t.Errorf("on the rail: told to wait %v", wait)
	}
	p.take(1e6, true, false)
	if wait := p.take(1, true, false); wait < 900*time.Millisecond {
		t.Errorf("across rails: told to wait %v, want about a second", wait)
	}
}

func TestPaceChunk(t *testing.T) {
	for _, tc := range []struct {
		rate, cross uint64
		across      bool
		want        int
	}{
		{1e6, 0, false, paceChunkMin},
		{100e6, 0, false, 200_000},
		{100e6, 50e6, false, 200_000},
		{100e6, 50e6, true, 100_000},
		{100e6, 500e6, true, 200_000},
		{0, 100e6, true, 200_000},
		{50e9, 0, false, paceChunkMax},
	} {
		if got := newPacer(tc.rate, tc.cross).chunk(tc.across); got != tc.want {
			t.Errorf("rate %d, across rails %d, %v: %d bytes, want %d", tc.rate, tc.cross, tc.across, got, tc.want)
		}
	}
}
