package wire

import (
	"errors"
	"fmt"
	"strconv"
)

// ErrNoSegment is returned for a descriptor that is null: the peer serves none.
var ErrNoSegment = errors.New("wire: the peer has no segment descriptor")

// SyntaxError is a body that is not JSON.
type SyntaxError struct {
	Offset  int // in the body, in bytes
	Problem string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("wire: not JSON at byte %d: %s", e.Offset, e.Problem)
}

// FieldError is a body whose JSON is sound and whose content is not.
type FieldError struct {
	Message string // such as "handshake" or "segment descriptor"
	Member  string // such as "buffers[3].rkey[0]"; "" is the whole body
	Have    string // the value as it came, cut short
	Want    string // what is valid
}

func (e *FieldError) Error() string {
	member := e.Member
	if member == "" {
		member = "body"
	}
	return fmt.Sprintf("wire: %s: %s is %s, want %s", e.Message, member, e.Have, e.Want)
}

// within puts the name of the enclosing member before the one in err.
func within(err error, outer string) error {
	var fe *FieldError
	if !errors.As(err, &fe) {
		return err
	}
	switch {
	case fe.Member == "" || fe.Member[0] == '[':
		fe.Member = outer + fe.Member
	default:
		fe.Member = outer + "." + fe.Member
	}
	return err
}

func index(i int) string { return "[" + strconv.Itoa(i) + "]" }

// show makes a peer's text fit for a message.
func show(raw []byte) string {
	const most = 60
	cut := ""
	if len(raw) > most {
		raw, cut = raw[:most], "…"
	}
	for _, c := range raw {
		if c < 0x20 || c >= 0x7f {
			return strconv.QuoteToASCII(string(raw)) + cut
		}
	}
	return string(raw) + cut
}
