package pxn

import (
	"errors"
	"fmt"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/xfer"
)

const (
	cutAlign = 64 << 10
	cutLeast = 256 << 10
	cutParts = 8
)

// conn is a lane that we hold in a peer. It belongs to the pump.
type conn struct {
	path  *Path
	claim *Claim
	tx    *lane.Sender
	turn  func() error // a step, made once so that guarding it costs nothing
	now   time.Duration
	busy  bool

	stream  gpu.Stream // nil once it is being closed, because it has failed
	ringer  gpu.Ringer // the stream, if it rings and can do so as a part of copying
	waited  waited
	arena   uint64 // address here
	bell    uint64 // address of the doorbell for the stream
	unmap   func() error
	cpu     bool // the CPU rings
	batched bool // a batch of copies is one operation

	// Submit looks at these for every item: they lie together.
	quarantined bool
	closing     int // pieces in flight whose way must be closed
	avoid       map[*Target]*pause
	queue       queue

	head   *piece // packed, waits for a slot
	flight []*piece
	bytes  uint64   // in flight
	linger []*piece // reaped, and a copy may still read their sources

	lastCredit time.Duration // a slot came back
	lastDone   time.Duration // a piece was completed
	rungSeen   uint64        // highest doorbell the relay was told of
	given      uint64        // highest sequence whose copies the stream was given
	owed       []gpu.Copy    // of the pieces behind it, until the end of the step
	owes       int           // how many those are
	checkedAt  time.Duration // when the peer was looked at
	unlooked   bool          // it was not in the last step, so soon after

	blind     bool // the lane's memory is gone
	broken    bool // the stream has failed
	still     bool // and was closed: nothing of it runs any more
	stopping  bool // the peer takes nothing new, and will be gone
	suspected bool
	why       xfer.Reason // of suspicion or quarantine
	released  bool        // we leave
	leaving   bool        // the end is under way, off the pump
	ended     bool
	fences    map[*Target]*fencing
}

const pauseMin = 100 * time.Millisecond

// dial claims a lane and imports the arena, or finds the lane that is held. It
// runs off the pump.
func (p *Path) dial(rail string) (*conn, xfer.Reason, error) {
	p.dialing <- struct{}{}
	defer func() { <-p.dialing }()
	claim, why, err := p.opts.Find(p.ctx, rail, func(epoch uint64) bool { return p.dialed[epoch] != nil })
	if err != nil || claim == nil {
		return nil, why, err
	}
	if claim.Held {
		return p.dialed[claim.Peer.Epoch()], xfer.NoReason, nil
	}
	c := &conn{path: p, claim: claim, fences: make(map[*Target]*fencing), avoid: make(map[*Target]*pause)}
	c.turn = func() error { c.busy = c.step(c.now); return nil }
	c.batched = p.opts.Device.Info().BatchedCopy
	c.tx = lane.NewSender(claim.Mem, claim.Geometry, p.opts.Epoch)
	c.flight = make([]*piece, claim.Geometry.Slots)
	c.queue.pool, c.queue.slot = &p.items, claim.Geometry.SlotSize
	if err := c.open(); err != nil {
		c.end()
		return nil, xfer.ImportError, err
	}
	p.dialed[claim.Peer.Epoch()] = c
	return c, xfer.NoReason, nil
}

func (c *conn) open() error {
	o := &c.path.opts
	err := o.Guard(func() error { c.tx.Attach(); return nil })
	if err != nil {
		return fmt.Errorf("pxn: attach to the arena of %s: %w", c.claim.Peer.Name(), err)
	}
	if c.arena, err = o.Device.Import(c.claim.Handle, c.claim.Arena); err != nil {
		return fmt.Errorf("pxn: import the arena of %s: %w", c.claim.Peer.Name(), err)
	}
	if c.stream, err = o.Device.NewStream(); err != nil {
		return fmt.Errorf("pxn: stream of the lane: %w", err)
	}
	why := errors.New("MC_PXN_DOORBELL=cpu")
	if o.Ring != RingCPU {
		why = c.openBell()
	}
	if why == nil {
		c.ringer, _ = c.stream.(gpu.Ringer)
		return nil
	}
	if o.Ring == RingStream {
		return fmt.Errorf("pxn: MC_PXN_DOORBELL=stream: %w", why)
	}
	c.cpu = true
	o.Tally.Because(xfer.CPUDoorbell, 0, "peer", c.claim.Peer.Name(), "cause", why)
	return nil
}

