package pxn

import (
	"slices"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// Owner hears what becomes of its shares, on the pump's goroutine.
type Owner interface {
	Opened(shares int)
	// Closed ends one share: bytes are in place, or err says why they are not, or
	// neither, if the share went on another way.
	Closed(bytes uint64, err error)
}

// Fence marks the point on a caller's stream from which its sources are ready.
// One fence is shared by all tasks of a submission; its references are the
// pump's.
type Fence struct {
	Event    gpu.Event
	Recorded bool
	refs     int
	free     func(*Fence)
}

// NewFence returns a fence over an event. free is called on the pump's
// goroutine once nobody waits for it any more.
func NewFence(e gpu.Event, free func(*Fence)) *Fence { return &Fence{Event: e, free: free} }

// Hold adds a reference.
func (f *Fence) Hold() {
	if f != nil {
		f.refs++
	}
}

// Drop takes a reference back.
func (f *Fence) Drop() {
	if f == nil {
		return
	}
	if f.refs--; f.refs == 0 && f.free != nil {
		f.free(f)
	}
}

// Item is one share of a task on its way through a relay.
type Item struct {
	Span   xfer.Span
	Owner  Owner
	Target *Target
	Fence  *Fence // nil if the source is ready
	Wait   bool   // the direct way must wait for the fence too
	rail   uint32 // index in the peer's list
}

// Target is where a relay sends to. The session is the target's own name.
type Target struct {
	Session []byte
	// Fences says that the target offers the fence of pxn.md 8.3.
	Fences bool
	// Ref is for whoever made the target.
	Ref any
}

type state uint8

const (
	packed  state = iota // not committed yet
	flying               // committed; may or may not be claimed
	closing              // claimed, and its way must be closed before it goes another
	moved                // sent another way or ended; its slot is still taken
)

// piece is what fills one slot.
type piece struct {
	state  state
	seq    uint64
	target *Target
	rail   uint32
	items  []Item
	bytes  uint64
	copies []gpu.Copy  // sources joined where they touch
	plans  []xfer.Span // destinations joined where they touch
	fences []*Fence    // those that the copies wait for
	// Ends of the last source and destination.
	srcEnd, destEnd uint64

	since  time.Duration // packed: when it became the head; flying: when its bytes were seen in the slot
	rung   bool          // its bytes were seen in the slot
	reason xfer.Reason   // why it was taken back

	// done fires when no copy reads its sources any more: recorded right after the
	// copies where the CPU rings, else only when the piece is taken back.
	done     gpu.Event
	recorded bool
	// held is the shares that end when done fires.
	held  []held
	stops []stop // owners that must not go another way
}

type held struct {
	owner Owner
	err   error
}

type stop struct {
	owner Owner
	cause error
}

func (p *piece) reset() {
	clear(p.items)
	clear(p.fences)
	p.fences = p.fences[:0]
	p.items, p.copies, p.plans = p.items[:0], p.copies[:0], p.plans[:0]
	clear(p.held)
	clear(p.stops)
	p.held, p.stops = p.held[:0], p.stops[:0]
	p.state, p.seq, p.target, p.bytes = packed, 0, nil, 0
	p.since, p.rung, p.reason, p.recorded = 0, false, xfer.NoReason, false
}

// add takes as much of it as fits a piece of size bytes, and returns how much.
func (p *piece) add(it *Item, size uint64) uint64 {
	k := len(p.items)
	if k == 0 {
		p.target, p.rail = it.Target, it.rail
	} else if k == shmabi.MaxSpans || p.target != it.Target || p.rail != it.rail {
		return 0
	}
	n := min(it.Span.Length, size-p.bytes)
	if n == 0 {
		return 0
	}
	if k == cap(p.items) {
		p.items = slices.Grow(p.items, max(k, 16))
	}
	p.items = p.items[:k+1]
	part := &p.items[k]
	*part = *it
	part.Span.Length = n
	if f := it.Fence; f != nil && f.Recorded && (len(p.fences) == 0 || p.fences[len(p.fences)-1] != f) {
		p.fences = append(p.fences, f)
	}
	if i := len(p.copies) - 1; i >= 0 && p.srcEnd == it.Span.Source {
		p.copies[i].Length += n
	} else {
		p.copies = append(p.copies, gpu.Copy{Dst: p.bytes, Src: it.Span.Source, Length: n})
	}
	if i := len(p.plans) - 1; i >= 0 && p.destEnd == it.Span.Dest {
		p.plans[i].Length += n
	} else {
		p.plans = append(p.plans, xfer.Span{Dest: it.Span.Dest, Length: n})
	}
	p.srcEnd, p.destEnd = it.Span.Source+n, it.Span.Dest+n
	p.bytes += n
	return n
}

// place turns the copies' destinations from offsets in the slot into addresses.
func (p *piece) place(slot uint64) {
	for i := range p.copies {
		p.copies[i].Dst += slot
	}
}

// completed ends all shares: their bytes are in place.
func (p *piece) completed() {
	for i := range p.items {
		it := &p.items[i]
		it.Fence.Drop()
		it.Owner.Closed(it.Span.Length, nil)
	}
}

// stopped returns why an owner's shares must not go another way, or nil.
func (p *piece) stopped(o Owner) error {
	for i := range p.stops {
		if p.stops[i].owner == o {
			return p.stops[i].cause
		}
	}
	return nil
}

func (p *piece) has(o Owner) bool {
	for i := range p.items {
		if p.items[i].Owner == o {
			return true
		}
	}
	return false
}

// queue is a ring of items that grows and does not shrink.
type queue struct {
	ring  []Item // length is a power of two
	head  int
	n     int
	bytes uint64
}

func (q *queue) push(it *Item) {
	if q.n == len(q.ring) {
		bigger := make([]Item, max(256, 2*len(q.ring)))
		for i := range q.n {
			bigger[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
		}
		q.ring, q.head = bigger, 0
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = *it
	q.n++
	q.bytes += it.Span.Length
}

func (q *queue) front() *Item { return &q.ring[q.head] }

// take removes n bytes of the front item, all of it if that is what it has.
func (q *queue) take(n uint64) (whole bool) {
	it := q.front()
	q.bytes -= n
	if n < it.Span.Length {
		it.Span.Source += n
		it.Span.Dest += n
		it.Span.Length -= n
		return false
	}
	*it = Item{}
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return true
}

// remove takes out the items of one owner, and calls f for each.
func (q *queue) remove(o Owner, f func(Item)) {
	n := q.n
	for range n {
		it := *q.front()
		q.take(it.Span.Length)
		if it.Owner == o {
			f(it)
		} else {
			q.push(&it)
		}
	}
}
