package pxn

import (
	"errors"
	"fmt"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/xfer"
)

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
	p := c.head // until it is committed: a lane whose memory goes meanwhile finds it there
	slot := c.claim.Geometry.Slot(c.tx.Next())
	p.plan(c.arena + c.claim.Geometry.Offset(c.claim.Lane, slot))
	err := c.tx.Prepare(p.rail, p.target.Session, p.plans, uint32(p.bytes))
	if err != nil {
		c.head = nil
		p.rung = true // no copy was started
		c.move(p, xfer.BadPieces, "err", err)
		c.path.freePiece(p)
		return
	}
	p.seq, p.state, p.since = c.tx.Commit(), flying, now
	c.head = nil
	c.flight[slot] = p
	c.bytes += p.bytes
	c.claim.Peer.Wake()
	c.lesser(p)
	if err := c.start(p); err != nil {
		c.broke(now, xfer.PublishError, err)
	}
}

// A doorbell costs a stream about as much as a third of copying a slot. So pieces of a
// few copies that are published behind others share one: it says that all up to the
// last have landed. The first piece has its own, so that the relay starts early.
const (
	batchPieces = 6
	batchCopies = 16 // of a piece; more are no few
)

// start puts the copy and the doorbell on the stream, or leaves them to the end of the
// step, for more pieces to join.
func (c *conn) start(p *piece) error {
	for _, f := range p.fences {
		mark := waited{f, f.uses}
		if mark == c.waited {
			continue // the stream has waited, and keeps its order
		}
		if err := c.startOwed(); err != nil {
			return err
		}
		if err := c.stream.Wait(f.Event); err != nil {
			return fmt.Errorf("pxn: wait for the source: %w", err)
		}
		c.waited = mark
	}
	few := len(p.copies) <= batchCopies
	switch {
	case c.cpu:
		if err := c.stream.Copy(p.copies); err != nil {
			return fmt.Errorf("pxn: copy to the slot: %w", err)
		}
		if err := c.stream.Record(p.done); err != nil {
			return fmt.Errorf("pxn: record the copy: %w", err)
		}
		p.recorded = true
		return nil
	case !few:
		if err := c.startOwed(); err != nil {
			return err
		}
		return c.copyAndRing(p.copies, p.seq)
	case c.owes == 0 && c.given <= c.rungSeen:
		return c.copyAndRing(p.copies, p.seq)
	}
	c.owed = append(c.owed, p.copies...)
	c.owes++
	if c.owes < batchPieces {
		return nil
	}
	return c.startOwed()
}

// startOwed starts the copies of pieces that were left to the end of the step, of which
// the last committed one is the last.
func (c *conn) startOwed() error {
	if c.owes == 0 {
		return nil
	}
	copies, last := c.owed, c.given+uint64(c.owes)
	c.oweNothing()
	return c.copyAndRing(copies, last)
}

func (c *conn) oweNothing() { c.owed, c.owes = c.owed[:0], 0 }

// copyAndRing gives the stream copies of all pieces up to seq that it has not got yet.
func (c *conn) copyAndRing(copies []gpu.Copy, seq uint64) error {
	c.given = seq
	if c.ringer != nil {
		if err := c.ringer.CopyWrite64(copies, c.bell, seq); err != nil {
			return fmt.Errorf("pxn: copy to the slot and ring: %w", err)
		}
		return nil
	}
	if err := c.stream.Copy(copies); err != nil {
		return fmt.Errorf("pxn: copy to the slot: %w", err)
	}
	if err := c.stream.Write64(c.bell, seq); err != nil {
		return fmt.Errorf("pxn: ring by the stream: %w", err)
	}
	return nil
}

// gathers reports whether the head waits for more slots, to share a doorbell: while
// the stream has so much to do, nothing is late by it.
func (c *conn) gathers() bool {
	if c.cpu || c.owes > 0 || c.queue.n == 0 || len(c.head.items) > batchCopies {
		return false
	}
	return c.given >= c.rungSeen+batchPieces && c.claim.Geometry.Slots-c.tx.InFlight() < batchPieces
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
