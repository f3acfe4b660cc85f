// Package pump turns the one loop that owns every lane and queue of a process.
//
// A [Loop] steps its [Stepper]s in order on an OS thread of its own. Without
// work it spins for a moment, then announces on a wake word that it sleeps,
// looks once more, and parks in a futex until somebody rings, in this process
// or in another that shares the word.
//
//	step all ── busy ──> step all
//	   │ idle, spun out
//	announce (word = 1) ─> arm, step all once more ── busy ──> word = 0
//	   │ still idle
//	futex wait (word == 1) ─> word = 0
//
// Only Run's goroutine steps. Do and Wake may be called by any goroutine, and
// Ring by any process.
package pump

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The values of a wake word.
const (
	Awake  uint32 = 0
	Asleep uint32 = 1
)

// ErrStopped is returned by [Loop.Do] when the loop no longer runs.
var ErrStopped = errors.New("pump: stopped")

// Stepper does a bounded amount of work, without blocking.
type Stepper interface {
	// Step works and reports whether there was any work.
	Step(now time.Duration) (busy bool)
	// Arm is called before the loop sleeps, and is followed by one more Step. It
	// asks whatever can ring to ring, and returns for how long at most the loop
	// may sleep, for what cannot ring. Zero means without limit.
	Arm(now time.Duration) (limit time.Duration)
}

// Options configures a [Loop]. The zero value is ready for use.
type Options struct {
	// SpinFor is how long the loop stays hot after the last busy turn. Zero means
	// 50 µs, or 5 µs where only two processors run Go; negative means park at once.
	SpinFor time.Duration
	// Now returns the time since some fixed start. Nil means the monotonic clock.
	Now func() time.Duration
	// Park blocks while *word is [Asleep], for at most d if d is positive. Nil
	// means a futex.
	Park func(word *atomic.Uint32, d time.Duration)
	// Unpark ends a Park. It is for a Park that is no futex, which nobody but this
	// loop's own Wake can ring: [Ring] does not reach it. Nil means a futex.
	Unpark func()
	// Lender goes with a Park that is no futex; see [Loop.Help].
	Lender Lender
	// OnThread runs once on the loop's thread before the first turn.
	OnThread func()
}

func (o Options) withDefaults() Options {
	if o.SpinFor == 0 {
		o.SpinFor = 50 * time.Microsecond
		if runtime.GOMAXPROCS(0) <= 2 {
			o.SpinFor = 5 * time.Microsecond
		}
	}
	if o.Now == nil {
		start := time.Now()
		o.Now = func() time.Duration { return time.Since(start) }
	}
	if o.Park == nil {
		o.Park = futexWait
	}
	return o
}

// Loop steps its steppers until it is stopped.
type Loop struct {
	opts     Options
	lastBusy time.Duration
	steps    []Stepper

	word   atomic.Pointer[atomic.Uint32] // the wake word; the loop's own until SetWord
	own    atomic.Uint32
	drive  sync.Mutex    // held by whoever turns the loop
	tid    atomic.Int32  // of the thread that Run turns on
	parks  atomic.Uint64 // returns from park
	parked atomic.Bool   // it is about to park, parks, or has just returned

	lends    atomic.Bool // it may be turned by others, see spin
	lent     atomic.Bool // it is, by somebody who knows when it is idle
	spinning atomic.Bool
	patience time.Duration // of the next caller that spins, who owns it
	misses   int           // callers in a row whose patience was too short

	hasMail atomic.Bool
	mu      sync.Mutex
	mail    []call
	stopped bool
}

type call struct {
	f    func()
	done chan struct{}
}

// New returns a loop over steps; more may be added while it runs.
func New(opts Options, steps ...Stepper) *Loop {
	opts = opts.withDefaults()
	l := &Loop{opts: opts, steps: steps, lastBusy: opts.Now(), patience: patienceMax}
	l.word.Store(&l.own)
	l.minded()
	return l
}

// Now returns the loop's clock.
func (l *Loop) Now() time.Duration { return l.opts.Now() }

// Parks counts how often the loop has returned from its park.
func (l *Loop) Parks() uint64 { return l.parks.Load() }

// Run turns the loop, on an OS thread of its own, until ctx is done, and returns
// the context's cause. Calls by Do that were taken are run before it returns.
func (l *Loop) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l.tid.Store(int32(unix.Gettid()))
	defer l.tid.Store(0)
	defer context.AfterFunc(ctx, l.Wake)()
	if l.opts.OnThread != nil {
		l.opts.OnThread()
	}
	l.drive.Lock()
	for ctx.Err() == nil {
		if limit, cold := l.Turn(); cold {
			l.drive.Unlock()
			l.parked.Store(true)
			if ctx.Err() == nil { // else its end may have rung before the loop said that it sleeps
				l.opts.Park(l.word.Load(), limit)
			}
			l.parked.Store(false)
			l.drive.Lock()
			l.Resume()
		}
	}
	l.drive.Unlock()
	l.Stop()
	return context.Cause(ctx)
}

