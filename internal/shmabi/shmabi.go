// Package shmabi is the layout of the control block: what ranks of one host see
// of each other in /dev/shm, byte for byte (docs/lane.md).
//
// It owns the structs, their sizes and offsets, the magic and the version, and
// the casts from mapped bytes. It takes no decisions; whoever reads a peer's
// word reads it once and checks it. All integers are little-endian.
//
//	| RegistryHeader 448 | LaneControl 1,186,624 | ... 7 in all |
//	LaneControl: | LaneHeader 64 | Descriptor 65,856 x 18 | Completion 64 x 18 |
package shmabi

import (
	"structs"
	"sync/atomic"
)

// Sizes and limits of the layout.
const (
	ABIVersion    = 1
	Lanes         = 7
	Slots         = 18 // of a lane
	MaxSpans      = 4096
	MaxSession    = 256 // bytes
	RailBytes     = 256
	MaxRails      = 16
	HandleBytes   = 64
	HeaderBytes   = 448
	ControlBytes  = 8_306_816
	LaneBytes     = 1_186_624
	DescriptorLen = 65_856
	DescriptorFix = 288 // bytes of a descriptor before its plans
	PlanLen       = 16
	MinSlotSize   = 256 << 10
	MaxSlotSize   = 8 << 20
)

// Magic opens every control block: the bytes "RAILHOP1".
const Magic uint64 = 'R' | 'A'<<8 | 'I'<<16 | 'L'<<24 | 'H'<<32 | 'O'<<40 | 'P'<<48 | '1'<<56

// MaxSequence is the last sequence of a lane; it never wraps.
const MaxSequence uint64 = 1<<63 - 1

// Claimed marks a commit word whose piece the relay has claimed.
const Claimed uint64 = 1 << 63

// States of a registry entry.
const (
	StateInitializing uint32 = 0
	StateReady        uint32 = 1
	StateStopping     uint32 = 2
)

// States of a lane.
const (
	LaneFree     uint32 = 0
	LaneClaiming uint32 = 1
	LaneReady    uint32 = 2
)

// FlagOff in RegistryHeader.Flags means that the rank's relay is switched off.
const FlagOff uint32 = 1 << 0

// LifeOwnerDied and LifeWaiters are the bits of the life word, a robust futex:
// the kernel sets the first when the owner's thread dies, waiters the second.
const (
	LifeOwnerDied uint32 = 0x40000000
	LifeWaiters   uint32 = 0x80000000
	LifeTIDMask   uint32 = 0x3fffffff
)

// Identity names a process on this host.
type Identity struct {
	_          structs.HostLayout
	UID        uint32
	PID        int32
	StartTicks uint64 // field 22 of /proc/<pid>/stat
}

// RegistryHeader opens the control block. The owner writes all of it, but for
// Wake and the waiters bit of Life, which any rank of the group may write.
type RegistryHeader struct {
	_            structs.HostLayout
	Magic        uint64
	ABIVersion   uint32
	HeaderBytes  uint32
	MappingBytes uint64
	State        atomic.Uint32
	RailBytes    uint32 // used bytes of Rail
	Owner        Identity
	Epoch        uint64        // random, not zero
	Heartbeat    atomic.Uint64 // monotonic ns; only whether it changes counts
	LaneCount    uint32
	SlotsPerLane uint32
	SlotSize     uint64
	ArenaSize    uint64
	HandleBytes  uint32
	RailCount    uint32
	Rail         [RailBytes]byte // RailCount names, each ended by NUL
	ArenaHandle  [HandleBytes]byte
	Life         atomic.Uint32
	Wake         atomic.Uint32
	BootIDHash   uint64
	PIDNamespace uint64
	Flags        atomic.Uint32
	_            uint32
}

// LaneHeader opens each lane: one sender's place in one relay. Head, Doorbell
// and Completed are sequences; 0 means none yet. Fields of different writers
// share a cache line, since the layout is fixed.
type LaneHeader struct {
	_             structs.HostLayout
	State         atomic.Uint32 // a claimer, under the entry's flock, leaves LaneFree; the owner alone returns to it
	ArenaAttached atomic.Uint32 // 1 while the sender maps the arena; written by the sender
	Sender        Identity      // valid while State is LaneReady; written by the sender
	SenderEpoch   atomic.Uint64 // likewise; 0 once the sender has released the lane
	Head          atomic.Uint64 // written by the sender: highest committed
	Doorbell      atomic.Uint64 // written by the sender's GPU, or its CPU: highest whose bytes are in the slot
	Completed     atomic.Uint64 // written by the owner: highest finished
	_             uint64
}

// Plan is the final destination of one span of a piece.
type Plan struct {
	_      structs.HostLayout
	Dest   uint64
	Length uint64
}

// Descriptor says what is in a slot and where it goes. The sender writes it; the
// claim bit of Commit is the owner's.
type Descriptor struct {
	_           structs.HostLayout
	Commit      atomic.Uint64 // the sequence once committed; 0 revoked; bit 63 the claim
	Epoch       uint64        // the lane's SenderEpoch
	PieceLength uint32
	PlanCount   uint32
	SessionLen  uint32
	RailIndex   uint32
	Session     [MaxSession]byte
	Plans       [MaxSpans]Plan
	_           [32]byte
}

// Completion is the owner's answer to a descriptor.
type Completion struct {
	_      structs.HostLayout
	Commit atomic.Uint64
	Status atomic.Int32
	_      uint32
	_      [48]byte
}

// LaneControl is one lane.
type LaneControl struct {
	_           structs.HostLayout
	Header      LaneHeader
	Descriptors [Slots]Descriptor
	Completions [Slots]Completion
}

// ControlBlock is the whole of a registry file.
type ControlBlock struct {
	_      structs.HostLayout
	Header RegistryHeader
	Lanes  [Lanes]LaneControl
}
