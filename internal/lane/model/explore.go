package model

import (
	"fmt"
	"hash/maphash"

	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/shmabi"
)

// explorer goes through the states of one configuration, breadth first, so that
// the first violation has a shortest trace.
type explorer struct {
	cfg   Config
	x     step
	tx    tx
	rx    rx
	ends  [maxSenders][maxLanes]*lane.Sender
	blind [maxSenders]*lane.Sender
	lanes [maxLanes]*lane.Relay

	next  state // scratch
	seed  maphash.Seed
	seen  table
	from  []uint32   // of a state: the one it was first reached from
	by    []uint8    // and by which of its steps
	words [16]uint64 // scratch
	edges edges
	final []bool // of a state: all has ended
}

// Run explores all states of a configuration.
func Run(c Config) Result {
	e := newExplorer(c)
	return e.run()
}

func newExplorer(c Config) *explorer {
	e := &explorer{cfg: c}
	e.x.cfg = &e.cfg
	e.tx.step, e.rx.step = &e.x, &e.x
	g := lane.Geometry{Slots: c.Slots, SlotSize: 1 << 10, MaxSpans: 1}
	for k := range c.Lanes {
		m := mem{&e.x, k}
		e.lanes[k] = lane.NewRelay(m, g, 1)
		for i := range c.Senders {
			e.ends[i][k] = lane.NewSender(m, g, uint64(i+1))
		}
	}
	for i := range c.Senders {
		e.blind[i] = lane.NewSender(mem{}, g, uint64(i+1))
		e.blind[i].Blind()
	}
	e.seen.init()
	e.seed = maphash.MakeSeed()
	return e
}

func (e *explorer) first() state {
	var s state
	s.shared = shared{live: open, claims: uint8(e.cfg.Epochs), faults: uint8(e.cfg.Faults), patience: uint8(e.cfg.Patience)}
	return s
}

func (e *explorer) run() Result {
	var res Result
	s := e.first()
	e.add(&s, 0, 0)
	frontier, ahead := []state{s}, []state{}
	id := uint32(0)
	for len(frontier) > 0 {
		res.Depth++
		for n := range frontier {
			f := &frontier[n]
			e.final[id] = e.ended(f)
			var bad *Violation
			var at, step uint8
			e.expand(f, func(fault bool, v *Violation) {
				res.Steps++
				step++
				if v != nil {
					if bad == nil {
						bad, at = v, step
					}
					return
				}
				to, fresh := e.add(&e.next, id, step)
				if fresh {
					ahead = append(ahead, e.next)
				}
				if !fault && to != id {
					e.edges.add(to)
				}
			})
			e.edges.end()
			if bad != nil {
				bad.Trace = e.trace(id, at)
				res.Violation, res.States = bad, len(e.from)
				return res
			}
			id++
			if e.cfg.Max > 0 && len(e.from) > e.cfg.Max {
				res.States = len(e.from)
				return res
			}
		}
		frontier, ahead = ahead, frontier[:0]
	}
	res.States, res.Complete = len(e.from), true
	for _, f := range e.final {
		if f {
			res.Finals++
		}
	}
	if stuck, ok := e.stuck(); ok {
		res.Violation = &Violation{Property: "stuck", Detail: "without another fault, nothing leads to the end from here", Trace: e.trace(stuck, 0)}
	}
	return res
}

func (e *explorer) add(s *state, from uint32, by uint8) (id uint32, fresh bool) {
	id, fresh = e.seen.add(maphash.Comparable(e.seed, *s))
	if fresh {
		e.from = append(e.from, from)
		e.by = append(e.by, by)
		e.final = append(e.final, false)
	}
	return id, fresh
}

// ended reports whether all that can be done in s has been done: every piece that
// was submitted has ended, the lanes are free, and nobody wants one.
func (e *explorer) ended(s *state) bool {
	g := &s.shared
	if g.life == dead {
		return false
	}
	for i := range e.cfg.Senders {
		l, w := &s.senders[i], &s.worlds[i]
		switch w.life {
		case dead:
			return false
		case closed:
			continue
		}
		if l.run.action != 0 || l.attached != 0 {
			return false
		}
		for n := range l.next {
			if s.pieces[i*maxPieces+int(n)].ended == 0 {
				return false
			}
		}
		if int(l.next) < e.cfg.Pieces && g.claims > 0 && g.life == alive && g.cut == 0 && w.broken == 0 {
			return false
		}
	}
	if g.life == alive && g.cut == 0 {
		if g.leaving != 0 {
			return false
		}
		for k := range e.cfg.Lanes {
			if s.lanes[k].state != uint8(shmabi.LaneFree) || s.relay.lanes[k].state != laneFree {
				return false
			}
		}
	}
	return true
}

