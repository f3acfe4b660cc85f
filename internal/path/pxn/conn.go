package pxn

import (
	"errors"
	"fmt"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/tally"
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

	stream  gpu.Stream
	arena   uint64 // address here
	bell    uint64 // address of the doorbell for the stream
	unmap   func() error
	cpu     bool // the CPU rings
	batched bool // a batch of copies is one operation

	queue   queue
	head    *piece // packed, waits for a slot
	flight  []*piece
	bytes   uint64   // in flight
	closing int      // pieces in flight whose way must be closed
	linger  []*piece // reaped, and a copy may still read their sources

	lastCredit time.Duration // a slot came back
	lastDone   time.Duration // a piece was completed
	rungSeen   uint64        // highest doorbell the relay was told of
	checkedAt  time.Duration

	blind       bool // the lane's memory is gone
	broken      bool // the stream has failed
	stopping    bool // the peer takes nothing new, and will be gone
	suspected   bool
	why         xfer.Reason // of suspicion or quarantine
	quarantined bool
	released    bool // we leave
	leaving     bool // the end is under way, off the pump
	ended       bool
	fences      map[*Target]*fencing
	avoid       map[*Target]*pause
}

// pause keeps a target off the lane after its relay failed to send there.
type pause struct {
	until time.Duration
	last  time.Duration // length
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
		return nil
	}
	if o.Ring == RingStream {
		return fmt.Errorf("pxn: MC_PXN_DOORBELL=stream: %w", why)
	}
	c.cpu = true
	o.Tally.Because(xfer.CPUDoorbell, 0, "peer", c.claim.Peer.Name(), "cause", why)
	return nil
}

// lesser counts a piece that goes by slower means.
func (c *conn) lesser(p *piece) {
	o := &c.path.opts
	if c.cpu {
		o.Tally.Because(xfer.CPUDoorbell, p.bytes)
	}
	if len(p.copies) > 1 && !c.batched {
		if o.Tally.Count(xfer.CopyByCopy) == 0 {
			o.Tally.Because(xfer.CopyByCopy, p.bytes, "gpu", o.Device.Info().BusID)
		} else {
			o.Tally.Because(xfer.CopyByCopy, p.bytes)
		}
	}
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
	for !c.quarantined && c.pack(now) && c.tx.Room() {
		c.publish(now)
		busy = true
	}
	if !c.quarantined && c.head != nil && c.starved(now) {
		busy = true
	}
	if c.quarantined && c.drain(now) {
		busy = true
	}
	return busy
}

// reap takes completions and gives slots back.
func (c *conn) reap(now time.Duration) (busy bool) {
	for {
		seq, status, ok := c.tx.Reap()
		if !ok {
			return busy
		}
		busy = true
		c.lastCredit, c.lastDone = now, now
		slot := c.claim.Geometry.Slot(seq)
		p := c.flight[slot]
		c.flight[slot] = nil
		c.bytes -= p.bytes
		if p.state == closing {
			c.closing--
			p.state = flying
		}
		p.rung = p.rung || !c.broken && c.tx.Rung() >= seq
		switch {
		case p.state == moved:
			c.settle(p)
		case status == xfer.OK:
			c.path.opts.Tally.Went(tally.Relayed, p.bytes) // first: whoever waits may look
			p.completed()
			if len(c.avoid) > 0 {
				delete(c.avoid, p.target)
			}
		default:
			why := reasonOf(status)
			if why == xfer.RelayNICError {
				c.shun(now, p.target)
			}
			c.move(p, why, "peer", c.claim.Peer.Name(), "status", status)
		}
		if len(p.held) > 0 {
			c.linger = append(c.linger, p) // that its copy has ended takes more than the relay's word
			continue
		}
		c.path.freePiece(p)
	}
}

// shun keeps a target off the lane for a while, longer each time.
func (c *conn) shun(now time.Duration, t *Target) {
	a := c.avoid[t]
	if a == nil {
		a = &pause{}
		c.avoid[t] = a
	}
	if now >= a.until {
		a.last = min(max(2*a.last, pauseMin), c.path.opts.RailPause)
		a.until = now + a.last
	}
}

