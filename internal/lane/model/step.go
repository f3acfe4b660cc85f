package model

import (
	"fmt"

	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// step runs one action up to its next access. What it changes is s, a copy of the
// state before.
type step struct {
	cfg     *Config
	s       *state
	run     run // of the action, as it goes on
	i, j    uint8
	did     bool // the one access was made
	faults  bool // the next one does
	live    bool // what runs now runs for the first time
	later   struct{ slot, status uint8 }
	putting uint8      // sequence whose descriptor is being written
	freeing bool       // the lane is the owner's alone
	words   [16]uint64 // scratch
	bad     *Violation
	trace   bool
	said    string
}

// A run is given up by a panic with one of these.
type stop string

const (
	further stop = "one access further"
	blocked stop = "the access would block"
	fault   stop = "the memory is gone"
)

func (x *step) reset(s *state, r *run) {
	x.s, x.run, x.i, x.j = s, *r, 0, 0
	x.faults = false
	x.did, x.live, x.bad, x.said, x.freeing = false, r.done == 0, nil, "", false
}

// turn is called before each access: it reports whether the access is to be made
// now, and not answered from the record.
func (x *step) turn() bool {
	if x.i < x.run.done {
		x.i++
		return false
	}
	if x.faults {
		panic(fault)
	}
	if x.did {
		panic(further)
	}
	x.did, x.live = true, true
	x.i++
	x.run.done++
	return true
}

func (x *step) recorded() uint8 {
	v := x.run.record[x.j]
	x.j++
	return v
}

func (x *step) keep(v uint8) uint8 {
	x.run.record[x.j] = v
	x.j++
	x.run.read = x.j
	return v
}

// read is an access with a result.
func (x *step) read(what string, f func(s *state) uint8) uint8 {
	if !x.turn() {
		return x.recorded()
	}
	v := x.keep(f(x.s))
	if x.trace {
		x.say("%s = %s", what, show(v))
	}
	return v
}

// write is an access without one.
func (x *step) write(what string, f func(s *state)) {
	if !x.turn() {
		return
	}
	f(x.s)
	if x.trace {
		x.say("%s", what)
	}
}

// lock is an access that waits until it can be made.
func (x *step) lock(holder uint8) {
	if x.turn() {
		if x.s.shared.flock != 0 {
			panic(blocked)
		}
		x.s.shared.flock = holder
		x.say("flock")
	}
}

func (x *step) unlock() { x.write("unlock", func(s *state) { s.shared.flock = 0 }) }

// sample reads something along with the access before.
func (x *step) sample(f func(s *state) uint8) uint8 {
	if x.j < x.run.read {
		return x.recorded()
	}
	return x.keep(f(x.s))
}

// effect changes something along with the access before, once.
func (x *step) effect(f func(s *state)) {
	if x.live {
		f(x.s)
	}
}

// privately changes what nobody else can access at the time: no step, unless
// every access is to be one.
func (x *step) privately(what string, f func(s *state)) {
	if x.cfg.Fine {
		x.write(what, f)
		return
	}
	x.effect(f)
	if x.live {
		x.say("%s", what)
	}
}

func (x *step) fail(property, format string, args ...any) {
	if x.bad == nil {
		x.bad = &Violation{Property: property, Detail: fmt.Sprintf(format, args...)}
	}
}

func (x *step) say(format string, args ...any) {
	if !x.trace {
		return
	}
	if x.said != "" {
		x.said += "; "
	}
	x.said += fmt.Sprintf(format, args...)
}

func show(v uint8) string {
	if v&claimBit != 0 {
		return fmt.Sprintf("%d claimed", v&^claimBit)
	}
	return fmt.Sprint(v)
}

const claimBit = 0x80

// statuses are the codes that a completion can have here.
var statuses = [...]xfer.Code{xfer.OK, xfer.ErrRevoked, xfer.ErrEndpoint, xfer.ErrInvalidArgument}

const (
	statusOK = iota
	statusRevoked
	statusEndpoint
	statusInvalid
)

func statusIndex(c xfer.Code) uint8 {
	for i, s := range statuses {
		if s == c {
			return uint8(i)
		}
	}
	panic(fmt.Sprintf("model: status %v", c))
}

func toByte(v uint64) uint8 {
	b := uint8(v & 0x7f)
	if v&shmabi.Claimed != 0 {
		b |= claimBit
	}
	return b
}

func fromByte(b uint8) uint64 {
	v := uint64(b &^ claimBit)
	if b&claimBit != 0 {
		v |= shmabi.Claimed
	}
	return v
}

// mem is a lane's memory as the real code sees it.
type mem struct {
	x    *step
	lane int
}

var kinds = [...]string{"state", "attached", "sender epoch", "head", "doorbell", "completed", "commit", "completion", "status"}

func (m mem) name(w lane.Word) string {
	if !m.x.trace {
		return ""
	}
	if w.Kind >= lane.Commit {
		return fmt.Sprintf("lane %d %s[%d]", m.lane, kinds[w.Kind], w.Slot)
	}
	return fmt.Sprintf("lane %d %s", m.lane, kinds[w.Kind])
}

func (m mem) word(s *state, w lane.Word) *uint8 {
	l := &s.lanes[m.lane]
	switch w.Kind {
	case lane.State:
		return &l.state
	case lane.Attached:
		return &l.attached
	case lane.SenderEpoch:
		return &l.epoch
	case lane.Head:
		return &l.head
	case lane.Doorbell:
		return &l.bell
	case lane.Completed:
		return &l.completed
	case lane.Commit:
		return &l.commit[w.Slot]
	case lane.DoneCommit:
		return &l.doneSeq[w.Slot]
	}
	return &l.doneStatus[w.Slot]
}

// Load implements [lane.Mem].
func (m mem) Load(w lane.Word) uint64 {
	var v uint8
	if m.private(w) || w.Kind == lane.Doorbell && !m.x.cfg.Fine && !m.x.cfg.Park {
		// The doorbell only rises: to find it lower is to have looked before.
		v = m.x.sample(func(s *state) uint8 { return *m.word(s, w) })
	} else {
		v = m.x.read(m.name(w), func(s *state) uint8 { return *m.word(s, w) })
	}
	if w.Kind == lane.DoneStatus {
		return uint64(uint32(statuses[v]))
	}
	return fromByte(v)
}

// Store implements [lane.Mem].
func (m mem) Store(w lane.Word, v uint64) {
	b := toByte(v)
	if w.Kind == lane.DoneStatus {
		b = statusIndex(xfer.Code(int32(uint32(v))))
		if m.x.cfg.Bug == SequenceFirst {
			m.x.later.slot, m.x.later.status = w.Slot, b
			return
		}
	}
	m.store(w, b)
	if w.Kind == lane.DoneCommit && v != 0 && m.x.cfg.Bug == SequenceFirst {
		m.store(lane.Word{Kind: lane.DoneStatus, Slot: m.x.later.slot}, m.x.later.status)
	}
}

func (m mem) store(w lane.Word, b uint8) {
	name := m.name(w)
	if m.x.trace {
		name += " <- " + show(b)
	}
	if m.private(w) {
		m.x.privately(name, func(s *state) { *m.word(s, w) = b })
	} else {
		m.x.write(name, func(s *state) { *m.word(s, w) = b })
	}
}

// private reports whether nobody else can access a word now, so that when it is
// accessed makes no difference: there is no reader (attached, completed, and head
// unless pumps sleep);
// it follows another word (a completion's status is the relay's until its
// sequence is stored, and the sender's until he has reaped it); or the lane is
// being freed. That this is so is checked where ownership changes hands: see
// mem.PutBody, mem.GetBody and rx.free.
func (m mem) private(w lane.Word) bool {
	if m.x.cfg.Fine {
		return false
	}
	switch w.Kind {
	case lane.Attached, lane.Completed, lane.DoneStatus:
		return true
	case lane.Head:
		return !m.x.cfg.Park
	case lane.State:
		return false
	}
	return m.x.freeing
}

// CompareAndSwap implements [lane.Mem].
func (m mem) CompareAndSwap(w lane.Word, from, to uint64) bool {
	name := m.name(w)
	if m.x.trace {
		name = fmt.Sprintf("%s %s -> %s", name, show(toByte(from)), show(toByte(to)))
	}
	return m.x.read(name, func(s *state) uint8 {
		p := m.word(s, w)
		if *p != toByte(from) {
			return 0
		}
		*p = toByte(to)
		return 1
	}) == 1
}

// A piece's id is in its destination and in its length: if a body is torn, they
// do not match, and the relay's check refuses it.
const bodyBase = 100

func spanOf(id uint8) shmabi.Plan {
	return shmabi.Plan{Dest: uint64(id) << 16, Length: bodyBase + uint64(id)}
}

// PutBody implements [lane.Mem].
func (m mem) PutBody(slot int, b *lane.Body, _, _ int) {
	m.x.privately("front of the descriptor", func(s *state) {
		l := &s.lanes[m.lane]
		if old := m.x.putting - min(m.x.putting, uint8(m.x.cfg.Slots)); old != 0 && l.doneSeq[slot] != old {
			m.x.fail("slot", "sequence %d is put into slot %d before sequence %d was completed", m.x.putting, slot, old)
		}
		l.bodyEpoch[slot], l.bodyFront[slot] = uint8(b.Epoch), uint8(b.Length-bodyBase)
	})
	m.x.privately("back of the descriptor", func(s *state) {
		s.lanes[m.lane].bodyBack[slot] = uint8(b.Plans[0].Dest >> 16)
	})
}

// GetBody implements [lane.Mem].
func (m mem) GetBody(slot int, b *lane.Body) bool {
	read := m.x.read
	if !m.x.cfg.Fine {
		read = func(_ string, f func(*state) uint8) uint8 { return m.x.sample(f) }
	}
	front := read("front of the descriptor", func(s *state) uint8 { return s.lanes[m.lane].bodyFront[slot] })
	b.Epoch = uint64(m.x.sample(func(s *state) uint8 { return s.lanes[m.lane].bodyEpoch[slot] }))
	back := read("back of the descriptor", func(s *state) uint8 { return s.lanes[m.lane].bodyBack[slot] })
	b.Length, b.RailIndex = bodyBase+uint32(front), 0
	b.Session = append(b.Session[:0], session...)
	b.Plans = append(b.Plans[:0], spanOf(back))
	return true
}

// GetHead implements [lane.Mem]. What it reads is only looked up, so that it is
// no step.
func (m mem) GetHead(int, *lane.Body) bool { return true }

var session = []byte("target")