// Stop makes Do fail from now on, and runs the calls that were taken. Run does it
// at its end; whoever turns a loop by hand does it then.
func (l *Loop) Stop() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.readMail()
}

// Do runs f on the loop's thread between two turns and waits for it. It fails
// with [ErrStopped] if the loop has stopped. It must not be called from a step.
func (l *Loop) Do(f func()) error {
	c := call{f: f, done: make(chan struct{})}
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return ErrStopped
	}
	l.mail = append(l.mail, c)
	l.hasMail.Store(true)
	l.mu.Unlock()
	l.Wake()
	<-c.done
	return nil
}

// Add adds a stepper behind the others.
func (l *Loop) Add(s Stepper) error {
	return l.Do(func() {
		l.steps = append(l.steps, s)
		l.minded()
	})
}

// Remove takes a stepper out. Once it has returned, s is not stepped any more.
func (l *Loop) Remove(s Stepper) error {
	return l.Do(func() {
		l.steps = slices.DeleteFunc(l.steps, func(x Stepper) bool { return x == s })
		l.minded()
	})
}

// SetWord moves the loop to another wake word, such as one that other processes
// map. Whoever still rings the old one is not heard, so the old word must stay
// valid only until SetWord has returned.
func (l *Loop) SetWord(w *atomic.Uint32) error {
	return l.Do(func() {
		if w == nil {
			w = &l.own
		}
		w.Store(Awake)
		l.word.Store(w)
	})
}

// Wake rings the loop. It is one load if the loop is awake.
func (l *Loop) Wake() {
	l.onWord(func(word *atomic.Uint32) {
		if l.opts.Unpark == nil {
			Ring(word)
		} else if word.Load() == Asleep && word.CompareAndSwap(Asleep, Awake) {
			l.opts.Unpark()
		}
	})
}

// onWord runs f on the wake word. That may lie in a file that somebody has cut
// short: then the loop goes on with a word of its own, which no other process
// rings.
func (l *Loop) onWord(f func(*atomic.Uint32)) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if v := recover(); v != nil {
			if fault, ok := v.(interface{ Addr() uintptr }); !ok || fault.Addr() < 4096 {
				panic(v)
			}
			l.word.Store(&l.own)
			interrupt(l.tid.Load()) // nothing rings a word that is gone
		}
	}()
	f(l.word.Load())
}

// Ring wakes the loop that sleeps on word, if it does, in whichever process.
func Ring(word *atomic.Uint32) {
	if word.Load() == Asleep && word.CompareAndSwap(Asleep, Awake) {
		futexWake(word)
	}
}

// Recall ends a park that nothing may end: its word says that the loop is awake,
// since another process has written there without ringing. Call it now and then
// where the word is shared.
func (l *Loop) Recall() {
	if l.opts.Unpark != nil || !l.parked.Load() {
		return
	}
	l.onWord(func(word *atomic.Uint32) {
		if word.Load() != Asleep {
			futexWake(word)
		}
	})
}

func (l *Loop) readMail() bool {
	if !l.hasMail.Load() {
		return false
	}
	l.mu.Lock()
	calls := l.mail
	l.mail = nil
	l.hasMail.Store(false)
	l.mu.Unlock()
	for _, c := range calls {
		c.f()
		close(c.done)
	}
	return true
}

func (l *Loop) step(now time.Duration) bool {
	busy := l.readMail()
	for _, s := range l.steps {
		if s.Step(now) {
			busy = true
		}
	}
	return busy
}

// Turn steps every stepper once. If the loop has gone cold it has announced that
// it sleeps: the caller parks until [Loop.Asleep] is false, for at most limit if
// that is not zero, and then calls [Loop.Resume]. It is for Run, and for those who
// turn a loop by hand instead.
func (l *Loop) Turn() (_ time.Duration, cold bool) {
	now := l.opts.Now()
	if l.step(now) {
		l.lastBusy = now
		return 0, false
	}
	if now-l.lastBusy < l.opts.SpinFor {
		return 0, false // no Gosched: giving up a locked thread costs more than the spin
	}
	l.onWord(func(w *atomic.Uint32) { w.Store(Asleep) })
	limit, ok := l.arm()
	if !ok {
		l.onWord(func(w *atomic.Uint32) { w.Store(Awake) })
		l.lastBusy = l.opts.Now()
		return 0, false
	}
	return limit, true
}

// Asleep reports whether the loop has announced that it sleeps and nobody has rung.
func (l *Loop) Asleep() (asleep bool) {
	l.onWord(func(w *atomic.Uint32) { asleep = w.Load() == Asleep })
	return asleep
}

// Resume ends the sleep that Turn has announced.
func (l *Loop) Resume() {
	l.onWord(func(w *atomic.Uint32) { w.Store(Awake) })
	l.parks.Add(1)
}
