package rdma

import (
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/xfer"
)

const none int32 = -1

// slice is one contiguous run at either end: one work request at a time.
type slice struct {
	gen   uint32 // told apart from what used the place before
	next  int32  // in the list that it is in, or the run
	prev  int32  // in the run that it is posted in
	req   *request
	link  *link              // where it is queued or posted
	ep    *endpoint.Endpoint // where it is posted, else nil
	lkeys []uint32           // by NIC

	local  uint64
	remote uint64
	length uint64
	lkey   uint32
	rkey   uint32
	desc   uint32 // descriptors fetched when it was routed

	tries int16 // attempts that failed
	avoid int16 // position of the NIC that failed it, -1 for none
	uncut bool  // stands for a whole request until there is a descriptor
}

// request is a [Work] with slices that are not closed.
type request struct {
	op      xfer.Opcode
	target  *target
	owner   Owner
	nic     *local // preferred one
	open    int
	since   time.Duration // when it was submitted
	pos     int           // in Path.requests
	retry   int16         // failures that its slices count as having had
	first   error         // why an attempt failed, the first time
	refused bool          // by the target
	desc    uint32        // descriptors fetched by then
	cause   error         // why the rest of it is not tried any more
}

// list is a queue of slices, linked by their next.
type list struct {
	head, tail int32
	n          int
}

func (p *Path) push(l *list, i int32) {
	p.slices[i].next = none
	if l.n == 0 {
		l.head = i
	} else {
		p.slices[l.tail].next = i
	}
	l.tail = i
	l.n++
}

func (p *Path) pop(l *list) int32 {
	i := l.head
	l.head = p.slices[i].next
	l.n--
	return i
}

// take empties a list and returns what was in it.
func (l *list) take() list {
	all := *l
	*l = list{}
	return all
}

func (p *Path) newRequest(w *Work, t *target) *request {
	var r *request
	if n := len(p.spare); n > 0 {
		r = p.spare[n-1]
		p.spare = p.spare[:n-1]
	} else {
		r = new(request)
	}
	*r = request{op: w.Op, target: t, owner: w.Owner, pos: len(p.requests)}
	p.requests = append(p.requests, r)
	t.open++
	return r
}

func (p *Path) newSlice(r *request, c cut) int32 {
	i := p.free
	if i != none {
		p.free = p.slices[i].next
	} else {
		i = int32(len(p.slices))
		p.slices = append(p.slices, slice{})
	}
	p.slices[i] = slice{
		gen:    p.slices[i].gen,
		next:   none,
		req:    r,
		lkeys:  c.lkeys,
		local:  c.local,
		remote: c.remote,
		length: c.length,
		avoid:  -1,
	}
	return i
}

// end closes a slice, which is in no list and not posted.
func (p *Path) end(i int32, bytes uint64, err error) {
	s := &p.slices[i]
	r := s.req
	owner := r.owner
	*s = slice{gen: s.gen + 1, next: p.free}
	p.free = i
	if r.open--; r.open == 0 {
		last := p.requests[len(p.requests)-1]
		last.pos = r.pos
		p.requests[r.pos] = last
		p.requests = p.requests[:len(p.requests)-1]
		r.target.open--
		*r = request{}
		p.spare = append(p.spare, r)
	}
	owner.Closed(bytes, err)
}

// giveUp closes a slice with an error, and with it what its request has queued:
// a request with a slice missing has failed.
func (p *Path) giveUp(i int32, err error) {
	r := p.slices[i].req
	p.counts.failed.Add(1)
	if r.cause == nil {
		r.cause = err
		if r.open > 1 {
			p.purge()
		}
	}
	p.end(i, 0, r.causeOr(err))
}

func (r *request) causeOr(err error) error {
	if r.cause != nil {
		return r.cause
	}
	return err
}

// purge closes the queued slices of all requests that have a cause to.
func (p *Path) purge() {
	var out list
	keep := func(l *list) {
		all := l.take()
		for all.n > 0 {
			i := p.pop(&all)
			if p.slices[i].req.cause != nil {
				p.push(&out, i)
			} else {
				p.push(l, i)
			}
		}
	}
	for _, l := range p.active {
		keep(&l.list)
	}
	for _, t := range p.targets {
		keep(&t.waiting)
	}
	for out.n > 0 {
		i := p.pop(&out)
		p.end(i, 0, p.slices[i].req.cause)
	}
}

// Abort stops everything of the owners that match. Slices that are queued are
// closed with cause at once. For those that are posted the endpoints are failed, and
// they are closed when the NIC has flushed them; slices of other owners that are
// flushed with them are posted again. It looks at all requests and slices, so that a
// batch is stopped by one call.
func (p *Path) Abort(match func(Owner) bool, cause error) {
	found := false
	for _, r := range p.requests {
		if r.cause == nil && match(r.owner) {
			r.cause = cause
			found = true
		}
	}
	if !found {
		return
	}
	for i := range p.slices {
		s := &p.slices[i]
		if s.ep != nil && match(s.req.owner) {
			p.withdraw(s.link, s.ep, cause)
		}
	}
	p.purge()
}