// expand calls f for each step out of s, with the state it leads to in e.next.
func (e *explorer) expand(s *state, f func(fault bool, bad *Violation)) {
	c, x := &e.cfg, &e.x
	if !c.Fine && e.must(s, f) {
		return
	}
	env := func(fault bool, do func()) {
		e.next = *s
		x.s, x.bad, x.said, x.live = &e.next, nil, "", true
		do()
		f(fault, x.bad)
	}
	for i := range c.Senders {
		w := &s.worlds[i]
		if w.life == alive {
			e.sender(s, i, f)
			if l := &s.senders[i]; s.shared.faults > 0 && (l.attached != 0 || l.run.action != 0) {
				env(true, func() { x.say("sender %d: ", i+1); x.crashSender(i) })
			}
		}
		if w.life != closed && w.queued > 0 {
			env(false, func() { x.say("GPU %d: ", i+1); x.gpu(i) })
		}
		if w.life != closed && w.broken == 0 && s.shared.faults > 0 && !c.Strict && (w.queued > 0 || s.senders[i].attached != 0) {
			env(true, func() { x.say("sender %d: ", i+1); x.breakGPU(i) })
		}
		if w.life == dead {
			env(false, func() { x.say("sender %d: ", i+1); x.closeSender(i) })
		}
		if w.fence == asked {
			env(false, func() { x.fence(i) })
		}
	}
	g := &s.shared
	if g.life == alive {
		if c.Truncate && g.faults > 0 && g.cut == 0 {
			env(true, x.truncate)
		}
		if g.cut == 0 {
			e.relay(s, f)
		}
		if g.live == 0 {
			env(false, x.connect)
		}
		if g.faults > 0 {
			env(true, func() { x.say("relay: "); x.crashRelay() })
			if g.live != 0 {
				env(true, x.cut)
			}
			if g.stopped == 0 {
				env(true, func() {
					x.s.shared.faults--
					x.s.shared.stopped = 1
					x.say("relay: stopped")
				})
			}
		}
	}
	if g.life == dead {
		env(false, func() { x.say("relay: "); x.closeRelay() })
	}
	for k := range c.Lanes {
		for slot := range c.Slots {
			if mayWrite(c, s, &s.lanes[k], slot) {
				env(false, func() { x.nic(k, slot) })
			}
		}
	}
}

// must takes a step, if there is one, that no other can spoil, and before which
// nothing else needs to happen: a sender hears that a fence is done, or that no
// copy reads a source any more. The sooner it does, the more can go wrong.
func (e *explorer) must(s *state, f func(bool, *Violation)) bool {
	for i := range e.cfg.Senders {
		l, w := &s.senders[i], &s.worlds[i]
		if w.life != alive || l.attached == 0 || l.run.action != 0 || l.parked != 0 {
			continue
		}
		if w.fence == confirmed {
			e.stepSender(s, i, &run{action: doMail}, f)
			return true
		}
		for slot := range e.cfg.Slots {
			if p := &l.flight[slot]; p.state == moved && p.flags&held != 0 && w.passed(i, p) {
				e.stepSender(s, i, &run{action: doSettle, param: uint8(slot)}, f)
				return true
			}
		}
		for k := range uint8(e.cfg.Pieces) {
			if p := l.lingering(i, k); l.linger&(1<<k) != 0 && w.passed(i, &p) {
				e.stepSender(s, i, &run{action: doLinger, param: k}, f)
				return true
			}
		}
	}
	return false
}

func (e *explorer) sender(s *state, i int, f func(bool, *Violation)) {
	if r := &s.senders[i].run; r.action != 0 {
		e.stepSender(s, i, r, f)
		return
	}
	// Two senders are alike until one has claimed: let it be the first.
	if i > 0 && int(s.shared.claims) == e.cfg.Epochs && s.senders[0].run.action == 0 && s.worlds[0].life == alive {
		return
	}
	start := func(action, param uint8) {
		if canSender(&e.cfg, s, i, action, param) {
			e.stepSender(s, i, &run{action: action, param: param}, f)
		}
	}
	for action := uint8(doClaim); action <= doSenderUnpark; action++ {
		switch action {
		case doSettle, doTakeBack, doTimeOut, doClose:
			for slot := range e.cfg.Slots {
				start(action, uint8(slot))
			}
		case doLinger:
			for k := range e.cfg.Pieces {
				start(action, uint8(k))
			}
		default:
			start(action, 0)
		}
	}
}

