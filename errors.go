package railhop

import (
	"fmt"
	"strings"

	"github.com/railhop/railhop/internal/xfer"
)

// The words of a transfer, and Mooncake's numbers for them.
type (
	// Request moves Length bytes between Source, an address in this process, and
	// TargetAddr, an address in the process that serves Target.
	Request = xfer.Request
	// Opcode is [Read] or [Write].
	Opcode = xfer.Opcode
	// Status is the state of a task or a batch.
	Status = xfer.Status
	// SegmentID names an opened segment within one engine.
	SegmentID = xfer.SegmentID
	// Code is one of Mooncake's error numbers. Errors of this package wrap one
	// where there is one; find it with [errors.As].
	Code = xfer.Code
	// Reason says why bytes did not take the relay, or took it by slower means.
	Reason = xfer.Reason
)

const (
	Read  = xfer.Read
	Write = xfer.Write

	Waiting   = xfer.Waiting
	Pending   = xfer.Pending
	Invalid   = xfer.Invalid
	Canceled  = xfer.Canceled
	Completed = xfer.Completed
	Timeout   = xfer.Timeout
	Failed    = xfer.Failed

	// LocalSegment is the engine's own memory.
	LocalSegment = xfer.LocalSegment
	// InvalidSegment is no segment.
	InvalidSegment = xfer.InvalidSegment
)

// Codes on which a caller may act.
const (
	ErrInvalidArgument   = xfer.ErrInvalidArgument
	ErrTooManyRequests   = xfer.ErrTooManyRequests
	ErrAddressNotFound   = xfer.ErrAddressNotFound
	ErrBatchBusy         = xfer.ErrBatchBusy
	ErrDeviceNotFound    = xfer.ErrDeviceNotFound
	ErrAddressOverlapped = xfer.ErrAddressOverlapped
	ErrMetadata          = xfer.ErrMetadata
	ErrRejectedHandshake = xfer.ErrRejectedHandshake
	ErrSocket            = xfer.ErrSocket
	ErrDNS               = xfer.ErrDNS
)

// Range is a part of a target's memory.
type Range struct {
	Segment string
	Addr    uint64
	Length  uint64 // bytes
}

// MayLandError is returned when a deadline has passed and the ways could not all
// be closed in time: bytes may still be written to the ranges, until the stats
// no longer list them.
type MayLandError struct {
	Ranges []Range
	Cause  error
}

func (e *MayLandError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "railhop: %v; may still land:", e.Cause)
	for i, r := range e.Ranges {
		if i == 4 {
			fmt.Fprintf(&b, " and %d more ranges", len(e.Ranges)-i)
			break
		}
		fmt.Fprintf(&b, " %s [%#x, %#x)", r.Segment, r.Addr, r.Addr+r.Length)
	}
	return b.String()
}

// Unwrap returns the cause, such as [context.DeadlineExceeded].
func (e *MayLandError) Unwrap() error { return e.Cause }
