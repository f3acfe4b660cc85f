package pxn

import (
	"slices"

	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// queue is items that wait, in loads that can become pieces as they are: of one
// target and rail, and of no more bytes than a slot has. It grows and does not
// shrink.
type queue struct {
	pool  *pool
	slot  uint64
	loads []*load // those before first are gone
	first int
	last  *load // that took an item last
	spare []*load
	n     int // items
	bytes uint64
}

// pool keeps the arrays of items that loads and pieces hand on to each other, none
// longer than a piece may be. The last one that came back is taken first: it is still
// in the cache.
type pool struct{ free [][]share }

func (p *pool) get() []share {
	if k := len(p.free); k > 0 {
		items := p.free[k-1]
		p.free = p.free[:k-1]
		return items[:0:min(cap(items), shmabi.MaxSpans)]
	}
	return nil
}

func (p *pool) put(items []share) {
	if cap(items) > 0 {
		clear(items)
		p.free = append(p.free, items[:0])
	}
}

type load struct {
	queue  *queue
	target *Target
	rail   uint32
	items  []share
	from   int // items before it are gone
	bytes  uint64
}

// takes reports whether a span, which must be a valid one, fits as it is.
func (l *load) takes(s *xfer.Span) bool {
	n := s.Length
	return len(l.items) < cap(l.items) && n-1 < l.queue.slot-l.bytes && s.Source <= ^n && s.Dest-1 < ^n
}

// add appends the first n bytes of an item. There is room.
func (l *load) add(it *Item, n uint64) {
	k := len(l.items)
	l.items = l.items[:k+1]
	s, q := &l.items[k], l.queue
	s.Span.Source, s.Span.Dest, s.Span.Length = it.Span.Source, it.Span.Dest, n // copying what was just put together stalls
	s.Owner, s.Fence = it.Owner, it.Fence
	l.bytes += n
	q.bytes += n
	q.n++
}

// push takes an item for a rail of the peer's list, and may change it. An item that
// goes over the end of a slot is cut there, with a share for either part. It returns
// the load that the last part went to.
func (q *queue) push(it *Item, rail uint32) *load {
	for {
		l := q.last
		if l == nil || !q.fits(l, it.Target, rail) {
			l = q.room(it.Target, rail)
			q.last = l
		}
		if len(l.items) == cap(l.items) {
			l.grow()
		}
		n := min(it.Span.Length, q.slot-l.bytes)
		l.add(it, n)
		if n == it.Span.Length {
			return l
		}
		it.Owner.Opened(1)
		it.Fence.Hold()
		it.Span.Source, it.Span.Dest, it.Span.Length = it.Span.Source+n, it.Span.Dest+n, it.Span.Length-n
	}
}

// grow makes room for more items, for no more than a piece has.
func (l *load) grow() {
	k := len(l.items)
	more := make([]share, k, min(max(2*k, 16), shmabi.MaxSpans))
	copy(more, l.items)
	l.items = more
}

// open is how many loads may be filled at once: tasks to so many targets may take
// turns without making small pieces.
const open = 8

// room returns one of the last loads if an item fits it, or a new one.
func (q *queue) room(t *Target, rail uint32) *load {
	for k := len(q.loads) - 1; k >= max(q.first, len(q.loads)-open); k-- {
		if l := q.loads[k]; q.fits(l, t, rail) {
			return l
		}
	}
	var l *load
	if k := len(q.spare); k > 0 {
		l = q.spare[k-1]
		q.spare = q.spare[:k-1]
	} else {
		l = &load{}
	}
	l.queue, l.target, l.rail, l.items = q, t, rail, q.pool.get()
	q.loads = append(q.loads, l)
	return l
}

func (q *queue) fits(l *load, t *Target, rail uint32) bool {
	return l.target == t && l.rail == rail && len(l.items) < shmabi.MaxSpans && l.bytes < q.slot
}

// recycle keeps a load that is not in the queue any more.
func (q *queue) recycle(l *load) {
	if q.last == l {
		q.last = nil
	}
	q.pool.put(l.items)
	l.items, l.from, l.bytes, l.target = nil, 0, 0, nil
	q.spare = append(q.spare, l)
}

// drop takes the first load out.
func (q *queue) drop() {
	l := q.loads[q.first]
	q.loads[q.first] = nil
	if q.first++; q.first == len(q.loads) {
		q.loads, q.first = q.loads[:0], 0
	} else if q.first >= 64 && 2*q.first >= len(q.loads) {
		n := copy(q.loads, q.loads[q.first:])
		clear(q.loads[n:])
		q.loads, q.first = q.loads[:n], 0
	}
	q.recycle(l)
}

// fill moves items to an empty piece, of size bytes at most: the first load as it
// is, if it is no longer than that.
func (q *queue) fill(p *piece, size uint64) {
	l := q.loads[q.first]
	p.target, p.rail = l.target, l.rail
	if l.from == 0 && l.bytes <= size {
		p.items, l.items = l.items, nil
		p.bytes = l.bytes
		q.n -= len(p.items)
		q.bytes -= l.bytes
		q.drop()
		return
	}
	p.items = q.pool.get()
	for l.from < len(l.items) && p.bytes < size {
		it := &l.items[l.from]
		n := min(it.Span.Length, size-p.bytes)
		part := *it
		part.Span.Length = n
		p.items = append(p.items, part)
		p.bytes += n
		l.bytes -= n
		q.bytes -= n
		if n < it.Span.Length {
			it.Owner.Opened(1)
			it.Fence.Hold()
			it.Span.Source, it.Span.Dest, it.Span.Length = it.Span.Source+n, it.Span.Dest+n, it.Span.Length-n
			return
		}
		q.n--
		l.from++
	}
	if l.from == len(l.items) {
		q.drop()
	}
}

// pop takes the first item out.
func (q *queue) pop() Item {
	l := q.loads[q.first]
	it := l.items[l.from].item(l.target)
	l.from++
	l.bytes -= it.Span.Length
	q.bytes -= it.Span.Length
	q.n--
	if l.from == len(l.items) {
		q.drop()
	}
	return it
}

// remove takes out the items of owners that match, and calls f for each.
func (q *queue) remove(match func(Owner) bool, f func(Item)) {
	for i := q.first; i < len(q.loads); i++ {
		l := q.loads[i]
		keep := l.items[:0]
		for _, it := range l.items[l.from:] {
			if !match(it.Owner) {
				keep = append(keep, it)
				continue
			}
			l.bytes -= it.Span.Length
			q.bytes -= it.Span.Length
			q.n--
			f(it.item(l.target))
		}
		clear(l.items[len(keep):])
		l.items, l.from = keep, 0
		if len(keep) == 0 {
			q.loads = slices.Delete(q.loads, i, i+1)
			q.recycle(l)
			i--
		}
	}
}
