// Package segment knows which memory exists where: what this process has
// registered ([Local]), and what other processes say they have ([Desc], kept
// fresh by [Remote] and found by name in [Cache]).
//
// It answers, for an address range, which buffers hold it, with which keys, and
// through which NICs it is best reached. It registers nothing with a NIC, opens no
// connection, and chooses no path.
//
//	Local ── Cover ──> pieces of the source, a local key each
//	  └──── Encoded ─> the descriptor that peers fetch
//	Cache ── Open ───> Remote ── Desc ──> Select ──> a device, a remote key
//
// Readers see immutable snapshots behind atomic pointers, and neither lock nor
// allocate; writers take a mutex and replace the snapshot. All types may be used by
// any goroutine but for [Cursor]. A Cache runs one goroutine for each fetch.
package segment

import (
	"fmt"

	"github.com/railhop/railhop/internal/xfer"
)

// NotCoveredError is an address that lies in no registered buffer. [errors.As]
// finds it as [xfer.ErrAddressNotFound] too.
type NotCoveredError struct {
	Segment      string // the target's name; "" is this process
	Addr, Length uint64 // the range asked for
	Missing      uint64 // its first address without a buffer
	Nearest      Range  // the buffer nearest to Missing; zero if there is none at all
}

// Range is the memory from Addr up to, but without, End.
type Range struct{ Addr, End uint64 }

func (e *NotCoveredError) Error() string {
	owner := "this process"
	if e.Segment != "" {
		owner = fmt.Sprintf("%.256q", e.Segment)
	}
	msg := fmt.Sprintf("segment: address %#x is in no buffer that %s has registered", e.Missing, owner)
	if e.Missing != e.Addr || e.Length > 1 {
		msg += fmt.Sprintf(" (range of %d bytes at %#x)", e.Length, e.Addr)
	}
	switch n := e.Nearest; {
	case n == Range{}:
		return msg + "; it has registered none"
	case e.Missing < n.Addr:
		return msg + fmt.Sprintf("; the nearest, [%#x, %#x), begins %d bytes above", n.Addr, n.End, n.Addr-e.Missing)
	default:
		return msg + fmt.Sprintf("; the nearest, [%#x, %#x), ends %d bytes below", n.Addr, n.End, e.Missing-n.End)
	}
}

func (e *NotCoveredError) Unwrap() error { return xfer.ErrAddressNotFound }

// nearest returns the range among sorted ones that is closest to addr, which is in
// none of them.
func nearest(n int, at func(i int) Range, above int, addr uint64) Range {
	switch {
	case n == 0:
		return Range{}
	case above == 0:
		return at(0)
	case above == n:
		return at(n - 1)
	}
	lo, hi := at(above-1), at(above)
	if addr-lo.End < hi.Addr-addr {
		return lo
	}
	return hi
}

// badRange is the error for a range that runs over the end of the address space.
func badRange(addr, length uint64) error {
	return fmt.Errorf("segment: range of %d bytes at %#x runs over the end of the address space: %w", length, addr, xfer.ErrInvalidArgument)
}
