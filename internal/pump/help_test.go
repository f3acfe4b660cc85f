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

// TestHelpLosesPatience has answers that nobody should wait for by spinning.
func TestHelpLosesPatience(t *testing.T) {
	var now time.Duration
	l := New(Options{SpinFor: time.Microsecond, Now: func() time.Duration { now += time.Microsecond; return now }}, &card{})
	if l.patience != patienceMax {
		t.Errorf("begins with %v, want %v", l.patience, patienceMax)
	}
	for range retryAfter - 1 {
		l.Help(t.Context(), func() bool { return false })
	}
	if l.patience != patienceMin {
		t.Errorf("after %d late answers %v, want %v", retryAfter-1, l.patience, patienceMin)
	}
	l.Help(t.Context(), func() bool { return true })
	if l.patience != 2*patienceMin {
		t.Errorf("after an answer in time %v, want %v", l.patience, 2*patienceMin)
	}
	for range retryAfter {
		l.Help(t.Context(), func() bool { return false })
	}
	if l.patience != patienceMax {
		t.Errorf("after %d late answers %v, want %v", retryAfter, l.patience, patienceMax)
	}
}
