package lane

import (
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// Relay is the serving end of a lane.
type Relay struct {
	mem   Mem
	g     Geometry
	rails int

	epoch     uint64 // the sender epoch adopted, 0 if none
	next      uint64 // sequence of the next piece to take
	completed uint64 // highest completed
	stored    uint64 // value of the completed word
}

// NewRelay returns the serving end of a lane of a rank with so many rails.
func NewRelay(mem Mem, g Geometry, rails int) *Relay {
	return &Relay{mem: mem, g: g, rails: rails}
}

// Epoch is the sender epoch adopted, 0 if none.
func (r *Relay) Epoch() uint64 { return r.epoch }

// Adopt takes up the lane's sender, if it is ready, and starts at sequence 1 if
// it is another one than before. It reports the state of the lane. The owner
// adopts only when nothing of an earlier sender is under way.
func (r *Relay) Adopt() (state uint32) {
	state = uint32(r.mem.Load(Word{State, 0}))
	if state != shmabi.LaneReady {
		return state
	}
	if e := r.mem.Load(Word{SenderEpoch, 0}); e != 0 && e != r.epoch {
		r.epoch, r.next, r.completed, r.stored = e, 1, 0, 0
	}
	return state
}

// Held reports whether somebody has the lane, or is claiming it.
func (r *Relay) Held() bool { return r.mem.Load(Word{State, 0}) != uint64(shmabi.LaneFree) }

// Released reports whether the adopted sender has given the lane back.
func (r *Relay) Released() bool {
	return r.epoch != 0 && r.mem.Load(Word{SenderEpoch, 0}) != r.epoch
}

// Offer is what the relay finds at the next sequence.
type Offer uint8

const (
	Nothing Offer = iota // no bytes yet
	Piece                // a piece to be claimed
	Revoked              // taken back: complete it as such
	Broken               // no sequence of this lane: complete it as invalid
)

// Look says what is at the next sequence. It claims nothing.
func (r *Relay) Look() (seq uint64, o Offer) {
	seq = r.next
	if r.epoch == 0 || r.mem.Load(Word{Doorbell, 0}) < seq || seq-r.completed > uint64(r.g.Slots) {
		return seq, Nothing
	}
	switch r.mem.Load(Word{Commit, uint8(r.g.Slot(seq))}) {
	case seq:
		return seq, Piece
	case 0:
		return seq, Revoked
	}
	return seq, Broken
}

// Peek copies what routes the piece that Look found: the rail, the session and
// the first span. It may still change; nothing in it may be acted on but by
// looking things up. It reports false if it cannot be valid.
func (r *Relay) Peek(seq uint64, b *Body) bool {
	return r.mem.GetHead(r.g.Slot(seq), b)
}

// Claim takes the piece that Look found. It reports false if the sender has
// revoked it meanwhile. After it the piece is this relay's alone, and its
// descriptor does not change under an honest sender.
func (r *Relay) Claim(seq uint64) bool {
	return r.mem.CompareAndSwap(Word{Commit, uint8(r.g.Slot(seq))}, seq, seq|shmabi.Claimed)
}

// Read copies the claimed piece's descriptor, once, into b, and checks the copy.
func (r *Relay) Read(seq uint64, b *Body) error {
	if !r.mem.GetBody(r.g.Slot(seq), b) {
		return xfer.ErrInvalidArgument
	}
	return b.check(r.g, r.epoch, r.rails)
}

// Pass goes on to the next sequence. The one passed must be completed in turn.
func (r *Relay) Pass() { r.next++ }

// Oldest is the sequence that has to be completed next, and false if nothing is
// under way.
func (r *Relay) Oldest() (seq uint64, ok bool) {
	return r.completed + 1, r.completed+1 < r.next
}

// Complete commits the completion of the oldest piece under way.
func (r *Relay) Complete(status xfer.Code) {
	seq := r.completed + 1
	slot := uint8(r.g.Slot(seq))
	r.mem.Store(Word{DoneStatus, slot}, uint64(uint32(status)))
	r.mem.Store(Word{DoneCommit, slot}, seq)
	r.completed = seq
}

// Flush stores how far completions go, once a step. It reports whether that has
// changed, so that the sender wants waking.
func (r *Relay) Flush() bool {
	if r.stored == r.completed {
		return false
	}
	r.stored = r.completed
	r.mem.Store(Word{Completed, 0}, r.completed)
	return true
}

// Underway reports whether the sender has committed pieces that are not
// completed: their bytes may come in without anybody ringing.
func (r *Relay) Underway() bool {
	return r.epoch != 0 && r.mem.Load(Word{Head, 0}) > r.completed
}

// Free makes the lane free for the next sender. The caller knows that the
// sender is closed, or has released the lane, and that nothing is under way.
func (r *Relay) Free() {
	for _, k := range [...]Kind{Attached, SenderEpoch, Head, Doorbell, Completed} {
		r.mem.Store(Word{k, 0}, 0)
	}
	for i := range r.g.Slots {
		r.mem.Store(Word{Commit, uint8(i)}, 0)
		r.mem.Store(Word{DoneCommit, uint8(i)}, 0)
	}
	r.epoch, r.next, r.completed, r.stored = 0, 0, 0, 0
	r.mem.Store(Word{State, 0}, uint64(shmabi.LaneFree))
}
