package sim

import (
	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/shmabi"
)

// Bug is a mistake that a run is made to have, to prove that it would be found.
type Bug uint8

const (
	NoBug       Bug = iota
	DropClaim       // the relay sends without marking the commit word
	DropRevoke      // the sender sends again although the relay has claimed
	NoFence         // a fence is taken for granted
	EarlyBell       // the doorbell rings before the bytes are in the slot
	EarlyDone       // the NIC reports success before the bytes have landed
	EarlyFlush      // the NIC reports a flush while bytes may still land
	EarlyEvent      // an event fires while the copy still reads its source
	KeptLane        // the owner forgets to free a lane
	StaleKey        // a NIC takes keys that are not valid any more
	SharedLane      // two senders get the same lane
	WrongSlot       // a copy goes to the next slot
	LostWake        // the other end is not rung
	EarlyCredit     // a slot is used again before the relay has completed it
	bugCount
)

var bugNames = [...]string{
	"none", "claim dropped", "revoke ignored", "fence skipped", "doorbell before copy", "completion before NIC done",
	"flush reported early", "source released before copy done", "lane not freed", "stale key accepted",
	"lane given twice", "wrong slot", "wake lost", "slot used again early",
}

func (b Bug) String() string { return bugNames[b] }

// Bugs lists all.
func Bugs() []Bug {
	var all []Bug
	for b := NoBug + 1; b < bugCount; b++ {
		all = append(all, b)
	}
	return all
}

// laneMem is an end's view of a lane. A zombie's has no effect.
type laneMem struct {
	lane.Mem
	p   *proc
	end railhop.End
}

// Load implements [lane.Mem].
func (m *laneMem) Load(x lane.Word) uint64 {
	if m.p.zombie() {
		return 0
	}
	if x.Kind >= lane.Head {
		m.p.w.interleave(m.p)
	}
	v := m.Mem.Load(x)
	if m.p.w.opts.Bug == EarlyCredit && m.end == railhop.SenderEnd && x.Kind == lane.DoneCommit && v == 0 {
		if c := m.Mem.Load(lane.Word{Kind: lane.Commit, Slot: x.Slot}); c&shmabi.Claimed != 0 {
			return c &^ shmabi.Claimed
		}
	}
	return v
}

// Store implements [lane.Mem].
func (m *laneMem) Store(x lane.Word, v uint64) {
	if m.p.zombie() || m.p.w.opts.Bug == KeptLane && m.end == railhop.RelayEnd && x.Kind == lane.State {
		return
	}
	m.Mem.Store(x, v)
	if x.Kind >= lane.Head {
		m.p.w.interleave(m.p)
	}
}

// CompareAndSwap implements [lane.Mem].
func (m *laneMem) CompareAndSwap(x lane.Word, from, to uint64) bool {
	if m.p.zombie() {
		return false
	}
	m.p.w.interleave(m.p)
	if m.p.w.opts.Bug == DropClaim && m.end == railhop.RelayEnd {
		return m.Mem.Load(x) == from
	}
	return m.Mem.CompareAndSwap(x, from, to) || m.p.w.opts.Bug == DropRevoke && m.end == railhop.SenderEnd
}

// PutBody implements [lane.Mem].
func (m *laneMem) PutBody(slot int, b *lane.Body, plans, session int) {
	if !m.p.zombie() {
		m.Mem.PutBody(slot, b, plans, session)
	}
}
