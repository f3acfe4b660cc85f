package model

import (
	"fmt"

	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/shmabi"
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
		if action != doClaim || g.claims == 0 || g.life != alive || g.leaving != 0 || g.cut != 0 || w.broken != 0 || int(l.next) == c.Pieces {
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
		if g.life == alive && g.stopped == 0 && l.blind == 0 {
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
		return l.quarantined == 0 && int(l.next) < c.Pieces
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
		t.effect(func(s *state) {
			s.worlds[t.i].fence = 0
			t.say("the fence is confirmed")
		})
		t.l.asking, t.l.fenced = 0, max(t.l.fenced, t.l.asked)
	case doSenderPark:
		t.park()
	case doSenderUnpark:
		t.write("wake word <- 0", func(s *state) { s.worlds[t.i].wake = 0 })
		t.l.parked = 0
	}
}

// faulted is what is done about an action in which the memory was gone: a claim
// has not happened, anything else is left where it was.
func (t *tx) faulted() {
	t.live = true
	if t.run.action != doClaim {
		t.gone()
		return
	}
	if g := &t.s.shared; g.flock == uint8(t.i+1) {
		g.flock = 0
	}
	t.s.worlds[t.i].using = 0
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
		pack(t.l.tx[:], t.end.Snapshot(t.words[:0]))
	}
	if !t.cfg.Fine {
		t.l.simplify(t.cfg)
	}
	t.s.senders[t.i] = t.l
}

// simplify clears what makes no difference any more.
func (l *sender) simplify(c *Config) {
	if l.asking == 0 {
		l.asked = 0
	}
	if l.fenced <= l.tx[2] {
		l.fenced = 0
	}
	for k := range l.flight {
		if p := &l.flight[k]; p.state == moved && p.flags&held == 0 {
			p.flags &= recorded // by which a CPU knows when to ring
			if !c.CPUBell {
				p.flags = 0
			}
		}
	}
}