// openBell makes the doorbell writable by the stream, and proves it with one
// write of the value that is there.
func (c *conn) openBell() error {
	o := &c.path.opts
	if !o.Device.Info().StreamMemOps {
		return fmt.Errorf("the device has no stream memory operations: %w", errors.ErrUnsupported)
	}
	if bus := o.BusOf(c.arena); !o.Device.PeerAtomics(bus) {
		return fmt.Errorf("no NVLink to the GPU %s: %w", bus, errors.ErrUnsupported)
	}
	offset, unmap, err := o.Device.MapHost(c.claim.DoorbellPage)
	if err != nil {
		return err
	}
	c.unmap, c.bell = unmap, c.claim.DoorbellAt+offset
	return c.stream.Write64(c.bell, 0)
}

// refuses says why a target cannot be relayed to over this lane.
func (c *conn) refuses(now time.Duration, t *Target) xfer.Reason {
	switch {
	case c.quarantined:
		return c.why
	case c.closing > 0 && c.unclosed(t):
		return xfer.WayNotClosed
	case len(c.avoid) > 0 && c.avoid[t] != nil && now < c.avoid[t].until:
		return xfer.RelayNICError
	case !t.Fences && !(c.path.opts.DeathCloses && c.claim.Peer.Watched()):
		return xfer.NoTargetFence
	}
	return xfer.NoReason
}

// guarded is a step that survives the loss of the lane's memory, as when its file
// is truncated: the lane is then blind, and what it had in flight counts as
// claimed.
func (c *conn) guarded(now time.Duration) bool {
	if c.leaving {
		return false
	}
	c.now = now
	if err := c.path.opts.Guard(c.turn); err != nil {
		c.gone(err)
		return true
	}
	return c.busy
}

// unclosed reports whether a claimed piece to a target still has to be closed.
func (c *conn) unclosed(t *Target) bool {
	for seq := c.tx.Reaped() + 1; seq < c.tx.Next(); seq++ {
		if p := c.flight[c.claim.Geometry.Slot(seq)]; p != nil && p.state == closing && p.target == t {
			return true
		}
	}
	return false
}

func (c *conn) step(now time.Duration) (busy bool) {
	busy = c.reap(now)
	for i := 0; i < len(c.linger); i++ {
		p := c.linger[i]
		p.rung = p.rung || c.rungSeen >= p.seq
		if c.settle(p); len(p.held) == 0 {
			c.path.freePiece(p)
			c.linger = append(c.linger[:i], c.linger[i+1:]...)
			i--
		}
	}
	if c.tx.InFlight() > 0 && c.ring(now) {
		busy = true
	}
	c.look(now)
	if c.watch(now) {
		busy = true
	}
	for !c.quarantined && c.pack(now) && c.tx.Room() && !c.gathers() {
		c.publish(now)
		busy = true
	}
	if err := c.startOwed(); err != nil {
		c.broke(now, xfer.PublishError, err)
	}
	if !c.quarantined && c.head != nil && c.starved(now) {
		busy = true
	}
	if c.quarantined && c.drain(now) {
		busy = true
	}
	return busy
}

// look judges the peer: often enough to act in time, seldom enough to cost
// nothing.
func (c *conn) look(now time.Duration) {
	c.unlooked = !c.blind && now-c.checkedAt < time.Millisecond
	if c.blind || c.unlooked {
		return
	}
	c.checkedAt = now
	if c.tx.InFlight() > 0 && !c.broken {
		if _, err := c.stream.Idle(); err != nil {
			c.broke(now, xfer.CopyError, err)
		}
	}
	suspected, why := c.claim.Peer.Suspected(now)
	if !suspected && c.tx.Torn() {
		suspected, why = true, xfer.RelaySuspected
	}
	c.suspected = suspected
	if suspected {
		c.quarantine(why, nil)
	} else if why := c.claim.Peer.Leaving(); why != xfer.NoReason {
		c.stopping = why == xfer.RelayStopping
		c.quarantine(why, nil)
	}
}
