package model

// Operations of a stream.
const (
	opCopy   = 1 << 4 // of a piece, bits 2-3, to a slot, bits 0-1
	opBell   = 2 << 4 // with a sequence
	opRecord = 3 << 4 // of a piece's event
	opMask   = 0xf0
)

// Answers of a stream or an event.
const (
	streamBusy   = 0
	streamDone   = 1
	streamFailed = 2
)

// stream puts operations on the sender's stream; it fails if its GPU has.
func (t *tx) stream(what string, ops ...uint8) bool {
	return t.sample(func(s *state) uint8 {
		t.say("stream: %s", what)
		w := &s.worlds[t.i]
		if w.broken != 0 {
			return 0
		}
		for _, op := range ops {
			if op&opMask == opCopy {
				t.overwrites(i2id(t.i, op), op&3)
			}
			w.queue[w.queued] = op
			w.queued++
		}
		t.skipRecords(w)
		return 1
	}) == 1
}

func (t *tx) idle() uint8 {
	return t.sample(func(s *state) uint8 {
		switch w := &s.worlds[t.i]; {
		case w.broken != 0:
			return streamFailed
		case w.queued == 0:
			return streamDone
		}
		return streamBusy
	})
}

// done asks for the event of a piece.
func (t *tx) done(id uint8) uint8 {
	return t.sample(func(s *state) uint8 {
		w := &s.worlds[t.i]
		if w.broken != 0 {
			return streamFailed
		}
		for _, op := range w.queue[:w.queued] {
			if op == opRecord|t.index(id) {
				return streamBusy
			}
		}
		return streamDone
	})
}

// i2id is the piece that an operation copies.
func i2id(i int, op uint8) uint8 { return uint8(i*maxPieces) + op>>2&3 + 1 }

func (w *world) pop() uint8 {
	op := w.queue[0]
	copy(w.queue[:], w.queue[1:w.queued])
	w.queued--
	w.queue[w.queued] = 0
	return op
}

// skipRecords lets events that are next fire at once: the sooner a source may be
// used again, the more can go wrong.
func (x *step) skipRecords(w *world) {
	for !x.cfg.Fine && w.queued > 0 && w.queue[0]&opMask == opRecord {
		w.pop()
	}
}

// overwrites looks whether a copy hits a slot that the NIC still reads.
func (x *step) overwrites(id, slot uint8) {
	l := &x.s.lanes[x.s.worlds[(id-1)/maxPieces].lane]
	if p := &l.posted[slot]; p.state == posted && p.live == open && p.target != id {
		x.fail("slot", "piece %d is copied to slot %d, which the NIC still reads for piece %d", id, slot, p.target)
	}
}

// gpu runs the next operation of a sender's stream, and the doorbell along with
// the copy before it: the later a copy reads its source, and the sooner its bytes
// are wanted, the more can go wrong. That the slot is its own was seen before.
func (x *step) gpu(i int) {
	w := &x.s.worlds[i]
	op := w.pop()
	x.operate(i, op)
	if !x.cfg.Fine && op&opMask == opCopy && w.queued > 0 && w.queue[0]&opMask == opBell {
		x.operate(i, w.pop())
	}
	x.skipRecords(w)
}

func (x *step) operate(i int, op uint8) {
	w := &x.s.worlds[i]
	l := &x.s.lanes[w.lane]
	switch op & opMask {
	case opBell:
		l.bell = op &^ opMask
		x.say("doorbell <- %d", l.bell)
	case opRecord:
		x.say("event of piece %d", uint8(i*maxPieces)+op&^opMask+1)
	case opCopy:
		id, slot := i2id(i, op), op&3
		x.say("copy piece %d to slot %d", id, slot)
		if x.s.pieces[id-1].ended != 0 {
			x.fail("source", "the copy of piece %d reads a source that the caller uses again", id)
		}
		x.overwrites(id, slot)
		l.slot[slot] = id
	}
}

// passed reports whether no copy of a piece reads its source any more, as
// tx.settle finds out.
func (w *world) passed(i int, p *inFlight) bool {
	if w.broken != 0 || w.queued == 0 || p.flags&rung != 0 {
		return true
	}
	if p.flags&recorded == 0 {
		return false
	}
	for _, op := range w.queue[:w.queued] {
		if op == opRecord|(p.piece-1-uint8(i*maxPieces)) {
			return false
		}
	}
	return true
}
