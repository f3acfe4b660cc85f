// Package lane joins one sending process to one relay on the same host.
//
// A lane is a part of the relay's control block and its slots in the relay's
// arena:
//
//	| header | 18 descriptors | 18 completions |      slot (seq-1) mod 18 -> 8 MiB
//
// The sender fills a descriptor, commits it by storing its sequence in the
// commit word, and rings the doorbell once the bytes are in the slot. The relay
// claims the piece by setting bit 63 of the commit word, sends it, and commits
// a completion, which returns the slot. Until it is claimed the sender can
// revoke a piece, by storing 0 over the sequence: whoever wins the commit word
// decides whether the piece may go another way.
//
// Each end belongs to one goroutine. Neither end trusts the other: whatever is
// read from the block is read once and checked. The package moves descriptors,
// not data, and wakes nobody: see path/pxn and relay. All access goes through
// [Mem], one method call an access, so that a model can run the real code step
// by step.
package lane

import (
	"errors"
	"fmt"

	"github.com/railhop/railhop/internal/shmabi"
)

// ErrExhausted is returned when the last sequence of a lane has been used.
var ErrExhausted = errors.New("lane: sequences are used up")

// Kind is one of the words of a lane.
type Kind uint8

const (
	State       Kind = iota // of the header
	Attached                // of the header
	SenderEpoch             // of the header
	Head                    // of the header
	Doorbell                // of the header
	Completed               // of the header
	Commit                  // of a descriptor
	DoneCommit              // of a completion
	DoneStatus              // of a completion
)

// Word names one word: a kind, and a slot where the kind has one for each.
type Word struct {
	Kind Kind
	Slot uint8
}

// Mem is the memory of a lane. Loads acquire, stores release, and the compare
// and swap does both.
type Mem interface {
	Load(Word) uint64
	Store(Word, uint64)
	CompareAndSwap(w Word, from, to uint64) bool
	// PutBody writes a descriptor's body with plain stores, and zeroes what was of
	// it before: wasPlans plans and wasSession bytes of the session.
	PutBody(slot int, b *Body, wasPlans, wasSession int)
	// GetBody copies a descriptor's body with plain loads, each word once, into b.
	// It reports false if the counts in it are impossible.
	GetBody(slot int, b *Body) bool
	// GetHead does the same for the fixed part and the first plan.
	GetHead(slot int, b *Body) bool
}

// Geometry is the shape of a lane.
type Geometry struct {
	Slots    int
	SlotSize uint64 // bytes
	MaxSpans int    // of a piece
}

// Offset is where slot of lane begins in the arena.
func (g Geometry) Offset(lane, slot int) uint64 {
	return uint64(lane*g.Slots+slot) * g.SlotSize
}

// Slot is the slot of a sequence.
func (g Geometry) Slot(seq uint64) int { return int((seq - 1) % uint64(g.Slots)) }

// Body is a descriptor without its commit word.
type Body struct {
	Epoch     uint64 // the lane's sender epoch
	Length    uint32 // bytes in the slot
	RailIndex uint32 // into the relay's list of rails
	Session   []byte // the target's segment name
	Plans     []shmabi.Plan
}

// check reports what is wrong with a body that a peer wrote.
func (b *Body) check(g Geometry, epoch uint64, rails int) error {
	if err := b.checkHead(g, epoch, rails); err != nil {
		return err
	}
	return b.checkPlans()
}

// checkHead is check for all but the plans.
func (b *Body) checkHead(g Geometry, epoch uint64, rails int) error {
	switch {
	case b.Epoch != epoch:
		return fmt.Errorf("lane: descriptor has epoch %#x, the lane has %#x", b.Epoch, epoch)
	case b.Length == 0 || uint64(b.Length) > g.SlotSize:
		return fmt.Errorf("lane: piece of %d bytes, a slot has %d", b.Length, g.SlotSize)
	case len(b.Plans) == 0 || len(b.Plans) > g.MaxSpans:
		return fmt.Errorf("lane: %d spans, want 1 to %d", len(b.Plans), g.MaxSpans)
	case len(b.Session) == 0 || len(b.Session) > shmabi.MaxSession:
		return fmt.Errorf("lane: session of %d bytes, want 1 to %d", len(b.Session), shmabi.MaxSession)
	case b.RailIndex >= uint32(rails):
		return fmt.Errorf("lane: rail %d of %d", b.RailIndex, rails)
	}
	return nil
}

func (b *Body) checkPlans() error {
	var sum uint64
	most := uint64(b.Length)
	for i := range b.Plans {
		// 0 - 1 is the greatest number: each comparison refuses 0 too.
		n, dest := b.Plans[i].Length, b.Plans[i].Dest
		if n-1 >= most || dest-1 >= ^n {
			return fmt.Errorf("lane: span %d of %d bytes at %#x is empty, too long or wraps", i, n, dest)
		}
		sum += n
	}
	if sum != uint64(b.Length) {
		return fmt.Errorf("lane: spans of %d bytes in a piece of %d", sum, b.Length)
	}
	return nil
}
