package lane

import (
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// Sender is the filling end of a lane.
type Sender struct {
	mem   Mem
	g     Geometry
	epoch uint64

	next   uint64 // sequence of the next piece
	reaped uint64 // highest whose slot is free again
	used   []used
	body   Body // scratch, so that Prepare allocates nothing
}

// used is what a slot's descriptor holds, to be zeroed by its next use.
type used struct{ plans, session int }

// NewSender returns the filling end of a lane that was claimed under epoch and
// has not been used yet.
func NewSender(mem Mem, g Geometry, epoch uint64) *Sender {
	return &Sender{mem: mem, g: g, epoch: epoch, next: 1, used: make([]used, g.Slots)}
}

// Room reports whether a slot is free.
func (s *Sender) Room() bool {
	return s.next-s.reaped <= uint64(s.g.Slots) && s.next <= shmabi.MaxSequence
}

// Exhausted reports whether the lane must be given up for a new one.
func (s *Sender) Exhausted() bool { return s.next > shmabi.MaxSequence }

// Next is the sequence of the next piece.
func (s *Sender) Next() uint64 { return s.next }

// Reaped is the highest sequence whose slot has come back.
func (s *Sender) Reaped() uint64 { return s.reaped }

// InFlight is how many pieces are committed and not reaped.
func (s *Sender) InFlight() int { return int(s.next - 1 - s.reaped) }

// Prepare writes the descriptor of the next piece, without committing it. The
// caller has checked [Sender.Room], and that the plans are sound: the relay refuses
// others. It does not keep session or plans.
func (s *Sender) Prepare(rail uint32, session []byte, plans []shmabi.Plan, length uint32) error {
	slot := s.g.Slot(s.next)
	b := &s.body
	*b = Body{Epoch: s.epoch, Length: length, RailIndex: rail, Session: session, Plans: plans}
	defer func() { b.Session, b.Plans = nil, nil }()
	if err := b.checkHead(s.g, s.epoch, shmabi.MaxRails); err != nil {
		return err
	}
	u := &s.used[slot]
	s.mem.PutBody(slot, b, u.plans, u.session)
	u.plans, u.session = len(plans), len(session)
	return nil
}

// Commit offers the prepared piece to the relay and returns its sequence. From
// here on the piece ends by a completion, whatever else happens to it.
func (s *Sender) Commit() uint64 {
	seq := s.next
	s.mem.Store(Word{Commit, uint8(s.g.Slot(seq))}, seq)
	s.mem.Store(Word{Head, 0}, seq)
	s.next++
	return seq
}

// Ring stores the doorbell from the CPU. Sequences must rise.
func (s *Sender) Ring(seq uint64) { s.mem.Store(Word{Doorbell, 0}, seq) }

// Rung is the highest sequence whose bytes are in their slot, as far as the
// doorbell says.
func (s *Sender) Rung() uint64 { return s.mem.Load(Word{Doorbell, 0}) }

// Revoke takes a committed piece back. It reports false if the relay has claimed
// it: then only its completion, or the proof that its way is closed, ends it.
func (s *Sender) Revoke(seq uint64) bool {
	return s.mem.CompareAndSwap(Word{Commit, uint8(s.g.Slot(seq))}, seq, 0)
}

// Claimed reports whether the relay has claimed a committed piece.
func (s *Sender) Claimed(seq uint64) bool {
	return s.mem.Load(Word{Commit, uint8(s.g.Slot(seq))}) == seq|shmabi.Claimed
}

// Reap takes the completion of the oldest piece in flight, if it is there, and
// frees its slot.
func (s *Sender) Reap() (seq uint64, status xfer.Code, ok bool) {
	seq = s.reaped + 1
	if seq >= s.next {
		return 0, 0, false
	}
	slot := uint8(s.g.Slot(seq))
	if s.mem.Load(Word{DoneCommit, slot}) != seq {
		return 0, 0, false
	}
	status = xfer.Code(int32(uint32(s.mem.Load(Word{DoneStatus, slot}))))
	s.reaped = seq
	return seq, status, true
}

// Torn reports whether the relay says that it has completed the oldest piece in flight,
// and the completion is not there: somebody else writes to the lane, and it may never be.
func (s *Sender) Torn() bool {
	seq := s.reaped + 1
	// In this order: the relay stores the completion first.
	return seq < s.next && s.mem.Load(Word{Completed, 0}) >= seq && s.mem.Load(Word{DoneCommit, uint8(s.g.Slot(seq))}) != seq
}

// Attach tells the owner that the arena is mapped, or is about to be.
func (s *Sender) Attach() { s.mem.Store(Word{Attached, 0}, 1) }

// Release gives the lane back to its owner, who frees it. The caller has drained
// its stream and closed its import; nothing may be in flight.
func (s *Sender) Release() {
	s.mem.Store(Word{Attached, 0}, 0)
	s.mem.Store(Word{SenderEpoch, 0}, 0)
}

// Blind makes the lane forget its memory, which is gone: nothing is stored any
// more, nothing is ever completed, and no piece can be revoked.
func (s *Sender) Blind() { s.mem = void{} }

// void is memory that is not there.
type void struct{}

func (void) Load(Word) uint64                         { return 0 }
func (void) Store(Word, uint64)                       {}
func (void) CompareAndSwap(Word, uint64, uint64) bool { return false }
func (void) PutBody(int, *Body, int, int)             {}
func (void) GetBody(int, *Body) bool                  { return false }
func (void) GetHead(int, *Body) bool                  { return false }
