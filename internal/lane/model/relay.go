package model

import (
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/shmabi"
)

// Actions of the relay.
const (
	doPoll         = iota + 1 // of a job: its work came back well
	doPollFail                // of a job: its work came back as failed
	doComplete                // of a lane; a job that is open has come back well,
	doCompleteFail            // or as failed
	doAttend                  // of a lane
	doFound                   // of a lane
	doSweep                   // of a lane
	doTake                    // of a lane
	doStop
	doExit
	doRelayPark
	doRelayUnpark
)

var relayActions = [...]string{"", "poll", "poll", "complete", "complete", "attend", "sender found", "sweep", "take", "stop", "exit", "park", "wake up"}

// rx is the relay in an action. The action's parameter is the lane, and for polls
// maxSlots times the lane and the job.
type rx struct {
	*step
	l    relay // saved when the action ends
	k    int   // lane
	in   *inLane
	end  *lane.Relay
	ends *[maxLanes]*lane.Relay
}

// use turns to a lane.
func (r *rx) use(k int) { r.k, r.in, r.end = k, &r.l.lanes[k], r.ends[k] }

func slotOf(c *Config, seq uint8) int { return int(seq-1) % c.Slots }

// canRelay reports whether an action may begin; it saves steps that would end
// where they began.
func canRelay(c *Config, s *state, action, param uint8) bool {
	g, l := &s.shared, &s.relay
	if l.parked != 0 {
		if action != doRelayUnpark {
			return false
		}
		return g.wake == 0 || relayRung(c, s)
	}
	switch action {
	case doRelayPark:
		return c.Park
	case doRelayUnpark:
		return false
	case doStop:
		return c.Stops && g.leaving == 0
	case doExit:
		return g.leaving != 0 && idle(c, s)
	case doComplete, doCompleteFail:
		in := &l.lanes[param]
		switch {
		case in.count == 0:
			return false
		case c.Bug == CompleteEarly || in.jobs[0].state == jobOver:
			return action == doComplete
		case c.Fine:
			return false
		}
		return ends(c, s, param, 0, action == doComplete)
	case doPoll, doPollFail:
		if !c.Fine {
			return false
		}
		in, n := &l.lanes[param/maxSlots], param%maxSlots
		if n >= in.count || in.jobs[n].state != jobOpen {
			return false
		}
		return ends(c, s, param/maxSlots, n, action == doPoll)
	}
	in := &l.lanes[param]
	switch action {
	case doAttend:
		return in.state != laneAdopting && (in.state != laneActive || in.count == 0 || c.Bug == FreeOutstanding)
	case doFound:
		return in.state == laneAdopting
	case doSweep:
		return in.state == laneClaiming && g.flock == 0
	case doTake:
		return in.state == laneActive && int(in.count) < c.Slots
	}
	return false
}

// ends reports whether the NIC may report the end of a job's work, as done or as
// failed.
func ends(c *Config, s *state, k, n uint8, well bool) bool {
	p := &s.lanes[k].posted[slotOf(c, s.relay.lanes[k].rx[2]+1+n)]
	if !well {
		return p.state != 0 && p.live != open
	}
	return p.state == applied || !c.Fine && p.state == posted && p.live != 0
}

// relayRung reports whether somebody rings the relay but a sender: its completion
// queue, or a sender's end.
func relayRung(c *Config, s *state) bool {
	for k := range c.Lanes {
		in := &s.relay.lanes[k]
		for n := range in.count {
			if in.jobs[n].state != jobOpen {
				continue
			}
			if ends(c, s, uint8(k), n, true) || ends(c, s, uint8(k), n, false) {
				return true
			}
		}
		if id := s.lanes[k].identity; id != 0 && s.worlds[id-1].life != alive {
			return true
		}
	}
	return false
}

func (r *rx) act() {
	n := int(r.run.param) % maxSlots
	switch r.run.action {
	case doPoll:
		r.write("poll", func(*state) {})
		r.poll(n, statusOK)
	case doPollFail:
		r.write("poll", func(*state) {})
		r.poll(n, statusEndpoint)
	case doComplete:
		r.complete(statusOK)
	case doCompleteFail:
		r.complete(statusEndpoint)
	case doAttend:
		r.attend()
	case doFound:
		r.found()
	case doSweep:
		r.sweep()
	case doTake:
		r.take()
	case doStop:
		r.write("state <- stopping", func(s *state) { s.shared.leaving = 1 })
	case doExit:
		r.exit()
	case doRelayPark:
		r.park()
	case doRelayUnpark:
		r.write("wake word <- 0", func(s *state) { s.shared.wake = 0 })
		r.l.parked = 0
	}
}

