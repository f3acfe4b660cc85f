package model

import (
	"fmt"

	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// Actions of a sender.
const (
	doClaim = iota + 1
	doReap
	doRing
	doLookAtStream
	doSettle // of a slot's piece
	doLinger // of a piece
	doSuspect
	doStopping
	doTakeBack // of a slot's piece
	doTimeOut  // of a slot's piece
	doClose    // of a slot's piece
	doPublish
	doLeave
	doDrain
	doMail
	doSenderPark
	doSenderUnpark
)

var senderActions = [...]string{
	"", "claim", "reap", "ring", "look at the stream", "settle", "settle a lingering piece", "suspect", "relay leaves", "abort", "time out", "close", "publish",
	"leave", "drain", "mail", "park", "wake up",
}

// tx is a sender in an action.
type tx struct {
	*step
	i   int
	l   sender // saved when the action ends
	end *lane.Sender
}

func (t *tx) id(index uint8) uint8 { return uint8(t.i*maxPieces) + index + 1 }

func (t *tx) index(id uint8) uint8 { return id - 1 - uint8(t.i*maxPieces) }

func (t *tx) slot(seq uint64) int { return int((seq - 1) % uint64(t.cfg.Slots)) }

func (t *tx) piece(seq uint64) *inFlight { return &t.l.flight[t.slot(seq)] }

// canSender reports whether an action may begin; it saves steps that would end
// where they began.
func canSender(c *Config, s *state, i int, action, param uint8) bool {
	l, w, g := &s.senders[i], &s.worlds[i], &s.shared
	if l.parked != 0 {
		return action == doSenderUnpark && (w.wake == 0 || w.fence == confirmed || g.life != alive || g.stopped != 0)
	}
	if l.attached == 0 {
		if action != doClaim || g.claims == 0 || g.life != alive || g.leaving != 0 || w.broken != 0 || int(l.next) == c.Pieces {
			return false
		}
		for k := range c.Lanes {
			if s.lanes[k].state == uint8(shmabi.LaneFree) {
				return true
			}
		}
		return false
	}
	next, reaped := l.tx[1], l.tx[2]
	p := &l.flight[param%maxSlots]
	switch action {
	case doReap:
		return next > reaped+1
	case doRing:
		return next > reaped+1 && l.rungSeen < next-1 && l.broken == 0
	case doLookAtStream:
		return c.Bug != DeadStreamUnseen && l.broken == 0 && w.broken != 0 && next > reaped+1
	case doSettle:
		return p.state == moved && p.flags&held != 0 && w.passed(i, p)
	case doLinger:
		q := l.lingering(i, param)
		return l.linger&(1<<param) != 0 && w.passed(i, &q)
	case doSuspect:
		if g.life == alive && g.stopped == 0 {
			return false
		}
		for k := range l.flight {
			if l.flight[k].state == flying {
				return true
			}
		}
		return l.quarantined == 0
	case doStopping:
		return g.leaving != 0 && l.stopping == 0
	case doTakeBack:
		return g.patience > 0 && p.state == flying
	case doTimeOut:
		return g.patience > 0 && p.state == flying && p.flags&rung != 0
	case doClose:
		return p.state == closing
	case doPublish:
		return l.quarantined == 0 && next-reaped <= uint8(c.Slots) && int(l.next) < c.Pieces
	case doLeave:
		return l.quarantined == 0 && (c.Leave || int(l.next) == c.Pieces)
	case doDrain:
		return l.quarantined != 0
	case doMail:
		return w.fence == confirmed
	case doSenderPark:
		return c.Park && parkable(c, l, w)
	}
	return false
}

// parkable reports whether a sender waits for its relay alone. The real pump
// also wakes by itself after a millisecond at most, since a GPU cannot wake it;
// here it relies on being woken.
func parkable(c *Config, l *sender, w *world) bool {
	next, reaped := l.tx[1], l.tx[2]
	if next == reaped+1 || l.linger != 0 || l.asking != 0 || l.rungSeen < next-1 || w.broken != 0 {
		return false
	}
	if l.quarantined == 0 && (int(l.next) == c.Pieces || int(l.next) < c.Pieces && next-reaped <= uint8(c.Slots)) {
		return false
	}
	for k := range l.flight {
		if p := &l.flight[k]; p.state != 0 && (p.state == closing || p.flags&held != 0 || p.state == flying && p.flags&rung == 0) {
			return false
		}
	}
	return true
}

func (t *tx) act() {
	param := t.run.param
	switch t.run.action {
	case doClaim:
		t.claim()
	case doReap:
		t.reap()
	case doRing:
		t.ring()
	case doLookAtStream:
		if t.idle() == streamFailed {
			t.broke()
		}
	case doSettle:
		t.settle(&t.l.flight[param])
	case doLinger:
		t.settleLingering(param)
	case doSuspect:
		t.l.quarantined = 1
		for seq := t.end.Reaped() + 1; seq < t.end.Next(); seq++ {
			if t.piece(seq).state == flying {
				t.takeBack(seq)
			}
		}
	case doStopping: // conn.look and conn.watch
		t.l.quarantined, t.l.leaving, t.l.stopping = 1, 1, 1
		for seq := t.end.Reaped() + 1; seq < t.end.Next(); seq++ {
			if p := t.piece(seq); p.state == flying && t.end.Revoke(seq) {
				t.move(p)
				t.hold(p)
			}
		}
	case doTakeBack:
		t.effect(func(s *state) { s.shared.patience-- })
		t.takeBack(t.seqOf(param))
	case doTimeOut:
		t.effect(func(s *state) { s.shared.patience-- })
		if p := &t.l.flight[param]; t.end.Revoke(t.seqOf(param)) {
			t.move(p)
			t.hold(p)
		}
	case doClose:
		t.close(t.seqOf(param))
	case doPublish:
		t.publish()
	case doLeave:
		t.l.quarantined, t.l.leaving = 1, 1
	case doDrain:
		t.drain()
	case doMail:
		t.write("the fence is confirmed", func(s *state) { s.worlds[t.i].fence = 0 })
		t.l.asking, t.l.fenced = 0, max(t.l.fenced, t.l.asked)
	case doSenderPark:
		t.park()
	case doSenderUnpark:
		t.write("wake word <- 0", func(s *state) { s.worlds[t.i].wake = 0 })
		t.l.parked = 0
	}
}

func (t *tx) seqOf(slot uint8) uint64 {
	for seq := t.end.Reaped() + 1; seq < t.end.Next(); seq++ {
		if t.slot(seq) == int(slot) {
			return seq
		}
	}
	return 0
}

// claim mirrors registry.Peer.Claim, and pxn's conn.open.
func (t *tx) claim() {
	me := uint8(t.i + 1)
	t.lock(me)
	if t.cfg.Stops && t.read("relay's state", func(s *state) uint8 { return s.shared.leaving }) != 0 {
		t.unlock()
		return
	}
	free := -1
	for k := range t.cfg.Lanes {
		was := t.read(fmt.Sprintf("lane %d state", k), func(s *state) uint8 { return s.lanes[k].state })
		if was == uint8(shmabi.LaneFree) {
			free = k
			break
		}
	}
	if free < 0 {
		t.unlock()
		return
	}
	t.write("lane state 0 -> claiming", func(s *state) {
		s.lanes[free].state = uint8(shmabi.LaneClaiming)
		s.shared.claims--
	})
	t.privately("sender identity", func(s *state) { s.lanes[free].identity = me })
	t.privately("sender epoch", func(s *state) { s.lanes[free].epoch = me })
	t.privately("attached <- 0", func(s *state) { s.lanes[free].attached = 0 })
	t.write("lane state <- ready", func(s *state) { s.lanes[free].state = uint8(shmabi.LaneReady) })
	t.effect(func(s *state) { s.worlds[t.i].lane, s.worlds[t.i].using = uint8(free), 1 })
	t.unlock()
	next := t.l.next
	t.l = sender{attached: 1, lane: uint8(free), next: next}
	t.l.tx[0], t.l.tx[1] = me, 1
	t.end = nil // nothing to save: the lane is new
}

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
	if p.flags&rung == 0 && t.cfg.Bug != DropOnError && t.l.broken == 0 && t.end.Rung() >= seq {
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
			var words [len(t.l.tx)]uint64
			all := t.end.Snapshot(words[:0])
			all[2]++
			t.end.Restore(all)
		}
		return
	}
	p.state = closing
	p.flags |= rung // what is claimed has landed in the slot
	if t.cfg.Bug == SkipFence {
		t.move(p)
		return
	}
	t.fence()
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
	t.l.asking = 1
	if t.cfg.Bug == FenceCoversAll {
		t.l.asked = uint8(t.end.Next() - 1)
	} else {
		t.l.asked = uint8(t.claimed())
	}
	t.effect(func(s *state) { s.worlds[t.i].fence = asked; t.say("ask the target for the fence") })
}

