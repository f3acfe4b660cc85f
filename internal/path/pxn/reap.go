package pxn

import (
	"time"

	"github.com/railhop/railhop/internal/tally"
	"github.com/railhop/railhop/internal/xfer"
)

// pause keeps a target off the lane after its relay failed to send there.
type pause struct {
	until time.Duration
	last  time.Duration // length
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
		p.rung = p.rung || c.rungSeen >= seq // and no look at the lane: it may be gone by now, and p with it
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
			case (c.stopping || c.released && c.why != xfer.PXNOff) && c.tx.Revoke(p.seq):
				c.move(p, c.why, "peer", c.claim.Peer.Name())
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
	p.state = closing
	p.rung = p.rung || !c.blind // what is claimed has landed in the slot, if it was seen to be
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
			err = c.path.opts.Direct(it.item(p.target), why)
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
	} else if !p.rung && !c.idle() {
		return
	}
	for _, h := range p.held {
		h.owner.Closed(0, h.err)
	}
	clear(p.held)
	p.held = p.held[:0]
}
