package model

// mayWrite reports whether the NIC may write a post now, as a step of its own.
// Where that would only put the right bytes in a place that waits for them, it is
// enough that they are there when the relay polls (see rx.poll), unless every
// access is to be a step.
func mayWrite(c *Config, s *state, l *laneMem, slot int) bool {
	p := &l.posted[slot]
	if p.state != posted || p.live != open {
		return false
	}
	return c.Fine || s.pieces[p.target-1].ended != 0 || l.slot[slot] != p.target
}

// nic lets the relay's NIC end a post: it reads the slot and writes the
// destination. To read and to write later is nothing more: what is late or wrong
// then is late or wrong at one of the two instants.
func (x *step) nic(k, slot int) {
	l := &x.s.lanes[k]
	p := &l.posted[slot]
	d := &x.s.pieces[p.target-1]
	x.say("the NIC writes slot %d, with piece %d, to the destination of piece %d", slot, l.slot[slot], p.target)
	if d.ended != 0 {
		x.fail("late", "the NIC writes to the destination of piece %d after its end", p.target)
	}
	if x.s.worlds[(p.target-1)/maxPieces].life == alive {
		d.content = right
		if l.slot[slot] != p.target {
			d.content = wrong
		}
	}
	p.state = applied
}

// fence lets the target close the relay's queue pairs, as a sender has asked.
func (x *step) fence(i int) {
	x.unbind()
	x.s.worlds[i].fence = confirmed
	x.say("the target closes the relay's queue pairs, as sender %d asked", i+1)
}

// cut breaks the relay's queue pairs, as when its NIC fails.
func (x *step) cut() {
	x.s.shared.faults--
	x.unbind()
	x.say("the relay's queue pairs break")
}

func (x *step) unbind() {
	x.s.shared.live, x.s.shared.bound = 0, 0
	for k := range x.s.lanes {
		for slot := range x.s.lanes[k].posted {
			if p := &x.s.lanes[k].posted[slot]; p.live == open {
				p.live = ended
			}
		}
	}
}

// connect gives the relay new queue pairs.
func (x *step) connect() {
	x.s.shared.live = 1
	x.say("the relay has new queue pairs")
}

// crash ends a sender. Its GPU goes on until it is closed.
func (x *step) crashSender(i int) {
	x.s.shared.faults--
	x.s.senders[i] = sender{}
	for n := range maxPieces {
		x.s.pieces[i*maxPieces+n].content = untouched
	}
	x.s.worlds[i].life = dead
	x.say("crash")
}

// closeSender ends what was left of a dead sender: its descriptors are closed,
// and its GPU does nothing more for it.
func (x *step) closeSender(i int) {
	w := &x.s.worlds[i]
	*w = world{life: closed, fence: w.fence}
	if x.s.shared.flock == uint8(i+1) {
		x.s.shared.flock = 0
	}
	x.say("closed")
}

// crashRelay ends the relay. Its NIC goes on until it is closed.
func (x *step) crashRelay() {
	x.s.shared.faults--
	x.s.relay = relay{}
	x.s.shared.life, x.s.shared.stopped = dead, 0
	x.s.shared.bound = 0
	x.say("crash")
}

// truncate cuts the relay's file short: whoever touches it faults. The relay's
// process lives on, and so does its NIC.
func (x *step) truncate() {
	x.s.shared.faults--
	x.s.shared.cut, x.s.shared.bound = 1, 0
	x.s.relay = relay{}
	x.say("the relay's file is cut short")
}

func (x *step) closeRelay() {
	x.s.shared.life = closed
	if !x.cfg.Outlives {
		for k := range x.s.lanes {
			x.s.lanes[k].posted = [maxSlots]post{}
		}
	}
	if x.s.shared.flock == 0xff {
		x.s.shared.flock = 0
	}
	x.say("closed")
}

// breakGPU makes a sender's stream fail, whatever was on it.
func (x *step) breakGPU(i int) {
	x.s.shared.faults--
	w := &x.s.worlds[i]
	w.broken, w.queued, w.queue = 1, 0, [maxQueue]uint8{}
	x.say("the GPU fails")
}