// poll mirrors Relay.poll: the NIC reports the end of a piece's work.
func (r *rx) poll(n int, status uint8) {
	slot := slotOf(r.cfg, r.in.rx[2]+1+uint8(n))
	again := r.cfg.Bug == Repost && status == statusEndpoint && r.s.shared.live != 0
	r.effect(func(s *state) {
		p := &s.lanes[r.k].posted[slot]
		switch {
		case again:
			p.state, p.live = posted, open
			r.say("post the work of slot %d again", slot)
			return
		case status != statusOK || p.state == applied:
		case p.live == open:
			r.nic(r.k, slot)
		default: // it was written before the queue pairs closed
			if d := &s.pieces[p.target-1]; d.ended == 0 && s.worlds[(p.target-1)/maxPieces].life == alive {
				d.content = right
			}
		}
		*p = post{}
		r.say("the NIC ends the work of slot %d: %v", slot, statuses[status])
	})
	if !again {
		r.in.jobs[n] = job{jobOver, status}
	}
}

// complete mirrors inLane.reap.
func (r *rx) complete(status uint8) {
	if r.in.jobs[0].state == jobOpen && r.cfg.Bug != CompleteEarly {
		if r.poll(0, status); r.in.jobs[0].state == jobOpen {
			return
		}
	}
	if r.cfg.Bug == RelayWakesFirst {
		r.wakeSender()
	}
	for r.in.count > 0 && (r.in.jobs[0].state == jobOver || r.cfg.Bug == CompleteEarly) {
		j := r.in.jobs[0]
		copy(r.in.jobs[:], r.in.jobs[1:r.in.count])
		r.in.count--
		r.in.jobs[r.in.count] = job{}
		r.end.Complete(statuses[j.status])
	}
	if r.end.Flush() && r.cfg.Bug != RelayWakesFirst {
		r.wakeSender()
	}
}

// idle mirrors Relay.Idle. What a relay knows of its lanes is not enough for it to
// leave: somebody may just have claimed one.
func idle(c *Config, s *state) bool {
	if s.shared.flock != 0 && c.Bug != ExitBlind {
		return false
	}
	for k := range c.Lanes {
		if s.relay.lanes[k].state != laneFree || s.lanes[k].state != uint8(shmabi.LaneFree) && c.Bug != ExitBlind {
			return false
		}
	}
	return true
}

// exit mirrors the end of rank.close: the arena is freed.
func (r *rx) exit() {
	r.write("free the arena", func(s *state) {
		s.shared.life = closed
		for i := range r.cfg.Senders {
			if w := &s.worlds[i]; w.using != 0 {
				r.fail("arena", "the arena is freed while sender %d may use it", i+1)
			}
		}
	})
	r.l = relay{}
}

// wakeSender mirrors pump.Ring on the sender's word.
func (r *rx) wakeSender() {
	if r.in.sender == 0 || !r.cfg.Park {
		return
	}
	i := r.in.sender - 1
	if r.read("sender's wake word", func(s *state) uint8 { return s.worlds[i].wake }) == 1 {
		r.write("wake the sender", func(s *state) { s.worlds[i].wake = 0 })
	}
}

// attend mirrors inLane.attend.
func (r *rx) attend() {
	if r.in.state != laneActive {
		switch r.end.Adopt() {
		case shmabi.LaneReady:
			if r.end.Epoch() == 0 {
				r.free()
				r.in.state = laneFree
				return
			}
			r.in.state = laneAdopting
		case shmabi.LaneClaiming:
			r.in.state = laneClaiming
		default:
			r.in.state = laneFree
		}
		return
	}
	gone := false
	if i := r.in.sender; i != 0 {
		life := r.sample(func(s *state) uint8 { return s.worlds[i-1].life })
		gone = life == closed || life == dead && r.cfg.Bug == FreeOnSuspicion
	}
	if !gone && !r.end.Released() {
		return
	}
	if r.in.count > 0 && r.cfg.Bug != FreeOutstanding {
		return // drain what was posted
	}
	if r.cfg.Bug == FreeStateFirst {
		r.write("lane state <- free", func(s *state) { s.lanes[r.k].state = uint8(shmabi.LaneFree) })
	}
	r.free()
	*r.in = inLane{}
}

// free is lane.Relay.Free, with a look whether the lane is the owner's again.
func (r *rx) free() {
	r.effect(func(s *state) {
		for i := range r.cfg.Senders {
			if w := &s.worlds[i]; w.using != 0 && int(w.lane) == r.k {
				r.fail("lane", "lane %d is freed while sender %d may use it", r.k, i+1)
			}
		}
		l := &s.lanes[r.k]
		l.identity = 0
		if !r.cfg.Fine {
			l.bodyEpoch, l.bodyFront, l.bodyBack, l.doneStatus = [maxSlots]uint8{}, [maxSlots]uint8{}, [maxSlots]uint8{}, [maxSlots]uint8{}
		}
	})
	r.freeing = true
	r.end.Free()
	r.freeing = false
}

// found mirrors inLane.find and rank.findSender: the sender is looked up in the
// registry, by what its lane says now.
func (r *rx) found() {
	id := r.sample(func(s *state) uint8 { return s.lanes[r.k].identity })
	epoch := r.read("sender's epoch", func(s *state) uint8 { return s.lanes[r.k].epoch })
	life := r.sample(func(s *state) uint8 {
		if id == 0 {
			return alive
		}
		return s.worlds[id-1].life
	})
	r.in.state = laneActive
	if id == epoch && (life == alive || r.cfg.Bug != ForgetsDead) {
		r.in.sender = id
	}
}

