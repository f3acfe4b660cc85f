package pump

import (
	"context"
	"runtime"
	"slices"
	"time"
)

// Lender is a park that goes with [Loop.Help].
type Lender interface {
	// Lend is called before and after somebody else turns the loop. While it is lent,
	// nothing but Unpark ends a Park.
	Lend(lent bool)
	// ParkLent is the borrower's Park. It may return at any time.
	ParkLent(d time.Duration)
}

// Idler is a [Stepper] that can tell that there is nothing for it to do or to wait
// for, but what rings.
type Idler interface{ Idle() bool }

// Help turns the loop on the caller's thread while it is parked, until done or ctx
// ends: whoever waits for an answer saves the way by the loop's thread and back. If
// the loop is not parked, or is rung meanwhile, it goes on by itself, and Help returns
// early. Without a [Lender] it only turns a loop all of whose steppers are Idlers, and
// only for a while. In any case the loop is awake afterwards unless all that it has to
// do is done. It must not be called from a step.
func (l *Loop) Help(ctx context.Context, done func() bool) {
	lender := l.opts.Lender
	if lender == nil {
		l.spin(done)
		return
	}
	if !l.Asleep() || !l.drive.TryLock() {
		l.Wake()
		return
	}
	lender.Lend(true)
	stop := func() bool { return true }
	for watched := false; l.Asleep(); {
		busy := l.step(l.opts.Now())
		if done() {
			break
		}
		if busy {
			continue
		}
		if !watched {
			watched, stop = true, context.AfterFunc(ctx, l.Wake)
		}
		if limit, ok := l.arm(); ok && !done() {
			lender.ParkLent(limit)
		}
	}
	stop()
	idle := l.idle()
	lender.Lend(false)
	l.drive.Unlock()
	if !idle {
		l.Wake()
	}
}

const (
	// How long a caller looks for an answer before it sleeps. Cards answer in microseconds;
	// an emulated one takes 1 ms, and to be woken there takes as long.
	patienceMin = 4 * time.Microsecond
	patienceMax = 4 * time.Millisecond
	// So many answers in a row that took longer halve it.
	patienceLost = 4
	// After so many, one caller tries again.
	retryAfter = 64
)

// spin is Help for a loop that parks in its futex. Answers within a caller's patience
// double the patience of the next one, and a few in a row that take longer halve it, so
// that nobody spins long for what takes long. One caller at a time spins.
func (l *Loop) spin(done func() bool) {
	if l.opts.SpinFor < 0 || !l.lends.Load() || !l.spinning.CompareAndSwap(false, true) {
		l.Wake()
		return
	}
	defer l.spinning.Store(false)
	for end := l.opts.Now() + l.patience; ; runtime.Gosched() {
		if l.lends.Load() && l.Asleep() && l.drive.TryLock() {
			l.borrow(end, done)
			l.drive.Unlock()
		}
		if done() {
			l.answered()
			return
		}
		if l.opts.Now() >= end {
			break
		}
	}
	l.Wake()
	l.waited()
}

func (l *Loop) answered() { l.patience, l.misses = min(2*l.patience, patienceMax), 0 }

func (l *Loop) waited() {
	l.misses++
	switch {
	case l.misses > retryAfter: // the one that tried again
		l.patience, l.misses = patienceMin, 0
	case l.misses == retryAfter:
		l.patience = patienceMax
	case l.misses%patienceLost == 0:
		l.patience = max(l.patience/2, patienceMin)
	}
}

// borrow turns the parked loop until done or the end comes, or somebody rings. The
// caller holds drive.
func (l *Loop) borrow(end time.Duration, done func() bool) {
	l.lent.Store(true)
	for l.Asleep() {
		now := l.opts.Now()
		if busy := l.step(now); done() || now >= end {
			break
		} else if !busy {
			runtime.Gosched()
		}
	}
	idle := l.idle()
	l.lent.Store(false)
	if !idle {
		l.Wake()
	}
}

// Nudge is Wake for an event after which there may be nothing left to do, such as that
// something was completed which a borrower of the loop has seen to.
func (l *Loop) Nudge() {
	if l.lent.Load() {
		return // whoever borrows the loop wakes it unless all is done
	}
	if l.Asleep() && l.drive.TryLock() {
		idle := l.idle()
		l.drive.Unlock()
		if idle {
			return
		}
	}
	l.Wake()
}

// arm is the last look before a park. It reports false if there was work.
func (l *Loop) arm() (limit time.Duration, ok bool) {
	now := l.opts.Now()
	for _, s := range l.steps {
		if d := s.Arm(now); d > 0 && (limit == 0 || d < limit) {
			limit = d
		}
	}
	return limit, !l.step(l.opts.Now())
}

func (l *Loop) idle() bool {
	if l.hasMail.Load() {
		return false
	}
	for _, s := range l.steps {
		if i, ok := s.(Idler); !ok || !i.Idle() {
			return false
		}
	}
	return true
}

// minded notes whether the loop is lent: all its steppers can tell when they are idle.
// Others may mind on which thread they are turned.
func (l *Loop) minded() {
	l.lends.Store(!slices.ContainsFunc(l.steps, func(s Stepper) bool { _, ok := s.(Idler); return !ok }))
}
