package rdma

import (
	"errors"
	"fmt"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// ErrClosed is returned, and closes what is left, once the path is closed.
var ErrClosed = errors.New("rdma: path closed")

// LinkError says that bytes could not be moved over a pair of NICs.
type LinkError struct {
	Local, LocalRail string // such as "mlx5_0", "rail0"
	Peer, PeerRail   string // NIC path and rail
	Tries            int
	Cause            error // of the first failure, or the target's first refusal
}

func (e *LinkError) Error() string {
	return fmt.Sprintf("rdma: %s (rail %s) to %s (rail %s): given up after %d tries: %v",
		e.Local, e.LocalRail, e.Peer, e.PeerRail, e.Tries, e.Cause)
}

// Unwrap returns the cause, and the number that it has at the C border unless the
// cause has one of its own.
func (e *LinkError) Unwrap() []error { return []error{e.Cause, xfer.ErrEndpoint} }

// Refused reports whether the link works, and the target has said no.
func (e *LinkError) Refused() bool { return refused(e.Cause) }

func (p *Path) linkError(l *link, tries int, cause error) error {
	_, device := wire.SplitNICPath(l.path)
	return &LinkError{
		Local: l.nic.nic.Name, LocalRail: p.railOf(l.nic),
		Peer: l.path, PeerRail: p.opts.RailOf(device),
		Tries: tries, Cause: cause,
	}
}

func (p *Path) railOf(n *local) string {
	if n.nic.Rail != "" {
		return n.nic.Rail
	}
	return p.opts.RailOf(n.nic.Name)
}

// poll reads completions of one NIC.
func (p *Path) poll(n *local, now time.Duration) (busy bool) {
	if n.lost {
		return false
	}
	for range pollTurns {
		k, err := n.set.CQ().Poll(p.done[:])
		for _, c := range p.done[:max(k, 0)] {
			p.completed(n, c, now)
		}
		if err != nil {
			p.lose(n, err)
			return true
		}
		busy = busy || k > 0
		if k < len(p.done) {
			break
		}
	}
	return busy
}

// completed takes one completion. It stands for what is before it in its run too.
func (p *Path) completed(n *local, c nic.Completion, now time.Duration) {
	i := int32(uint32(c.ID))
	if i < 0 || int(i) >= len(p.slices) {
		return
	}
	s := &p.slices[i]
	// Not of a slice that has ended, nor of what an endpoint took with it.
	if s.gen != uint32(c.ID>>32) || s.ep == nil {
		return
	}
	ep, l := s.ep, s.link
	before := p.leaveRun(i, c.QPN)
	if c.Status == nic.StatusSuccess {
		n.fails = 0
		l.dials, l.losses, l.cause = 0, 0, nil
		for before.n > 0 {
			p.arrived(p.pop(&before), l)
		}
		p.arrived(i, l)
		return
	}
	p.failed(i, n, ep, c, now)
	// They have ended before the failure, and so well; but nothing has said it.
	for before.n > 0 {
		p.flushed(p.pop(&before), ep, now)
	}
}

// leaveRun takes a slice that was reported by queue pair qpn, and those before it, out of
// their run. It returns the latter, oldest first.
func (p *Path) leaveRun(i int32, qpn uint32) (before list) {
	s := &p.slices[i]
	if s.next != none {
		p.slices[s.next].prev = none
	}
	first, n := i, 0
	for j := s.prev; j != none; j = p.slices[j].prev {
		first = j
		n++
	}
	s.ep.Completed(qpn, n+1)
	for j := first; j != none && j != s.next; j = p.slices[j].next {
		p.slices[j].ep = nil
	}
	return list{head: first, tail: s.prev, n: n}
}

// arrived closes a slice whose bytes are in place.
func (p *Path) arrived(i int32, l *link) {
	s := &p.slices[i]
	t := s.req.target
	t.lost = false
	if t.missed == l {
		t.missed = nil
	}
	l.bytes.Add(s.length)
	l.ops.Add(1)
	p.end(i, s.length, nil)
}

// failed takes the report of a slice that failed.
func (p *Path) failed(i int32, n *local, ep *endpoint.Endpoint, c nic.Completion, now time.Duration) {
	if c.Status == nic.StatusFlushed {
		p.flushed(i, ep, now)
		return
	}
	s := &p.slices[i]
	l := s.link
	cause := &nic.CompletionError{Device: n.nic.Name, Peer: l.path, Op: opOf(s), Status: c.Status, Vendor: c.Vendor}
	l.errs.Add(1)
	switch {
	case c.Status.Local():
		s.avoid = int16(n.pos)
		n.fails++
		p.fail(l, ep, cause, now)
		p.checkNIC(n, cause, now)
	default:
		// A target that refuses has answered: the link is good.
		if p.fail(l, ep, cause, now) && !refusal(c.Status) {
			l.losses++
			if p.hasOther(i, l, now) || l.losses >= p.opts.RetryCount {
				p.pause(l, s.req.target, now)
			}
		}
	}
	if refusal(c.Status) && p.refusedForGood(i) {
		r := s.req
		r.blame(cause)
		p.counts.retries.Add(1)
		p.giveUp(i, p.linkError(l, int(s.tries)+1, r.first))
		return
	}
	p.again(i, cause, now)
}

// refusedForGood reports whether the target refuses a request although its
// descriptor was fetched anew after it did so first.
func (p *Path) refusedForGood(i int32) bool {
	s := &p.slices[i]
	r := s.req
	if r.refused {
		return s.desc > r.desc
	}
	r.refused, r.desc = true, r.target.count
	return false
}

func opOf(s *slice) nic.Op {
	if s.req.op == xfer.Read {
		return nic.OpRead
	}
	return nic.OpWrite
}

// refusal reports whether the target answered, and said no.
func refusal(s nic.Status) bool {
	return s == nic.StatusRemoteInvalid || s == nic.StatusRemoteAccess || s == nic.StatusRemoteOperation
}

func refused(err error) bool {
	c, ok := errors.AsType[*nic.CompletionError](err)
	return ok && refusal(c.Status)
}

// blame keeps the cause that a caller is told: the first, but a refusal before
// others. A target that refuses on one queue pair may close the endpoint's other one
// in silence, and which is seen first is chance.
func (r *request) blame(cause error) {
	if r.first == nil || refused(cause) && !refused(r.first) {
		r.first = cause
	}
}

// flushed handles a slice that ended with its endpoint, through no fault of its own.
func (p *Path) flushed(i int32, ep *endpoint.Endpoint, now time.Duration) {
	p.counts.flushed.Add(1)
	s := &p.slices[i]
	if ep.State() != endpoint.Dead {
		p.fail(s.link, ep, fmt.Errorf("rdma: %s to %s: work flushed", s.link.nic.nic.Name, s.link.path), now)
	}
	cause := ep.Err()
	switch {
	case s.req.cause != nil:
		p.end(i, 0, s.req.cause)
	case endpoint.Benign(cause):
		p.route(i, now)
	default:
		p.again(i, cause, now)
	}
}

// reaped closes what an endpoint took with it without a report.
func (p *Path) reaped(ep *endpoint.Endpoint, now time.Duration) {
	if l := p.links[linkKey{p.nicOf(ep), ep.Path()}]; l != nil && l.ep == ep {
		p.died(l, now)
	}
	if ep.Open() == 0 {
		return
	}
	for i := range p.slices {
		if p.slices[i].ep == ep {
			p.slices[i].ep = nil
			p.slices[i].gen++ // what is still reported of it is late
			p.flushed(int32(i), ep, now)
		}
	}
}

func (p *Path) nicOf(ep *endpoint.Endpoint) *local {
	for _, n := range p.nics {
		if n.set == ep.Set() {
			return n
		}
	}
	return nil
}

// fail lets an endpoint die and reports whether it was alive.
func (p *Path) fail(l *link, ep *endpoint.Endpoint, cause error, now time.Duration) bool {
	if l.ep == ep {
		l.ep = nil
	}
	if ep.State() == endpoint.Dead {
		return false
	}
	ep.Fail(cause)
	l.failed, l.failedAt = true, now
	if l.cause == nil {
		l.cause = cause
	}
	return true
}

// withdraw lets an endpoint die that did no wrong.
func (p *Path) withdraw(l *link, ep *endpoint.Endpoint, cause error) {
	if l.ep == ep {
		l.ep = nil
	}
	if ep.State() != endpoint.Dead {
		ep.Fail(fmt.Errorf("%w: %w", endpoint.ErrWithdrawn, cause))
	}
}

// again counts a failure of a slice and tries it anew, with a descriptor that was
// fetched after the failure, or gives it up.
func (p *Path) again(i int32, cause error, now time.Duration) {
	s := &p.slices[i]
	r, l := s.req, s.link
	if r.cause != nil {
		p.end(i, 0, r.cause)
		return
	}
	r.blame(cause)
	s.tries++
	p.counts.retries.Add(1)
	if int(s.tries) >= p.opts.RetryCount {
		p.lost(i, p.linkError(l, int(s.tries), r.first), now)
		return
	}
	t := r.target
	if l.failed && (t.count == 0 || t.fetched <= l.failedAt) && p.refetch(t, now) {
		p.await(i)
		return
	}
	p.route(i, now)
}

// route queues a slice at a link: the request's local NIC first, and there the
// peer NIC that the descriptor names for this try. It gives the slice up if no
// link is usable.
func (p *Path) route(i int32, now time.Duration) {
	s := &p.slices[i]
	r := s.req
	if r.cause != nil {
		p.end(i, 0, r.cause)
		return
	}
	var worst *link
	var failure error
	for pass := range 2 {
		for k := range p.nics {
			n := p.nics[(r.nic.pos+k)%len(p.nics)]
			// A NIC that failed the slice comes last.
			if (pass == 1) != (s.avoid == int16(n.pos)) || !n.active {
				continue
			}
			if n.nic.Index >= len(s.lkeys) || s.lkeys[n.nic.Index] == 0 {
				continue
			}
			l, rkey, first, err := p.choose(n, s, now)
			if l != nil {
				s.lkey, s.rkey, s.desc = s.lkeys[n.nic.Index], rkey, r.target.count
				p.enqueue(l, i)
				return
			}
			if worst == nil {
				worst = first
			}
			if failure == nil {
				failure = err
			}
		}
	}
	switch {
	case failure != nil:
		if p.refetch(r.target, now) {
			p.await(i)
			return
		}
		p.giveUp(i, fmt.Errorf("rdma: target %s: %w", r.target.Name(), failure))
	case worst != nil:
		cause := r.first
		if cause == nil {
			cause = worst.cause
		}
		p.lost(i, p.linkError(worst, int(s.tries), cause), now)
	default:
		p.giveUp(i, p.noNIC(r.nic))
	}
}

// choose returns a usable link from n. If there is none it returns the first that
// was not usable, or the reason why none could be chosen.
func (p *Path) choose(n *local, s *slice, now time.Duration) (l *link, rkey uint32, first *link, err error) {
	t := s.req.target
	for k := range t.Devices() + 1 {
		c, err := t.Select(n.nic.Name, s.remote, s.length, int(s.tries)+k)
		if err != nil {
			return nil, 0, first, err
		}
		l := p.link(n, c.NICPath)
		if p.usable(l, now) {
			return l, c.RKey, nil, nil
		}
		if first == nil {
			first = l
		}
	}
	return nil, 0, first, nil
}

func (p *Path) noNIC(n *local) error {
	cause := n.cause
	if cause == nil {
		cause = errors.New("the memory is not registered with it")
	}
	return fmt.Errorf("rdma: no local NIC is usable; %s: %w: %w", n.nic.Name, cause, xfer.ErrContext)
}
