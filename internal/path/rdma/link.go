package rdma

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/xfer"
)

type linkKey struct {
	nic  *local
	path string
}

// link is the pair of a local NIC and a peer NIC path, with the slices that wait
// to be posted there.
type link struct {
	list
	nic    *local
	path   string
	ep     *endpoint.Endpoint // nil until needed
	listed bool               // in Path.active

	pausedUntil time.Duration // not used before; 0 for not paused
	failedAt    time.Duration // when an endpoint failed last
	failed      bool
	dials       int           // that failed in a row
	retryAt     time.Duration // when the next dial is due
	losses      int           // endpoints that got no answer, in a row
	cause       error         // of the first failure since the last success

	bytes, ops, errs atomic.Uint64
}

// maxLinks is how many links are remembered without need: peers that restart come
// back under other names.
const maxLinks = 4096

func (p *Path) link(n *local, path string) *link {
	k := linkKey{n, path}
	if l := p.links[k]; l != nil {
		return l
	}
	if len(p.links) >= maxLinks {
		p.dropLinks()
	}
	l := &link{nic: n, path: path}
	p.links[k] = l
	p.statsMu.Lock()
	p.all = append(p.all, l)
	p.statsMu.Unlock()
	return l
}

// dropLinks forgets the links that nothing waits at or is posted by.
func (p *Path) dropLinks() {
	p.statsMu.Lock()
	defer p.statsMu.Unlock()
	p.all = slices.DeleteFunc(p.all, func(l *link) bool {
		if l.listed || l.pausedUntil != 0 || l.ep != nil && l.ep.Open() > 0 {
			return false
		}
		delete(p.links, linkKey{l.nic, l.path})
		return true
	})
}

// usable reports whether work may be queued at l. If not, l.cause says why.
func (p *Path) usable(l *link, now time.Duration) bool {
	if !l.nic.active {
		return false
	}
	if l.pausedUntil != 0 {
		if now < l.pausedUntil {
			return false
		}
		l.pausedUntil, l.losses = 0, 0
	}
	return l.dials < p.opts.DialCount || now >= l.retryAt
}

func (p *Path) enqueue(l *link, i int32) {
	p.slices[i].link = l
	p.push(&l.list, i)
	if !l.listed {
		l.listed = true
		p.active = append(p.active, l)
	}
}

// serveAll posts what is queued, each step beginning with another link.
func (p *Path) serveAll(now time.Duration) (busy bool) {
	n := len(p.active)
	if n == 0 {
		return false
	}
	p.full = false
	p.turn++
	for k := range n {
		if l := p.active[(p.turn+k)%n]; l.n > 0 && p.serve(l, now) {
			busy = true
		}
	}
	p.active = slices.DeleteFunc(p.active, func(l *link) bool {
		if l.n > 0 {
			return false
		}
		l.listed = false
		return true
	})
	return busy
}

// serve posts what is queued at l, as far as there is room.
func (p *Path) serve(l *link, now time.Duration) (busy bool) {
	if !p.usable(l, now) {
		p.reroute(l, now)
		return true
	}
	if l.ep == nil {
		ep, err := l.nic.set.Get(l.path)
		if errors.Is(err, endpoint.ErrFull) {
			p.full = true
			return false
		}
		if err != nil {
			all := l.take()
			for all.n > 0 {
				p.giveUp(p.pop(&all), err)
			}
			return true
		}
		l.ep = ep
	}
	switch l.ep.State() {
	case endpoint.Connected:
		return p.postTo(l, now)
	case endpoint.Dead:
		p.died(l, now)
		return true
	}
	return false
}

// runBytes is how much is posted at most without a report: a small request may have to
// wait for what is behind it in its run.
const runBytes = 1 << 20

// postTo posts one batch.
func (p *Path) postTo(l *link, now time.Duration) bool {
	n := min(l.n, l.ep.Room(), len(p.wrs))
	if n <= 0 {
		return false
	}
	i, silent := l.head, uint64(0)
	for k := range n {
		s := &p.slices[i]
		if silent += s.length; silent >= runBytes {
			silent = 0
		}
		op := nic.OpWrite
		if s.req.op == xfer.Read {
			op = nic.OpRead
		}
		p.wrs[k] = nic.WR{
			ID:         uint64(s.gen)<<32 | uint64(uint32(i)),
			Op:         op,
			Signaled:   silent == 0,
			LKey:       s.lkey,
			RKey:       s.rkey,
			Length:     uint32(s.length),
			LocalAddr:  s.local,
			RemoteAddr: s.remote,
		}
		i = s.next
	}
	ep := l.ep
	m, err := ep.Post(p.wrs[:n])
	last := none
	for k := range m {
		i := p.pop(&l.list)
		s := &p.slices[i]
		s.ep, s.prev, s.next = ep, last, none
		if last != none {
			p.slices[last].next = i
		}
		if last = i; p.wrs[k].Signaled {
			last = none
		}
	}
	if last != none && err == nil {
		err = fmt.Errorf("rdma: %s to %s: a queue pair took %d of %d requests", l.nic.nic.Name, l.path, m, n)
	}
	p.counts.posted.Add(uint64(m))
	p.counts.posts.Add(1)
	if err != nil && !errors.Is(err, endpoint.ErrNotReady) {
		l.nic.fails++
		p.fail(l, ep, err, now)
		p.checkNIC(l.nic, err, now)
	}
	return m > 0 || err != nil
}

// reroute takes everything that is queued at l elsewhere.
func (p *Path) reroute(l *link, now time.Duration) {
	all := l.take()
	for all.n > 0 {
		p.route(p.pop(&all), now)
	}
}

// died handles an endpoint that is found dead with slices queued at its link.
func (p *Path) died(l *link, now time.Duration) {
	ep := l.ep
	cause := ep.Err()
	l.ep = nil
	if endpoint.Benign(cause) {
		return // the next step gets another
	}
	l.errs.Add(1)
	l.failed, l.failedAt = true, now
	if l.cause == nil {
		l.cause = cause
	}
	l.dials++
	l.retryAt = l.nic.set.Trouble(l.path).Until
	if l.n > 0 && p.hasOther(l.head, l, now) {
		p.pause(l, p.slices[l.head].req.target, now)
	}
	all := l.take()
	for all.n > 0 {
		p.again(p.pop(&all), cause, now)
	}
}

// hasOther reports whether slice i could go to its target by another link than l.
func (p *Path) hasOther(i int32, l *link, now time.Duration) bool {
	s := &p.slices[i]
	t := s.req.target
	for r := 1; r <= t.Devices(); r++ {
		c, err := t.Select(l.nic.nic.Name, s.remote, s.length, r)
		if err != nil {
			return false
		}
		if c.NICPath != l.path && p.usable(p.link(l.nic, c.NICPath), now) {
			return true
		}
	}
	return false
}