// reasonOf says what a relay's error completion means.
func reasonOf(status xfer.Code) xfer.Reason {
	switch status {
	case xfer.ErrInvalidArgument:
		return xfer.BadDescriptor
	case xfer.ErrTooManyRequests:
		return xfer.RelayPoolEmpty
	case xfer.ErrMetadata, xfer.ErrAddressNotFound, xfer.ErrDeviceNotFound:
		return xfer.NoRoute
	case xfer.ErrRevoked:
		return xfer.RelayStopping
	}
	return xfer.RelayNICError
}

// ring tells the relay of bytes that have landed: by the doorbell where the CPU
// rings, by waking it where the GPU did.
func (c *conn) ring(now time.Duration) (busy bool) {
	if c.broken {
		return false // the doorbell says nothing of copies any more: see ringRest
	}
	if c.cpu {
		for seq := c.rungSeen + 1; seq < c.tx.Next(); seq++ {
			p := c.flight[c.claim.Geometry.Slot(seq)]
			if p == nil || !p.recorded {
				break
			}
			done, err := p.done.Done()
			if err != nil {
				c.broke(now, xfer.CopyError, err)
				return true
			}
			if !done {
				break
			}
			c.tx.Ring(seq)
		}
	}
	rung := min(c.tx.Rung(), c.tx.Next()-1)
	if rung <= c.rungSeen {
		return false
	}
	for seq := max(c.rungSeen, c.tx.Reaped()) + 1; seq <= rung; seq++ {
		if p := c.flight[c.claim.Geometry.Slot(seq)]; p != nil {
			p.since, p.rung = now, true
		}
	}
	c.rungSeen = rung
	c.claim.Peer.Wake()
	return true
}

// look judges the peer: often enough to act in time, seldom enough to cost
// nothing.
func (c *conn) look(now time.Duration) {
	if c.blind || now-c.checkedAt < time.Millisecond {
		return
	}
	c.checkedAt = now
	if c.tx.InFlight() > 0 && !c.broken {
		if _, err := c.stream.Idle(); err != nil {
			c.broke(now, xfer.CopyError, err)
		}
	}
	suspected, why := c.claim.Peer.Suspected(now)
	c.suspected = suspected
	if suspected {
		c.quarantine(why, nil)
	} else if why := c.claim.Peer.Leaving(); why != xfer.NoReason {
		c.stopping = why == xfer.RelayStopping
		c.quarantine(why, nil)
	}
}

// watch takes back what the relay does not claim in time, and at once where it
// is suspected, and closes the way of what it has claimed and left.
func (c *conn) watch(now time.Duration) (busy bool) {
	for seq := c.tx.Reaped() + 1; seq < c.tx.Next(); seq++ {
		p := c.flight[c.claim.Geometry.Slot(seq)]
		switch p.state {
		case flying:
			switch {
			case c.suspected:
				c.takeBack(now, p, c.why)
				busy = true
			case c.stopping && c.tx.Revoke(p.seq):
				c.move(p, xfer.RelayStopping, "peer", c.claim.Peer.Name())
				c.hold(p)
				busy = true
			case p.rung && now-max(p.since, c.lastDone) > c.path.opts.Credit && !c.hopeless(p):
				if c.tx.Revoke(p.seq) {
					c.move(p, xfer.NotClaimed, "peer", c.claim.Peer.Name())
					c.hold(p)
					busy = true
				}
			}
		case closing:
			if c.closed(now, p) {
				c.move(p, p.reason, "peer", c.claim.Peer.Name())
				busy = true
			}
		case moved:
			if len(p.held) > 0 {
				c.settle(p)
			}
		}
	}
	return busy
}

func (c *conn) hopeless(p *piece) bool {
	return c.path.opts.Hopeless != nil && c.path.opts.Hopeless(p.target)
}

// takeBack revokes a piece, or starts to close its way if the relay has claimed
// it.
func (c *conn) takeBack(now time.Duration, p *piece, why xfer.Reason) {
	p.reason = why
	if c.tx.Revoke(p.seq) {
		c.move(p, why, "peer", c.claim.Peer.Name())
		c.hold(p)
		return
	}
	p.state, p.rung = closing, true // what is claimed has landed in the slot
	c.closing++
	c.fence(now, p.target)
}

// move sends the items of a piece whose way is closed the direct way. The piece
// keeps its slot until the relay completes it.
func (c *conn) move(p *piece, why xfer.Reason, attrs ...any) {
	if p.state == closing {
		c.closing--
	}
	p.state = moved
	c.path.opts.Tally.Because(why, p.bytes, attrs...)
	for i := range p.items {
		it := &p.items[i]
		err := p.stopped(it.Owner)
		if err != nil {
			it.Fence.Drop()
		} else {
			err = c.path.opts.Direct(*it, why)
		}
		it.Fence = nil
		p.held = append(p.held, held{it.Owner, err})
	}
	if p.rung {
		c.settle(p)
	}
}