func (e *explorer) stepSender(s *state, i int, r *run, f func(bool, *Violation)) {
	e.next = *s
	t := &e.tx
	t.reset(&e.next, r)
	t.i, t.l = i, s.senders[i]
	t.l.run = run{}
	t.end = e.ends[i][t.l.lane]
	if t.l.blind != 0 {
		t.end = e.blind[i]
	}
	t.faults = s.shared.cut != 0 && t.l.blind == 0
	t.end.Restore(e.unpack(t.l.tx[:3+2*e.cfg.Slots]))
	if t.trace {
		t.said = fmt.Sprintf("sender %d, %s:", i+1, senderActions[r.action])
	}
	switch e.runAction(t.act) {
	case blocked:
		return
	case further:
		e.next.senders[i].run = t.run
	case fault: // it is left where it was
		t.say("fault")
		t.faulted()
		t.save()
	default:
		t.save()
	}
	f(r.done == 0 && asFault(s, r.action), t.bad)
}

// asFault reports whether an action must not be what ends a state's waiting.
func asFault(s *state, action uint8) bool {
	return action == doTakeBack || action == doTimeOut || action == doSuspect && s.shared.life == alive && s.shared.cut == 0
}

func (e *explorer) relay(s *state, f func(bool, *Violation)) {
	if r := &s.relay.run; r.action != 0 {
		e.stepRelay(s, r, f)
		return
	}
	start := func(action, param uint8) {
		if canRelay(&e.cfg, s, action, param) {
			e.stepRelay(s, &run{action: action, param: param}, f)
		}
	}
	for action := uint8(doPoll); action <= doRelayUnpark; action++ {
		switch action {
		case doPoll, doPollFail:
			for k := range e.cfg.Lanes {
				for n := range e.cfg.Slots {
					start(action, uint8(k*maxSlots+n))
				}
			}
		case doStop, doExit, doRelayPark, doRelayUnpark:
			start(action, 0)
		default:
			for k := range e.cfg.Lanes {
				start(action, uint8(k))
			}
		}
	}
}

func (e *explorer) stepRelay(s *state, r *run, f func(bool, *Violation)) {
	e.next = *s
	t := &e.rx
	t.reset(&e.next, r)
	t.l = s.relay
	t.l.run = run{}
	for k := range e.cfg.Lanes {
		e.lanes[k].Restore(e.unpack(t.l.lanes[k].rx[:]))
	}
	t.ends = &e.lanes
	k := int(r.param)
	if r.action == doPoll || r.action == doPollFail {
		k /= maxSlots
	}
	t.use(k)
	if t.trace {
		t.said = fmt.Sprintf("relay, %s, lane %d:", relayActions[r.action], k)
	}
	switch e.runAction(t.act) {
	case blocked:
		return
	case further:
		e.next.relay.run = t.run
	default:
		for k := range e.cfg.Lanes {
			pack(t.l.lanes[k].rx[:], e.lanes[k].Snapshot(e.words[:0]))
		}
		e.next.relay = t.l
	}
	f(r.action == doStop, t.bad)
}

// runAction runs an action up to its next access, and reports why it was given
// up, or nothing if it ended.
func (e *explorer) runAction(act func()) (why stop) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case stop:
			why = r
		default:
			panic(r)
		}
	}()
	act()
	return ""
}

// pack turns a snapshot into bytes.
func pack(to []uint8, words []uint64) {
	for i, w := range words {
		to[i] = uint8(w)
	}
}

// unpack turns bytes into the words of a snapshot.
func (e *explorer) unpack(from []uint8) []uint64 {
	for i, b := range from {
		e.words[i] = uint64(b)
	}
	return e.words[:len(from)]
}

// trace says how a state is reached, and one step more unless it is 0.
func (e *explorer) trace(id uint32, more uint8) []string {
	var steps []uint8
	if more != 0 {
		steps = append(steps, more)
	}
	for ; id != 0; id = e.from[id] {
		steps = append(steps, e.by[id])
	}
	e.x.trace = true
	defer func() { e.x.trace = false }()
	s := e.first()
	var said []string
	for n := len(steps) - 1; n >= 0; n-- {
		var to state
		var what string
		step := uint8(0)
		e.expand(&s, func(bool, *Violation) {
			if step++; step == steps[n] {
				to, what = e.next, e.x.said
			}
		})
		s = to
		said = append(said, what)
	}
	return said
}
