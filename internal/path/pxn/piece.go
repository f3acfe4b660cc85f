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
	Wait     bool // the direct way must wait for it too
	refs     int
	uses     uint64 // how often it was given back: its next use waits for another point
	free     func(*Fence)
}

// waited is the point that a stream was last told to wait for. The fence may be in use
// for another by now.
type waited struct {
	fence *Fence
	uses  uint64
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
	if f.refs--; f.refs > 0 {
		return
	}
	f.uses++
	if f.free != nil {
		f.free(f)
	}
}

// Item is one share of a task on its way through a relay.
type Item struct {
	Span   xfer.Span
	Owner  Owner
	Target *Target
	Fence  *Fence // nil if the source is ready
}

// share is an item of a load or a piece, which know the target. It is small, since a
// piece may have thousands.
type share struct {
	Span  xfer.Span
	Owner Owner
	Fence *Fence
}

func (s *share) item(t *Target) Item { return Item{s.Span, s.Owner, t, s.Fence} }

// Target is where a relay sends to. The session is the target's own name.
type Target struct {
	Session []byte
	// Fences says that the target offers the fence of pxn.md 8.3.
	Fences bool
	// Handshakes says that handshakes may do instead, once a piece was claimed.
	Handshakes bool
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
	items  []share
	bytes  uint64
	copies []gpu.Copy    // sources joined where they touch
	plans  []shmabi.Plan // destinations joined where they touch
	fences []*Fence      // those that the copies wait for

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
	match func(Owner) bool
	cause error
}

func (p *piece) reset() {
	clear(p.fences)
	p.fences = p.fences[:0]
	p.items, p.copies, p.plans = nil, p.copies[:0], p.plans[:0]
	clear(p.held)
	clear(p.stops)
	p.held, p.stops = p.held[:0], p.stops[:0]
	p.state, p.seq, p.target, p.bytes = packed, 0, nil, 0
	p.since, p.rung, p.reason, p.recorded = 0, false, xfer.NoReason, false
}

// plan lays the items out in a slot at an address: their sources to be copied and
// their destinations, joined where they touch, and what the copies wait for.
func (p *piece) plan(slot uint64) {
	k := len(p.items)
	copies, plans := slices.Grow(p.copies[:0], k)[:k], slices.Grow(p.plans[:0], k)[:k]
	nc, np := 0, 0
	// Ends of the last, at first such that nothing joins.
	src, dest := ^p.items[0].Span.Source, ^p.items[0].Span.Dest
	for i := range p.items {
		it := &p.items[i]
		from, to, n := it.Span.Source, it.Span.Dest, it.Span.Length
		if from == src {
			copies[nc-1].Length += n
		} else {
			c := &copies[nc]
			c.Dst, c.Src, c.Length = slot, from, n
			nc++
		}
		if to == dest {
			plans[np-1].Length += n
		} else {
			s := &plans[np]
			s.Dest, s.Length = to, n
			np++
		}
		if f := it.Fence; f != nil && f.Recorded && (len(p.fences) == 0 || p.fences[len(p.fences)-1] != f) {
			p.fences = append(p.fences, f)
		}
		src, dest, slot = from+n, to+n, slot+n
	}
	p.copies, p.plans = copies[:nc], plans[:np]
}

// completed ends all shares: their bytes are in place.
func (p *piece) completed() {
	for i := range p.items {
		it := &p.items[i]
		it.Fence.Drop()
		it.Owner.Closed(it.Span.Length, nil)
		it.Owner, it.Fence = nil, nil // here, while it is in the cache
	}
	p.items = p.items[:0]
}

// stopped returns why an owner's shares must not go another way, or nil.
func (p *piece) stopped(o Owner) error {
	for i := range p.stops {
		if p.stops[i].match(o) {
			return p.stops[i].cause
		}
	}
	return nil
}

func (p *piece) has(match func(Owner) bool) bool {
	return slices.ContainsFunc(p.items, func(s share) bool { return match(s.Owner) })
}
