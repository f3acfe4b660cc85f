// Package xfer holds the words that all parts of railhop share: what a caller
// asks for, what becomes of it, and why it went the way it went.
//
// It depends on nothing and does nothing.
package xfer

import "fmt"

// Opcode says which way the bytes of a [Request] go. The numbers are
// Mooncake's (transport.h).
type Opcode uint8

const (
	Read  Opcode = 0 // from the target to this process
	Write Opcode = 1 // from this process to the target
)

func (o Opcode) String() string {
	switch o {
	case Read:
		return "read"
	case Write:
		return "write"
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// Status is the state of a task or a batch. The numbers are Mooncake's
// (transport.h).
type Status int32

const (
	Waiting   Status = 0
	Pending   Status = 1
	Invalid   Status = 2
	Canceled  Status = 3
	Completed Status = 4
	Timeout   Status = 5
	Failed    Status = 6
)

var statusNames = [...]string{"waiting", "pending", "invalid", "canceled", "completed", "timeout", "failed"}

func (s Status) String() string {
	if s < 0 || int(s) >= len(statusNames) {
		return fmt.Sprintf("status %d", int32(s))
	}
	return statusNames[s]
}

// Done reports whether the status is final.
func (s Status) Done() bool { return s >= Invalid }

// SegmentID names an opened segment within one engine. It never travels.
type SegmentID uint64

const (
	LocalSegment   SegmentID = 0
	InvalidSegment SegmentID = 1<<64 - 1
)

// Request moves Length bytes between Source, an address in this process, and
// TargetAddr, an address in the process that serves Target. Addresses may be
// of device memory.
type Request struct {
	Op         Opcode
	Source     uint64
	Target     SegmentID
	TargetAddr uint64
	Length     uint64 // bytes
}

// Span is one contiguous run of a write: Length bytes from Source here to Dest
// there.
type Span struct {
	Source uint64
	Dest   uint64
	Length uint64
}
