package rdma

import (
	"context"
	"fmt"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

// fetchTimeout bounds one fetch of a descriptor.
const fetchTimeout = 70 * time.Second

// maxTargets is how many targets are remembered without work for them.
const maxTargets = 1024

// target is what the path keeps about a [Target].
type target struct {
	Target
	open     int           // requests
	fetching bool          // a goroutine fetches the descriptor
	begun    time.Duration // when the fetch that is under way, or the last one, began
	fetched  time.Duration
	count    uint32 // fetches so far
	waiting  list

	lost   bool // the last slice was given up for want of a link that works
	lostAt time.Duration

	// After a pause the descriptor is fetched again, for the target publishes no NIC of
	// its own that is down, and tells nobody when it is back.
	missed *link         // the last that was paused; nil once it works again
	lookAt time.Duration // when the next fetch for it is due
	looks  int           // so far
}

// mostLooks bounds how often the time between two looks doubles.
const mostLooks = 3

// letter is a goroutine's result.
type letter struct {
	target *target // whose descriptor was fetched
	err    error
	nic    *local // which has an event
	event  nic.Event
}

func (p *Path) target(t Target) *target {
	if k := p.targets[t]; k != nil {
		return k
	}
	if len(p.targets) >= maxTargets {
		for k, v := range p.targets {
			if v.open == 0 && !v.fetching {
				delete(p.targets, k)
			}
		}
	}
	k := &target{Target: t}
	p.targets[t] = k
	return k
}

// Hopeless reports whether no way to a target is known: the last slice for it was
// given up for want of a link that works, and a link's pause has not passed since.
func (p *Path) Hopeless(of Target) bool {
	t := p.targets[of]
	return t != nil && t.lost && p.opts.Now()-t.lostAt < p.opts.RailPause
}

// lost gives a slice up because no link serves its target.
func (p *Path) lost(i int32, err error, now time.Duration) {
	t := p.slices[i].req.target
	t.lost, t.lostAt = true, now
	p.giveUp(i, err)
}

// refetch begins to fetch a descriptor anew, unless that was done just now. It
// reports whether it is under way.
func (p *Path) refetch(t *target, now time.Duration) bool {
	if t.fetching {
		return true
	}
	if p.closed || t.count > 0 && now-t.fetched < p.opts.FetchEvery {
		return false
	}
	p.fetch(t, now, 0)
	return true
}

// demand fetches a descriptor for an address that the known one lacks: the target may
// have registered the memory since. Unlike refetch it waits for its turn. It
// reports false if the path is closed.
func (p *Path) demand(t *target, now time.Duration) bool {
	if p.closed {
		return false
	}
	if !t.fetching {
		pause := time.Duration(0)
		if t.count > 0 {
			pause = max(t.fetched+p.opts.FetchEvery-now, 0)
		}
		p.fetch(t, now, pause)
	}
	return true
}

// pause leaves a link alone for a while: others serve the target.
func (p *Path) pause(l *link, t *target, now time.Duration) {
	l.pausedUntil = now + p.opts.RailPause
	t.missed, t.lookAt, t.looks = l, l.pausedUntil, 0
}

// look fetches a target's descriptor, with nothing waiting for it, if a link that was
// paused may be served again.
func (p *Path) look(t *target, now time.Duration) {
	if t.missed == nil || now < t.lookAt || !p.refetch(t, now) {
		return
	}
	t.looks = min(t.looks+1, mostLooks)
	t.lookAt = now + p.opts.RailPause<<t.looks
}

func (p *Path) fetch(t *target, now, pause time.Duration) {
	t.fetching, t.begun = true, now+pause
	p.counts.fetches.Add(1)
	p.wg.Go(func() {
		if pause > 0 {
			timer := time.NewTimer(pause)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-p.quit:
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
		defer cancel()
		go func() {
			select {
			case <-p.quit:
				cancel()
			case <-ctx.Done():
			}
		}()
		err := t.Refetch(ctx)
		p.post(letter{target: t, err: err})
	})
}

// await puts a slice aside until the descriptor has come.
func (p *Path) await(i int32) { p.push(&p.slices[i].req.target.waiting, i) }

// post leaves a letter for the pump.
func (p *Path) post(l letter) {
	p.mailMu.Lock()
	p.mail = append(p.mail, l)
	p.hasMail.Store(true)
	p.mailMu.Unlock()
	p.opts.Wake()
}

func (p *Path) readMail(now time.Duration) bool {
	if !p.hasMail.Load() {
		return false
	}
	p.mailMu.Lock()
	mail := p.mail
	p.mail = nil
	p.hasMail.Store(false)
	p.mailMu.Unlock()
	for _, l := range mail {
		if l.nic != nil {
			p.event(l.nic, l.event, now)
		} else {
			p.fetchedAnew(l.target, l.err, now)
		}
	}
	return true
}

// fetchedAnew routes what waited for a descriptor. If it could not be fetched, the
// old one has to do.
func (p *Path) fetchedAnew(t *target, err error, now time.Duration) {
	t.fetching, t.fetched = false, now
	t.count++
	if err != nil {
		p.counts.fetchFailures.Add(1)
		p.opts.Log.Debug("descriptor not fetched", "segment", t.Name(), "error", err)
	}
	all := t.waiting.take()
	for all.n > 0 {
		i := p.pop(&all)
		s := &p.slices[i]
		switch {
		case s.req.cause != nil:
			p.end(i, 0, s.req.cause)
		case s.uncut:
			p.cutLate(i, err, now)
		default:
			p.route(i, now)
		}
	}
}

// askAgain fetches once more for an address that the descriptor lacks, if the last
// fetch has failed, or was under way already when the request came.
func (p *Path) askAgain(s *slice, err, failure error, now time.Duration) bool {
	t := s.req.target
	switch {
	case !isTargetError(err):
		return false
	case failure != nil:
		s.tries++
		return int(s.tries) < p.opts.RetryCount && p.demand(t, now)
	}
	return (t.fetching || t.begun < s.req.since) && p.demand(t, now)
}

// cutLate cuts a request that had to wait for a descriptor. Its first slice takes
// the place of the one that stood for all.
func (p *Path) cutLate(i int32, failure error, now time.Duration) {
	s := &p.slices[i]
	r := s.req
	location, err := p.cut(r.target.Target, s.local, s.remote, s.length)
	if err != nil {
		if p.askAgain(s, err, failure, now) {
			p.await(i)
			return
		}
		if failure != nil {
			err = fmt.Errorf("%w; its descriptor was not fetched anew: %w", err, failure)
		}
		p.giveUp(i, err)
		return
	}
	if more := len(p.cuts) - 1; more > 0 {
		r.open += more
		r.owner.Opened(more)
	}
	r.nic = p.preferred(location)
	gen := p.slices[i].gen + 1
	p.slices[i] = slice{gen: gen, next: p.free}
	p.free = i
	p.queue(r, now)
}
