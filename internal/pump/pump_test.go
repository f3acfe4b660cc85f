package pump

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type idle struct{ limit time.Duration }

func (idle) Step(time.Duration) bool           { return false }
func (i idle) Arm(time.Duration) time.Duration { return i.limit }

// late has work that appears between the announcement and the last look.
type late struct{ armed, done bool }

func (s *late) Step(time.Duration) bool {
	if s.armed && !s.done {
		s.done = true
		return true
	}
	return false
}
func (s *late) Arm(time.Duration) time.Duration { s.armed = true; return 0 }

func TestTurnParks(t *testing.T) {
	for _, tc := range []struct {
		name   string
		step   Stepper
		idle   time.Duration // since the last busy turn
		parked int
		limit  time.Duration
	}{
		{"still hot", idle{}, 49 * time.Microsecond, 0, 0},
		{"just cold", idle{}, 50 * time.Microsecond, 1, 0},
		{"bounded", idle{time.Millisecond}, time.Second, 1, time.Millisecond},
		{"work after the announcement", &late{}, time.Second, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var now, limit time.Duration
			parked := 0
			l := New(Options{
				SpinFor: 50 * time.Microsecond,
				Now:     func() time.Duration { return now },
				Park: func(w *atomic.Uint32, d time.Duration) {
					parked, limit = parked+1, d
					if w.Load() != Asleep {
						t.Error("parked without announcing it")
					}
				},
			}, tc.step)
			now = tc.idle
			if limit, cold := l.Turn(); cold {
				l.opts.Park(l.word.Load(), limit)
				l.Resume()
			}
			if parked != tc.parked || limit != tc.limit {
				t.Errorf("parked %d times for %v, want %d for %v", parked, limit, tc.parked, tc.limit)
			}
			if l.own.Load() != Awake {
				t.Error("the loop runs and its word says that it sleeps")
			}
		})
	}
}

func TestRunReturnsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaseLost := errors.New("lease lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(leaseLost) })
		l := New(Options{SpinFor: -1, Park: func(*atomic.Uint32, time.Duration) { time.Sleep(time.Millisecond) }})
		if err := l.Run(ctx); !errors.Is(err, leaseLost) {
			t.Errorf("Run = %v, want %v", err, leaseLost)
		}
		if err := l.Do(func() {}); !errors.Is(err, ErrStopped) {
			t.Errorf("Do after the end = %v, want %v", err, ErrStopped)
		}
	})
}

// TestNoLostWakeUp hands work to a loop that parks for ever, as fast as it goes.
func TestNoLostWakeUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var given, taken atomic.Uint64
	l := New(Options{SpinFor: -1}, stepFunc(func() bool {
		if g := given.Load(); g != taken.Load() {
			taken.Store(g)
			return true
		}
		return false
	}))
	ended := make(chan struct{})
	go func() { defer close(ended); l.Run(ctx) }()
	for i := range uint64(20_000) {
		given.Store(i + 1)
		l.Wake()
		for deadline := time.Now().Add(10 * time.Second); taken.Load() != i+1; {
			if time.Now().After(deadline) {
				t.Fatalf("wake-up %d was lost", i+1)
			}
		}
	}
	word := new(atomic.Uint32)
	if err := l.SetWord(word); err != nil {
		t.Fatal(err)
	}
	ran := false
	if err := l.Do(func() { ran = true }); err != nil || !ran {
		t.Fatalf("Do on the new word: ran %v, %v", ran, err)
	}
	cancel()
	<-ended
}

type stepFunc func() bool

func (f stepFunc) Step(time.Duration) bool       { return f() }
func (stepFunc) Arm(time.Duration) time.Duration { return 0 }

// TestRecall writes over the word of a loop that sleeps, without ringing.
func TestRecall(t *testing.T) {
	var word atomic.Uint32
	l := New(Options{SpinFor: time.Microsecond})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	if err := l.SetWord(&word); err != nil {
		t.Fatal(err)
	}
	for word.Load() != Asleep {
		runtime.Gosched()
	}
	word.Store(77)
	parks := l.Parks()
	for l.Parks() == parks {
		l.Recall()
		runtime.Gosched()
	}
	cancel()
	l.Recall()
	<-ended
}
