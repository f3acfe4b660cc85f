package pump

import (
	"context"
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
// early. In any case the loop is awake afterwards unless all that it has to do is
// done. It must not be called from a step.
func (l *Loop) Help(ctx context.Context, done func() bool) {
	lender := l.opts.Lender
	if lender == nil || !l.Asleep() || !l.drive.TryLock() {
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
