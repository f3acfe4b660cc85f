// Package handshake carries wire messages over TCP: one request and one reply a
// connection. A [Server] answers peers, a [Dialer] asks them.
//
// It knows the form of the conversation and none of its meaning: what is answered
// comes from [Handlers], what is asked from the caller.
//
// Mooncake's daemon serves one connection at a time, so that one silent client
// holds up all the others. This server serves them side by side, and each has a
// deadline for the whole of its request:
//
//	accept ──> read ≤ 5 s ──> handler ──> write ──> shut ──> wait ≤ 5 s for the close
//	           └──────── at most MaxInProgress ────────┘
//
// Goroutines: one accepts, one a connection. All methods may be called by any.
package handshake

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// Error is a request that got no usable answer. [errors.As] finds its Code as an
// [xfer.Code], and the cause.
type Error struct {
	Op     string // "connect", "describe", "notify", "probe" or "fence"
	Server string
	Code   xfer.Code
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("handshake: %s %s: %v", e.Op, e.Server, e.Err)
}

func (e *Error) Unwrap() []error { return []error{e.Code, e.Err} }

// Refused reports whether err says that nobody listens at a server: every address that
// it has refuses the connection. One that does not answer may be where it is.
func Refused(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		err = e.Err
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(several.Unwrap(), func(one error) bool { return !Refused(one) })
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// RejectedError is a well-formed reply by which the peer says no.
type RejectedError struct {
	Msg string // the peer's words
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("the peer refuses: %.400q", e.Msg)
}

// replyTypeError is a reply that repeats another type than the request's.
type replyTypeError struct{ got, want wire.Frame }

func (e *replyTypeError) Error() string {
	if e.got.Typeless {
		return fmt.Sprintf("the reply has no type, want type %#x", uint8(e.want.Type))
	}
	return fmt.Sprintf("the reply has type %#x, want %#x", uint8(e.got.Type), uint8(e.want.Type))
}
