package tcp

import (
	"encoding/binary"
	"fmt"

	"github.com/railhop/railhop/internal/xfer"
)

// A request is a header of 24 bytes, SessionHeader of Mooncake's
// tcp_transport_session_impl.h: size and addr, 8 bytes each, little endian; the
// opcode; 7 bytes of padding. A write's payload follows. What is answered:
//
//	        write             read
//	v1      nothing           payload
//	v2      status            status, payload
//
// A v1 write is followed here by a read of its last byte, since its answer
// is the only proof that the peer has taken the write.
const (
	headerSize = 24
	statusSize = 8

	flagV2 = 0x80 // of the opcode

	statusMagic    = 0x4d435456 << 32 // "MCTV"
	statusOK       = statusMagic
	statusRejected = statusMagic | 1
)

type header struct {
	size, addr uint64
	write, v2  bool
}

func (h header) put(b *[headerSize]byte) {
	binary.LittleEndian.PutUint64(b[0:], h.size)
	binary.LittleEndian.PutUint64(b[8:], h.addr)
	op := uint64(xfer.Read)
	if h.write {
		op = uint64(xfer.Write)
	}
	if h.v2 {
		op |= flagV2
	}
	binary.LittleEndian.PutUint64(b[16:], op)
}

// parseHeader takes any opcode but 1 for a read, as Mooncake does.
func parseHeader(b []byte) header {
	_ = b[headerSize-1]
	return header{
		size:  binary.LittleEndian.Uint64(b[0:]),
		addr:  binary.LittleEndian.Uint64(b[8:]),
		write: b[16]&^flagV2 == byte(xfer.Write),
		v2:    b[16]&flagV2 != 0,
	}
}

// checkStatus returns nil for the frame that says OK.
func checkStatus(b *[statusSize]byte) error {
	s := binary.LittleEndian.Uint64(b[:])
	switch {
	case s == statusOK:
		return nil
	case s == statusRejected:
		return &refusedError{code: 1}
	case s>>32 == statusMagic>>32:
		return &refusedError{code: uint32(s)}
	}
	return fmt.Errorf("tcp: the peer does not speak the protocol: % x for a status: %w", b[:], xfer.ErrSocket)
}

// refusedError is a status that says no.
type refusedError struct{ code uint32 }

func (e *refusedError) Error() string {
	if e.code == 1 {
		return "tcp: the peer refuses the range: it is in no single buffer that it has registered"
	}
	return fmt.Sprintf("tcp: the peer refuses the request: status %d", e.code)
}

func (e *refusedError) Unwrap() error { return xfer.ErrAddressNotFound }

// UnprovenError ends a write that was stopped without a proof that the peer has left
// the memory.
type UnprovenError struct {
	Segment      string
	Addr, Length uint64
	Why          string
	Cause        error
}

func (e *UnprovenError) Error() string {
	return fmt.Sprintf("tcp: %v; %d bytes at %#x of %s may still land: %s", e.Cause, e.Length, e.Addr, e.Segment, e.Why)
}

func (e *UnprovenError) Unwrap() error { return e.Cause }