func (t *tx) claimed() uint64 {
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
	id := t.id(t.l.next)
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
	t.l.next++
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
	if err := t.end.Prepare(0, session, []xfer.Span{span}, uint32(span.Length)); err != nil {
		panic(err)
	}
}

// drain mirrors conn.drain and conn.end.
func (t *tx) drain() {
	if t.end.InFlight() > 0 {
		if t.relayLife() != closed {
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

// park mirrors the end of pump.Loop.turn.
func (t *tx) park() {
	t.write("wake word <- 1", func(s *state) { s.worlds[t.i].wake = 1 })
	oldest := t.end.Reaped() + 1
	done := t.read("look once more", func(s *state) uint8 { return s.lanes[t.l.lane].doneSeq[t.slot(oldest)] })
	if uint64(done) == oldest {
		t.write("wake word <- 0", func(s *state) { s.worlds[t.i].wake = 0 })
		return
	}
	if t.read("futex wait", func(s *state) uint8 { return s.worlds[t.i].wake }) == 1 {
		t.l.parked = 1
	}
}

// wakeRelay mirrors pump.Ring on the relay's word.
func (t *tx) wakeRelay() {
	if t.cfg.Park && t.read("relay's wake word", func(s *state) uint8 { return s.shared.wake }) == 1 {
		t.write("wake the relay", func(s *state) { s.shared.wake = 0 })
	}
}

func (t *tx) relayLife() uint8 {
	return t.sample(func(s *state) uint8 { return s.shared.life })
}

func (t *tx) save() {
	if t.end != nil {
		pack(t.l.tx[:], t.end.Snapshot)
	}
	if !t.cfg.Fine {
		t.l.simplify()
	}
	t.s.senders[t.i] = t.l
}

// simplify clears what makes no difference any more.
func (l *sender) simplify() {
	if l.asking == 0 {
		l.asked = 0
	}
	if l.fenced <= l.tx[2] {
		l.fenced = 0
	}
	for k := range l.flight {
		if p := &l.flight[k]; p.state == moved && p.flags&held == 0 {
			p.flags = 0
		}
	}
}
