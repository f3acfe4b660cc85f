package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// Limits of a frame's length, which counts the type byte. The limit in force is
// that of the side that reads; MC_HANDSHAKE_MAX_LENGTH sets it.
const (
	DefaultMaxLength = 1 << 20
	LowestMaxLength  = 1 << 20
	HighestMaxLength = 128 << 20
)

// FrameProblem says what is wrong with a frame's length.
type FrameProblem uint8

const (
	EmptyFrame FrameProblem = iota + 1
	FrameTooLong
	HTTPProbe // an HTTP client found the port
	TLSProbe  // a TLS client found the port
	UnknownType
)

// FrameError is a frame that is refused before its body is read.
type FrameError struct {
	Problem FrameProblem
	Length  uint64 // as announced
	Limit   uint64 // in force
	Type    Type   // of UnknownType
}

func (e *FrameError) Error() string {
	switch e.Problem {
	case EmptyFrame:
		return "wire: frame of length 0"
	case HTTPProbe:
		return "wire: HTTP probe: an HTTP request on the handshake port"
	case TLSProbe:
		return "wire: TLS probe: a TLS hello on the handshake port"
	case UnknownType:
		return fmt.Sprintf("wire: unknown frame type %#x", uint8(e.Type))
	}
	return fmt.Sprintf("wire: message of %d bytes is over the reader's limit of %d bytes: raise MC_HANDSHAKE_MAX_LENGTH there (at most %d)",
		e.Length, e.Limit, HighestMaxLength)
}

// Frame is one message.
type Frame struct {
	Type Type
	// Typeless is the form before Mooncake 0.3.0: there is no type byte, Type is
	// [Connection], and the reply must have the same form.
	Typeless bool
	Body     []byte
}

// FrameLength is what a frame with this body announces as its length.
func FrameLength(body []byte) uint64 { return 1 + uint64(len(body)) }

// CheckLength fails with a [*FrameError] if a reader with this limit would refuse
// the body: whoever publishes a descriptor finds out before it is sent.
func CheckLength(body []byte, limit uint64) error { return CheckSize(len(body), limit) }

// CheckSize is [CheckLength] for a body of n bytes.
func CheckSize(n int, limit uint64) error {
	if length := 1 + uint64(n); length > limit {
		return &FrameError{Problem: FrameTooLong, Length: length, Limit: limit}
	}
	return nil
}

// AppendFrame appends f in one piece.
func AppendFrame(dst []byte, f Frame) []byte {
	return append(AppendFrameHead(dst, f), f.Body...)
}

// AppendFrameHead appends what goes before f's body.
func AppendFrameHead(dst []byte, f Frame) []byte {
	if f.Typeless {
		return binary.LittleEndian.AppendUint64(dst, uint64(len(f.Body)))
	}
	dst = binary.LittleEndian.AppendUint64(dst, FrameLength(f.Body))
	return append(dst, byte(f.Type))
}

// ReadFrame reads one frame whose announced length is at most limit. It checks
// the length before it allocates, and then allocates no more than twice what has
// arrived. It fails with a [*FrameError] or r's error; [io.EOF] means that
// nothing came at all.
func ReadFrame(r io.Reader, limit uint64) (Frame, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	n, err := checkHead(head, limit)
	if err != nil {
		return Frame{}, err
	}
	payload, err := readSome(r, n)
	if err != nil {
		return Frame{}, err
	}
	switch t := Type(payload[0]); {
	case t <= Probe || t == Fence:
		return Frame{Type: t, Body: payload[1:]}, nil
	case t < 0x80:
		return Frame{Type: Connection, Typeless: true, Body: payload}, nil
	default:
		return Frame{}, &FrameError{Problem: UnknownType, Type: t, Length: n, Limit: limit}
	}
}

func checkHead(head [8]byte, limit uint64) (uint64, error) {
	n := binary.LittleEndian.Uint64(head[:])
	e := &FrameError{Length: n, Limit: limit}
	switch {
	case n == 0:
		e.Problem = EmptyFrame
	case n <= limit:
		return n, nil
	case isHTTP(head[:]):
		e.Problem = HTTPProbe
	case head[0] == 0x16 && head[1] == 3 && head[2] <= 4:
		e.Problem = TLSProbe
	default:
		e.Problem = FrameTooLong
	}
	return 0, e
}

func isHTTP(head []byte) bool {
	for _, verb := range []string{"GET ", "PUT ", "POST ", "HEAD ", "PATCH ", "TRACE ", "DELETE ", "OPTIONS ", "CONNECT ", "PRI * HT"} {
		if bytes.HasPrefix(head, []byte(verb)) {
			return true
		}
	}
	return false
}

// readSome reads n bytes, growing the buffer as they come.
func readSome(r io.Reader, n uint64) ([]byte, error) {
	const first = 64 << 10
	buf := make([]byte, min(n, first))
	for have := 0; ; {
		m, err := io.ReadFull(r, buf[have:])
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if have += m; uint64(have) == n {
			return buf, nil
		}
		buf = append(buf, make([]byte, min(n-uint64(have), uint64(have)))...)
	}
}