// hold makes the shares of a piece that was revoked wait until its copy no
// longer reads its sources.
func (c *conn) hold(p *piece) {
	if !p.recorded && !c.broken {
		if err := c.stream.Record(p.done); err != nil {
			c.broke(c.now, xfer.CopyError, err)
		} else {
			p.recorded = true
		}
	}
	c.settle(p)
}

// settle ends the held shares of a piece once no copy reads their sources.
func (c *conn) settle(p *piece) {
	if !p.rung && p.recorded {
		done, err := p.done.Done()
		if !done && err == nil {
			return
		}
	} else if !p.rung {
		if idle, _ := c.stream.Idle(); !idle {
			return // an error alone does not say that nothing runs any more
		}
	}
	for _, h := range p.held {
		h.owner.Closed(0, h.err)
	}
	clear(p.held)
	p.held = p.held[:0]
}

// pack makes the next piece ready, if there is anything to send.
func (c *conn) pack(now time.Duration) bool {
	if c.head != nil {
		return true
	}
	if c.queue.n == 0 {
		return false
	}
	p, err := c.path.newPiece()
	if errors.Is(err, gpu.ErrFatal) {
		c.broke(now, xfer.GPUFatal, err)
		return false
	} else if err != nil {
		c.empty(xfer.BadPieces, err)
		return false
	}
	c.queue.fill(p, c.cut())
	p.target, p.rail = p.items[0].Target, p.items[0].rail
	p.since = now
	c.head = p
	return true
}

// cut is the size of the next piece. What a lone caller sends is cut smaller, so
// that the NIC starts before all of it has been copied.
func (c *conn) cut() uint64 {
	slot := c.claim.Geometry.SlotSize
	load := c.queue.bytes + c.bytes
	if c.path.opts.NoCut || load > 2*slot {
		return slot
	}
	return min(slot, max(cutLeast, (load/cutParts+cutAlign-1)/cutAlign*cutAlign))
}

// publish hands the head to the relay.
func (c *conn) publish(now time.Duration) {
	p := c.head
	c.head = nil
	slot := c.claim.Geometry.Slot(c.tx.Next())
	p.plan(c.arena + c.claim.Geometry.Offset(c.claim.Lane, slot))
	err := c.tx.Prepare(p.rail, p.target.Session, p.plans, uint32(p.bytes))
	if err != nil {
		p.rung = true // no copy was started
		c.move(p, xfer.BadPieces, "err", err)
		c.path.freePiece(p)
		return
	}
	p.seq, p.state, p.since = c.tx.Commit(), flying, now
	c.flight[slot] = p
	c.bytes += p.bytes
	c.claim.Peer.Wake()
	c.lesser(p)
	if err := c.start(p); err != nil {
		c.broke(now, xfer.PublishError, err)
	}
}

// start puts the copy and the doorbell on the stream.
func (c *conn) start(p *piece) error {
	for _, f := range p.fences {
		if err := c.stream.Wait(f.Event); err != nil {
			return fmt.Errorf("pxn: wait for the source: %w", err)
		}
	}
	if err := c.stream.Copy(p.copies); err != nil {
		return fmt.Errorf("pxn: copy to the slot: %w", err)
	}
	if c.cpu {
		if err := c.stream.Record(p.done); err != nil {
			return fmt.Errorf("pxn: record the copy: %w", err)
		}
		p.recorded = true
		return nil
	}
	if err := c.stream.Write64(c.bell, p.seq); err != nil {
		return fmt.Errorf("pxn: ring by the stream: %w", err)
	}
	return nil
}

// starved sends the head direct if it has waited for a slot too long.
func (c *conn) starved(now time.Duration) bool {
	p := c.head
	if now-max(p.since, c.lastCredit) <= c.path.opts.Credit || c.hopeless(p) {
		return false
	}
	c.dropHead(xfer.NoCredit)
	return true
}

func (c *conn) dropHead(why xfer.Reason) {
	p := c.head
	c.head = nil
	p.rung = true // no copy was started
	c.move(p, why, "peer", c.claim.Peer.Name(), "lane", c.claim.Lane)
	c.path.freePiece(p)
}
