package model

import (
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// What of a sender mirrors path/pxn.

// reap mirrors conn.reap, one completion at a time.
func (t *tx) reap() {
	seq, status, ok := t.end.Reap()
	if !ok {
		return
	}
	slot := t.slot(seq)
	t.forget(slot)
	p := t.l.flight[slot]
	t.l.flight[slot] = inFlight{}
	if p.piece == 0 {
		t.effect(func(*state) { t.fail("once", "sequence %d was completed and is nobody's", seq) })
		return
	}
	if status == xfer.ErrRevoked && p.state != moved {
		t.effect(func(*state) { t.fail("claim", "piece %d was completed as revoked and was not", p.piece) })
	}
	if status == xfer.ErrInvalidArgument {
		t.effect(func(*state) { t.fail("descriptor", "the relay refused the descriptor of piece %d", p.piece) })
	}
	if uint64(t.l.rungSeen) >= seq || t.cfg.Bug == LostInReap && t.end.Rung() >= seq {
		p.flags |= rung
	}
	switch {
	case p.state == moved:
		t.settle(&p)
	case status == xfer.OK:
		t.finish(p.piece)
	default:
		t.move(&p)
	}
	t.free(&p)
}

// forget clears what nobody reads any more of a slot that has come back, so that
// states do not differ by it.
func (t *tx) forget(slot int) {
	if t.cfg.Fine {
		return
	}
	t.effect(func(s *state) {
		l := &s.lanes[t.l.lane]
		l.commit[slot], l.doneStatus[slot] = 0, 0
		l.bodyEpoch[slot], l.bodyFront[slot], l.bodyBack[slot] = 0, 0, 0
	})
}

// free gives the piece back, or keeps it until no copy reads its source.
func (t *tx) free(p *inFlight) {
	if p.flags&held == 0 {
		return
	}
	if t.cfg.Bug == DropOnError && p.flags&recorded == 0 {
		t.effect(func(*state) { t.fail("once", "piece %d was given back and its share never ended", p.piece) })
		return
	}
	k := t.index(p.piece)
	t.l.linger |= 1 << k
	if p.flags&recorded != 0 {
		t.l.lingerMark |= 1 << k
	}
}

func (l *sender) lingering(i int, k uint8) inFlight {
	p := inFlight{piece: uint8(i*maxPieces) + k + 1, state: moved, flags: held}
	if l.lingerMark&(1<<k) != 0 {
		p.flags |= recorded
	}
	return p
}

func (t *tx) settleLingering(k uint8) {
	p := t.l.lingering(t.i, k)
	if t.settle(&p); p.flags&held == 0 {
		t.l.linger &^= 1 << k
		t.l.lingerMark &^= 1 << k
	}
}

// ring mirrors conn.ring.
func (t *tx) ring() {
	if t.cfg.CPUBell {
		for seq := uint64(t.l.rungSeen) + 1; seq < t.end.Next(); seq++ {
			p := t.piece(seq)
			if p.piece == 0 || p.flags&recorded == 0 {
				break
			}
			done := t.done(p.piece)
			if done == streamFailed {
				t.broke()
				return
			}
			if done == streamBusy {
				break
			}
			t.end.Ring(seq)
		}
	}
	seen := min(t.end.Rung(), t.end.Next()-1)
	if seen <= uint64(t.l.rungSeen) {
		return
	}
	for seq := max(uint64(t.l.rungSeen), t.end.Reaped()) + 1; seq <= seen; seq++ {
		if p := t.piece(seq); p.piece != 0 {
			p.flags |= rung
		}
	}
	t.l.rungSeen = uint8(seen)
	if t.cfg.Bug != SenderWakesFirst {
		t.wakeRelay()
	}
}

// takeBack mirrors conn.takeBack.
func (t *tx) takeBack(seq uint64) {
	p := t.piece(seq)
	if t.end.Revoke(seq) {
		if t.cfg.Bug == EndOnRevoke {
			p.flags |= rung
		}
		t.move(p)
		t.hold(p)
		if t.cfg.Bug == ReuseOnRevoke && seq == t.end.Reaped()+1 {
			t.free(p)
			*p = inFlight{}
			all := t.end.Snapshot(t.words[:0])
			all[2]++
			t.end.Restore(all)
		}
		return
	}
	p.state = closing
	if t.l.blind == 0 || t.cfg.Bug == BlindClaim {
		p.flags |= rung // what is claimed has landed in the slot
	}
	if t.cfg.Bug == SkipFence {
		t.move(p)
		return
	}
	t.fence()
}

// gone mirrors conn.gone: the lane's memory is.
func (t *tx) gone() {
	t.l.blind, t.l.quarantined = 1, 1
	if id := t.l.head; id != 0 { // conn.dropHead
		t.l.head = 0
		p := inFlight{piece: id, flags: rung}
		t.move(&p)
	}
}

// broke mirrors conn.broke: what has not landed in its slot never will.
func (t *tx) broke() {
	if t.l.broken != 0 {
		return
	}
	t.l.quarantined = 1
	if t.cfg.Bug == RingUncopied {
		return
	}
	t.l.broken = 1
	seen := t.end.Rung()
	for seq := t.end.Reaped() + 1; seq < t.end.Next(); seq++ {
		if t.piece(seq).state == flying && seq > seen {
			t.takeBack(seq)
		}
	}
}

// fence mirrors conn.fence. It covers only pieces that are known to be claimed:
// what is claimed later may go out on queue pairs made after the fence.
func (t *tx) fence() {
	if t.l.asking != 0 {
		return
	}
	covers := t.end.Next() - 1
	if t.cfg.Bug != FenceCoversAll {
		covers = t.claimed()
	}
	t.l.asking, t.l.asked = 1, uint8(covers)
	t.effect(func(s *state) { s.worlds[t.i].fence = asked; t.say("ask the target for the fence") })
}

func (t *tx) claimed() uint64 {
	if t.l.blind != 0 {
		return t.end.Next() - 1 // nobody can claim any more
	}
	for seq := t.end.Next() - 1; seq > t.end.Reaped(); seq-- {
		if t.piece(seq).state == closing || t.end.Claimed(seq) {
			return seq
		}
	}
	return t.end.Reaped()
}

// close mirrors conn.closed, and what conn.watch does about it.
func (t *tx) close(seq uint64) {
	p := t.piece(seq)
	gone := t.relayLife()
	if uint64(t.l.fenced) >= seq || gone == closed && !t.cfg.Outlives {
		t.move(p)
		return
	}
	t.fence()
}

// move mirrors conn.move. The direct way is as fast as can be here: the bytes are
// there at once, so that whatever comes later by the old way is late.
func (t *tx) move(p *inFlight) {
	p.state = moved
	p.flags |= held
	id := p.piece
	t.effect(func(s *state) {
		t.say("piece %d goes direct", id)
		s.pieces[id-1].content = right
	})
	if p.flags&rung != 0 {
		t.settle(p)
	}
}

// hold mirrors conn.hold.
func (t *tx) hold(p *inFlight) {
	if p.flags&recorded == 0 && t.l.broken == 0 {
		if t.stream("record", opRecord|t.index(p.piece)) {
			p.flags |= recorded
		} else {
			t.broke()
		}
	}
	t.settle(p)
}

// settle mirrors conn.settle.
func (t *tx) settle(p *inFlight) {
	if p.flags&held == 0 {
		return
	}
	if p.flags&rung == 0 {
		if p.flags&recorded != 0 {
			if t.done(p.piece) == streamBusy {
				return
			}
		} else if t.idle() == streamBusy {
			return
		}
	}
	p.flags &^= held
	t.finish(p.piece)
}

// finish tells the caller that a piece has ended. He uses source and destination
// again at once.
func (t *tx) finish(id uint8) {
	t.effect(func(s *state) {
		p := &s.pieces[id-1]
		if p.ended != 0 {
			t.fail("once", "piece %d has ended twice", id)
		}
		if p.content != right {
			t.fail("content", "piece %d has ended and its bytes are not in place", id)
		}
		p.ended = 1
		for k := range s.lanes {
			for slot, has := range s.lanes[k].slot {
				if has == id {
					s.lanes[k].slot[slot] = 0 // nobody may want it any more
				}
			}
		}
		t.say("piece %d has ended", id)
	})
}

// publish mirrors conn.publish and conn.start.
func (t *tx) publish() {
	if !t.end.Room() {
		return
	}
	id := t.id(t.l.next)
	t.l.next++
	if t.cfg.Bug != LostInPublish {
		t.l.head = id
	}
	if t.cfg.Bug == SenderWakesFirst {
		t.wakeRelay()
	}
	if t.cfg.Bug == BellBeforeCommit {
		t.end.Ring(t.end.Next())
	}
	t.prepare(id)
	seq := t.end.Commit()
	p := t.piece(seq)
	*p = inFlight{piece: id, state: flying}
	t.l.head = 0
	if t.cfg.Bug != SenderWakesFirst {
		t.wakeRelay()
	}
	copied := opCopy | t.index(id)<<2 | uint8(t.slot(seq))
	var ok bool
	switch {
	case t.cfg.Bug == BellBeforeCopy:
		ok = t.stream("ring, copy", opBell|uint8(seq), copied)
	case t.cfg.CPUBell:
		if ok = t.stream("copy, record", copied, opRecord|t.index(id)); ok {
			p.flags |= recorded
		}
	default:
		ok = t.stream("copy, ring", copied, opBell|uint8(seq))
	}
	if !ok {
		t.broke()
	}
}

func (t *tx) prepare(id uint8) {
	t.putting = uint8(t.end.Next())
	span := spanOf(id)
	if err := t.end.Prepare(0, session, []shmabi.Plan{span}, uint32(span.Length)); err != nil {
		panic(err)
	}
}

// drain mirrors conn.drain and conn.end.
func (t *tx) drain() {
	if t.end.InFlight() > 0 {
		if t.relayLife() != closed && t.l.blind == 0 {
			t.ringRest()
			if t.l.leaving == 0 {
				return
			}
		}
		for seq := t.end.Reaped() + 1; seq < t.end.Next(); seq++ {
			if p := t.piece(seq); p.state != moved || p.flags&held != 0 {
				return
			}
		}
	}
	if t.l.linger != 0 || t.idle() == streamBusy {
		return
	}
	if t.relayLife() != closed {
		t.end.Release()
		t.effect(func(s *state) { s.worlds[t.i].using = 0 })
		t.wakeRelay()
	}
	t.l = sender{next: t.l.next}
	t.effect(func(s *state) {
		if w := &s.worlds[t.i]; w.fence == confirmed {
			w.fence = 0
		}
	})
	t.end = nil
}

// ringRest mirrors conn.ringRest.
func (t *tx) ringRest() {
	last := t.end.Next() - 1
	if t.end.Rung() >= last {
		return
	}
	switch idle := t.idle(); {
	case t.l.broken != 0, idle == streamDone, idle == streamFailed && t.cfg.Bug == RingUncopied:
	default:
		return
	}
	t.end.Ring(last)
	t.wakeRelay()
}
