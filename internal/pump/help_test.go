package pump

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// card completes what is posted to it, on a goroutine of its own, and tells so only if
// it was armed, once.
type card struct {
	given, seen atomic.Uint64 // requests, and those whose end the loop has seen
	posted      uint64
	doorbell    chan uint64
	completed   atomic.Uint64
	armed       atomic.Bool
}

func (c *card) Step(time.Duration) (busy bool) {
	if g := c.given.Load(); g > c.posted {
		c.posted, busy = g, true
		c.doorbell <- g
	}
	if n := c.completed.Load(); n > c.seen.Load() {
		c.seen.Store(n)
		busy = true
	}
	return busy
}

func (c *card) Arm(time.Duration) time.Duration {
	c.armed.Store(true)
	return 0
}

func (c *card) Idle() bool { return c.given.Load() == c.seen.Load() }

// TestHelpWithoutLender waits for answers that come before and after a caller's
// patience ends, from a card that rings once each time it is armed.
func TestHelpWithoutLender(t *testing.T) {
	for _, tt := range []struct {
		name   string
		idler  bool
		pauses []time.Duration // until a completion
	}{
		{"at once", true, []time.Duration{0}},
		{"later than anybody spins", true, []time.Duration{2 * patienceMax}},
		{"now and then later", true, []time.Duration{0, 0, 0, 100 * time.Microsecond, patienceMax}},
		{"a loop that is not lent", false, []time.Duration{0, 100 * time.Microsecond}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &card{doorbell: make(chan uint64, 1)}
			var s Stepper = c
			if !tt.idler {
				s = struct{ Stepper }{c}
			}
			l := New(Options{SpinFor: time.Microsecond}, s)
			ctx, cancel := context.WithCancel(t.Context())
			ended, quiet := make(chan struct{}), make(chan struct{})
			go func() { defer close(ended); l.Run(ctx) }()
			go func() {
				defer close(quiet)
				for n := range c.doorbell {
					if d := tt.pauses[int(n)%len(tt.pauses)]; d > 0 {
						time.Sleep(d)
					}
					c.completed.Store(n)
					if c.armed.CompareAndSwap(true, false) {
						l.Nudge()
					}
				}
			}()
			for i := range uint64(300) {
				c.given.Store(i + 1)
				l.Help(ctx, func() bool { return c.seen.Load() == i+1 })
				for deadline := time.Now().Add(10 * time.Second); c.seen.Load() != i+1; runtime.Gosched() {
					if time.Now().After(deadline) {
						t.Fatalf("answer %d was not seen", i+1)
					}
				}
			}
			cancel()
			<-ended
			close(c.doorbell)
			<-quiet
		})
	}
}

// TestHelpLosesPatience has answers that nobody should wait for by spinning, and a few
// that came late by accident.
func TestHelpLosesPatience(t *testing.T) {
	var now time.Duration
	l := New(Options{SpinFor: time.Microsecond, Now: func() time.Duration { now += time.Microsecond; return now }}, &card{})
	for _, tt := range []struct {
		name  string
		late  int
		early int
		want  time.Duration
	}{
		{"begins", 0, 0, patienceMax},
		{"a few late", patienceLost - 1, 0, patienceMax},
		{"one more", 1, 0, patienceMax / 2},
		{"one in time", 0, 1, patienceMax},
		{"late all the time", retryAfter - 1, 0, patienceMin},
		{"tries again", 1, 0, patienceMax},
		{"in vain", 1, 0, patienceMin},
		{"late all the time again", retryAfter, 0, patienceMax},
		{"not in vain", 0, 1, patienceMax},
		{"a few late again", patienceLost - 1, 0, patienceMax},
	} {
		for range tt.late {
			l.Help(t.Context(), func() bool { return false })
		}
		for range tt.early {
			l.Help(t.Context(), func() bool { return true })
		}
		if l.patience != tt.want {
			t.Fatalf("%s: %v, want %v", tt.name, l.patience, tt.want)
		}
	}
}
