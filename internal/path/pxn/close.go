package pxn

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/xfer"
)

// fencing is the fence of one target against the lane's relay. It covers the
// pieces that were known to be claimed when it was asked for: queue pairs made
// later carry only pieces claimed later.
type fencing struct {
	asking bool
	asked  uint64 // highest sequence that the running request covers
	done   uint64 // highest sequence covered by a confirmed one
	again  time.Duration
	pause  time.Duration
}

const (
	fencePauseMin = 20 * time.Millisecond
	fencePauseMax = time.Second
)

// fence asks the target, off the pump, to close the relay's queue pairs.
func (c *conn) fence(now time.Duration, t *Target) {
	if !t.Fences && !t.Handshakes {
		return
	}
	f := c.fences[t]
	if f == nil {
		f = &fencing{}
		c.fences[t] = f
	}
	if f.asking || now < f.again {
		return
	}
	f.asking, f.asked = true, c.claimed()
	p, epoch := c.path, c.claim.Peer.Epoch()
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		err := p.opts.Fence(p.ctx, t, epoch)
		p.mail.Post(func() {
			f.asking = false
			if err == nil {
				f.done, f.pause, f.again = f.asked, 0, 0
				return
			}
			f.pause = min(max(2*f.pause, fencePauseMin), fencePauseMax)
			f.again = now + f.pause
			p.log.Warn("fence not confirmed", "session", string(t.Session), "relay", c.claim.Peer.Name(), "err", err)
		})
	}()
}

// claimed is the highest sequence that is known to be claimed: the relay claims
// in order. What is claimed later may go out by queue pairs that a fence asked for
// now does not see.
func (c *conn) claimed() uint64 {
	if c.blind {
		return c.tx.Next() - 1 // nobody can claim any more
	}
	for seq := c.tx.Next() - 1; seq > c.tx.Reaped(); seq-- {
		if p := c.flight[c.claim.Geometry.Slot(seq)]; p != nil && p.state == closing || c.tx.Claimed(seq) {
			return seq
		}
	}
	return c.tx.Reaped()
}

// closed reports whether the relay can send no more of a claimed piece.
func (c *conn) closed(now time.Duration, p *piece) bool {
	if f := c.fences[p.target]; f != nil && f.done >= p.seq {
		return true
	}
	if c.path.opts.DeathCloses && c.claim.Peer.Gone() {
		return true
	}
	c.fence(now, p.target)
	return false
}

// abort stops what owners that match have in flight.
func (c *conn) abort(now time.Duration, match func(Owner) bool, cause error) {
	if p := c.head; p != nil && p.has(match) {
		p.stops = append(p.stops, stop{match, cause})
		c.dropHead(xfer.Aborted)
	}
	for seq := c.tx.Reaped() + 1; seq < c.tx.Next(); seq++ {
		p := c.flight[c.claim.Geometry.Slot(seq)]
		if p != nil && (p.state == flying || p.state == closing) && p.has(match) {
			p.stops = append(p.stops, stop{match, cause})
			if p.state == flying {
				c.takeBack(now, p, xfer.Aborted)
			}
		}
	}
}

// quarantine takes nothing new. What is queued goes direct at once; what is in
// flight ends by completion, or is taken back.
func (c *conn) quarantine(why xfer.Reason, err error) {
	if c.quarantined {
		return
	}
	c.quarantined, c.why = true, why
	level := slog.LevelWarn
	switch why {
	case xfer.PXNOff:
		level = slog.LevelDebug // we are leaving
	case xfer.RelayStopping, xfer.PXNSwitched:
		level = slog.LevelInfo // somebody meant it to
	}
	c.path.log.Log(context.Background(), level, "lane quarantined", "peer", c.claim.Peer.Name(), "lane", c.claim.Lane, "why", why.String(), "err", err)
	for _, r := range c.path.rails {
		if r.conn == c {
			r.conn, r.why, r.retryAt = nil, why, c.now+c.path.opts.Retry
		}
	}
	c.empty(why, nil)
}

// release is quarantine because we leave.
func (c *conn) release(why xfer.Reason) {
	c.released = true
	c.quarantine(why, nil)
}

// empty sends what is not committed yet the direct way.
func (c *conn) empty(why xfer.Reason, err error) {
	if c.head != nil {
		c.dropHead(why)
	}
	for c.queue.n > 0 {
		it := c.queue.pop()
		c.path.direct(it, why, "peer", c.claim.Peer.Name(), "err", err)
	}
}