// sweep mirrors registry.Entry.SweepClaims and freeLane: a claim whose claimer
// has left the lock behind is undone.
func (r *rx) sweep() {
	r.lock(0xff)
	k := r.k
	was := r.read("lane state", func(s *state) uint8 { return s.lanes[k].state })
	if was == uint8(shmabi.LaneClaiming) {
		for i := range r.cfg.Slots {
			r.privately("commit <- 0", func(s *state) { s.lanes[k].commit[i] = 0 })
			r.privately("completion <- 0", func(s *state) { s.lanes[k].doneSeq[i] = 0 })
		}
		r.privately("attached <- 0", func(s *state) { s.lanes[k].attached = 0 })
		r.privately("identity <- 0", func(s *state) { s.lanes[k].identity = 0 })
		r.privately("epoch <- 0", func(s *state) { s.lanes[k].epoch = 0 })
		r.privately("head <- 0", func(s *state) { s.lanes[k].head = 0 })
		r.privately("doorbell <- 0", func(s *state) { s.lanes[k].bell = 0 })
		r.privately("completed <- 0", func(s *state) { s.lanes[k].completed = 0 })
		r.write("lane state <- free", func(s *state) { s.lanes[k].state = uint8(shmabi.LaneFree) })
	}
	r.unlock()
	r.in.state = laneFree
}

// take mirrors inLane.take.
func (r *rx) take() {
	seq, offer := r.end.Look()
	switch offer {
	case lane.Nothing:
		return
	case lane.Revoked:
		r.finish(statusRevoked)
		return
	case lane.Broken:
		r.effect(func(*state) { r.fail("descriptor", "the relay finds no sequence at %d of lane %d", seq, r.k) })
		r.finish(statusInvalid)
		return
	}
	if r.in.sender == 0 || r.sample(func(s *state) uint8 { return s.shared.leaving }) != 0 {
		return // suspected, or we leave
	}
	r.bind() // job.route
	if r.cfg.Bug != NoClaim && !r.end.Claim(seq) {
		r.effect(func(s *state) { s.shared.bound = 0 })
		r.finish(statusRevoked)
		return
	}
	r.end.Pass()
	j := &r.in.jobs[r.in.count]
	r.in.count++
	var b lane.Body
	if err := r.end.Read(seq, &b); err != nil {
		*j = job{jobOver, statusInvalid}
		r.effect(func(s *state) { s.shared.bound = 0 })
		return
	}
	if r.cfg.Bug == BindAfterClaim {
		r.bind()
	}
	*j = job{state: jobOpen}
	r.post(seq, uint8(b.Plans[0].Dest>>16))
}

// bind takes the queue pairs that are ready now.
func (r *rx) bind() { r.effect(func(s *state) { s.shared.bound = s.shared.live }) }

// finish mirrors inLane.finish.
func (r *rx) finish(status uint8) {
	r.end.Pass()
	r.in.jobs[r.in.count] = job{jobOver, status}
	r.in.count++
}

// post mirrors job.push.
func (r *rx) post(seq uint64, target uint8) {
	slot := slotOf(r.cfg, uint8(seq))
	r.effect(func(s *state) {
		p := &s.lanes[r.k].posted[slot]
		if p.state == posted {
			r.fail("slot", "piece %d is posted from slot %d, which the NIC still reads for piece %d", target, slot, p.target)
		}
		*p = post{posted, s.shared.bound, target}
		s.shared.bound = 0
		r.say("post piece %d", target)
	})
}

// park mirrors the end of pump.Loop.turn. To sleep for a millisecond at most is
// no sleep here.
func (r *rx) park() {
	r.write("wake word <- 1", func(s *state) { s.shared.wake = 1 })
	if r.cfg.Bug != RelayLooksOnce && r.work() {
		r.write("wake word <- 0", func(s *state) { s.shared.wake = 0 })
		return
	}
	if r.read("futex wait", func(s *state) uint8 { return s.shared.wake }) == 1 {
		r.l.parked = 1
	}
}

// work looks once more, as a step of the pump would.
func (r *rx) work() bool {
	if r.sample(func(s *state) uint8 { return bit(relayRung(r.cfg, s)) }) == 1 {
		return true
	}
	for k := range r.cfg.Lanes {
		r.use(k)
		in := r.in
		if in.state == laneActive && !r.cfg.Strict && r.end.Underway() {
			return true // Relay.Arm
		}
		switch {
		case in.count > 0 && in.jobs[0].state == jobOver, in.state == laneAdopting, in.state == laneClaiming:
			return true
		case in.state == laneFree:
			if state := r.end.Adopt(); state != shmabi.LaneFree {
				return true
			}
			continue
		}
		if r.end.Released() && in.count == 0 {
			return true
		}
		if int(in.count) < r.cfg.Slots {
			if _, offer := r.end.Look(); offer != lane.Nothing && (offer != lane.Piece || in.sender != 0) {
				return true
			}
		}
	}
	return false
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
