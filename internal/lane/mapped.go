package lane

import "github.com/railhop/railhop/internal/shmabi"

// Mapped is a lane of a control block.
type Mapped struct{ lc *shmabi.LaneControl }

// Map returns the memory of lane i of a control block.
func Map(block *shmabi.ControlBlock, i int) Mapped { return Mapped{&block.Lanes[i]} }

// Load implements [Mem].
func (m Mapped) Load(w Word) uint64 {
	h := &m.lc.Header
	switch w.Kind {
	case State:
		return uint64(h.State.Load())
	case Attached:
		return uint64(h.ArenaAttached.Load())
	case SenderEpoch:
		return h.SenderEpoch.Load()
	case Head:
		return h.Head.Load()
	case Doorbell:
		return h.Doorbell.Load()
	case Completed:
		return h.Completed.Load()
	case Commit:
		return m.lc.Descriptors[w.Slot].Commit.Load()
	case DoneCommit:
		return m.lc.Completions[w.Slot].Commit.Load()
	default:
		return uint64(uint32(m.lc.Completions[w.Slot].Status.Load()))
	}
}

// Store implements [Mem].
func (m Mapped) Store(w Word, v uint64) {
	h := &m.lc.Header
	switch w.Kind {
	case State:
		h.State.Store(uint32(v))
	case Attached:
		h.ArenaAttached.Store(uint32(v))
	case SenderEpoch:
		h.SenderEpoch.Store(v)
	case Head:
		h.Head.Store(v)
	case Doorbell:
		h.Doorbell.Store(v)
	case Completed:
		h.Completed.Store(v)
	case Commit:
		m.lc.Descriptors[w.Slot].Commit.Store(v)
	case DoneCommit:
		m.lc.Completions[w.Slot].Commit.Store(v)
	default:
		m.lc.Completions[w.Slot].Status.Store(int32(uint32(v)))
	}
}

// CompareAndSwap implements [Mem]; only commit words are ever swapped.
func (m Mapped) CompareAndSwap(w Word, from, to uint64) bool {
	return m.lc.Descriptors[w.Slot].Commit.CompareAndSwap(from, to)
}

// PutBody implements [Mem].
func (m Mapped) PutBody(slot int, b *Body, wasPlans, wasSession int) {
	d := &m.lc.Descriptors[slot]
	d.Epoch = b.Epoch
	d.PieceLength = b.Length
	d.PlanCount = uint32(len(b.Plans))
	d.SessionLen = uint32(len(b.Session))
	d.RailIndex = b.RailIndex
	n := copy(d.Session[:], b.Session)
	if n < wasSession {
		clear(d.Session[n:wasSession])
	}
	n = copy(d.Plans[:], b.Plans)
	if n < wasPlans {
		clear(d.Plans[n:wasPlans])
	}
}

// GetBody implements [Mem].
func (m Mapped) GetBody(slot int, b *Body) bool {
	d := &m.lc.Descriptors[slot]
	plans, session := d.PlanCount, d.SessionLen
	if plans > shmabi.MaxSpans || session > shmabi.MaxSession {
		return false
	}
	b.Epoch = d.Epoch
	b.Length = d.PieceLength
	b.RailIndex = d.RailIndex
	b.Session = append(b.Session[:0], d.Session[:session]...)
	b.Plans = append(b.Plans[:0], d.Plans[:plans]...)
	return true
}

// GetHead implements [Mem].
func (m Mapped) GetHead(slot int, b *Body) bool {
	d := &m.lc.Descriptors[slot]
	plans, session := d.PlanCount, d.SessionLen
	if plans == 0 || plans > shmabi.MaxSpans || session == 0 || session > shmabi.MaxSession {
		return false
	}
	b.Epoch = d.Epoch
	b.Length = d.PieceLength
	b.RailIndex = d.RailIndex
	b.Session = append(b.Session[:0], d.Session[:session]...)
	b.Plans = append(b.Plans[:0], d.Plans[0])
	return true
}