// broke gives the lane up because its stream or the GPU has failed. What has not
// landed in its slot never will.
func (c *conn) broke(now time.Duration, why xfer.Reason, err error) {
	if c.broken {
		return
	}
	c.broken = true
	c.oweNothing()
	if errors.Is(err, gpu.ErrFatal) {
		why = xfer.GPUFatal
		c.path.opts.Lost(err)
	}
	c.quarantine(why, err)
	rung := c.tx.Rung()
	for seq := c.tx.Reaped() + 1; seq < c.tx.Next(); seq++ {
		p := c.flight[c.claim.Geometry.Slot(seq)]
		if p != nil && p.state == flying && seq > rung {
			c.takeBack(now, p, why)
		}
	}
}

// idle reports whether the stream runs nothing any more. An error alone does not say so,
// and may be all that a stream that has failed ever answers: that it was closed does.
func (c *conn) idle() bool {
	if c.stream == nil {
		return c.still
	}
	idle, err := c.stream.Idle()
	if idle || err == nil {
		return idle
	}
	c.broke(c.now, xfer.CopyError, err)
	if s := c.stream; s != nil {
		c.stream = nil
		c.path.wg.Go(func() {
			if err := s.Close(); err != nil {
				c.path.log.Debug("lane's stream", "err", err)
			}
			c.path.mail.Post(func() { c.still = true })
		})
	}
	return false
}

// gone makes the lane blind: its memory was gone under us. What was in flight
// counts as claimed.
func (c *conn) gone(err error) {
	c.claim.Peer.Fault(err)
	c.blind = true
	c.oweNothing()
	c.tx.Blind()
	c.suspected = true
	c.quarantine(xfer.RelaySuspected, err)
}

// drain ends a quarantined lane once nothing of it is left: at the relay's end,
// or because the relay is gone. Where one of us leaves, what has gone another way
// already is not waited for: the relay keeps the lane until it has done with it.
func (c *conn) drain(now time.Duration) (busy bool) {
	if c.leaving {
		return false
	}
	if c.tx.InFlight() > 0 {
		if !c.claim.Peer.Gone() && !c.blind {
			c.ringRest()
			if !c.stopping && !c.released {
				return false
			}
		}
		for seq := c.tx.Reaped() + 1; seq < c.tx.Next(); seq++ {
			p := c.flight[c.claim.Geometry.Slot(seq)]
			if p.state != moved || len(p.held) > 0 {
				return false
			}
		}
	}
	if len(c.linger) > 0 {
		return false
	}
	if !c.idle() {
		return false
	}
	for slot, p := range c.flight {
		if p != nil {
			c.flight[slot] = nil
			c.path.freePiece(p)
		}
	}
	c.leaving = true
	p := c.path
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		p.dialing <- struct{}{}
		c.end()
		delete(p.dialed, c.claim.Peer.Epoch())
		<-p.dialing
		p.mail.Post(func() { c.ended = true })
	}()
	return true
}

// ringRest rings for revoked pieces whose bell was never put on the stream, so
// that the relay gives their slots back. Nothing else rings any more: the stream
// is idle and takes nothing new.
func (c *conn) ringRest() {
	last := c.tx.Next() - 1
	if c.tx.Rung() >= last {
		return
	}
	if c.broken || c.idle() {
		c.tx.Ring(last)
		c.claim.Peer.Wake()
	}
}

// end frees what the lane holds. It may block, and runs off the pump.
func (c *conn) end() {
	log := c.path.log
	if c.stream != nil {
		if err := c.stream.Close(); err != nil {
			log.Debug("lane's stream", "err", err)
		}
	}
	if c.unmap != nil {
		if err := c.unmap(); err != nil {
			log.Warn("doorbell page not released", "err", err)
		}
	}
	if c.arena != 0 {
		if err := c.path.opts.Device.CloseImport(c.arena); err != nil {
			log.Warn("arena import not closed", "peer", c.claim.Peer.Name(), "err", err)
		}
	}
	if !c.claim.Peer.Gone() {
		err := c.path.opts.Guard(func() error { c.tx.Release(); return nil })
		if err != nil {
			log.Debug("lane not released", "peer", c.claim.Peer.Name(), "err", err)
		}
		c.claim.Peer.Wake()
	}
	if err := c.claim.Peer.Close(); err != nil {
		log.Debug("peer", "err", err)
	}
}
