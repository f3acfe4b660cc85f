// Package tcp is the way for nodes without NICs: Mooncake's TCP data protocol, both
// ends of it, versions 1 and 2.
//
// A [Work] is cut into pieces, each of which is one request of the protocol. A few
// connections go to each target; on each, many requests are under way at once, and
// a peer answers them in the order in which they were sent:
//
//	Submit ─> cut ─> queue of the target ─> connection ─> writev … readv ─> Owner.Closed
//	                    ^                        │ lost
//	                    └── descriptor fetched anew, other port
//
// The other end is a [Server]: it takes requests for registered memory.
//
// No late write (pxn.md 8): a piece is sent again only if none of it was sent, or its
// connection's end proves that the peer has left the memory. A piece that must stop
// closes its connection for writing. A [Server] copies into place only while the
// connection lives, and closes its end after the last copy, so that a peer of our
// kind proves by its end of file that nothing lands any more. Mooncake's server
// promises nothing of the kind: what was sent to one may still land, and the error
// says so.
//
// The package does not register memory, publish descriptors or decide between ways.
//
// Threads: all methods of [Path] belong to the pump, except Stats. It reads and
// writes its sockets there, without blocking. Dials, fetches of descriptors and copies from and
// to GPU memory have goroutines, which leave what they have in a mailbox that Step
// reads. A Server has a goroutine that accepts, and one a connection.
package tcp

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/xfer"
)

// Owner is told what becomes of a [Work], on the pump: Opened with the number of
// pieces, then one Closed for each of them. A nil error means that the bytes
// are in place.
type Owner interface {
	Opened(pieces int)
	Closed(bytes uint64, err error)
}

// Route says how a target's memory is reached.
type Route struct {
	Host    string
	Port    int // 0: the target serves no TCP
	Version int // of the protocol that it speaks, 1 or 2
	// Proves says that the target leaves the memory before it closes a connection.
	Proves bool
}

// Target is the memory of a peer, as its descriptor tells. It is compared by
// identity.
type Target interface {
	// Name is the segment's name.
	Name() string
	// Route says where the memory is served, as far as it is known here. It may block, and may be
	// called by any goroutine.
	Route(ctx context.Context) (Route, error)
	// Holds returns nil if one buffer of the descriptor holds the range. If none
	// does the error names the nearest.
	Holds(addr, length uint64) error
	// Refetch fetches the descriptor anew. It blocks, and may be called by any goroutine.
	Refetch(ctx context.Context) error
}

// Work is one request.
type Work struct {
	Op     xfer.Opcode
	Local  uint64 // address in this process
	Remote uint64 // address in the target process
	Length uint64 // bytes
	Target Target
	Owner  Owner
}

// Options configures a [Path]. Poller is needed.
type Options struct {
	Poller *Poller // of the pump
	Lanes  int     // connections a target; 0 means 4
	Window int     // pieces under way a target; 0 means 1024
	// PieceSize is where a request is cut, so that lanes share it; 0 means 16 MiB.
	PieceSize uint64
	// StageSize is where one from or to GPU memory is cut, which goes through host
	// memory piece by piece; 0 means 1 MiB.
	StageSize uint64
	// ForceV1 makes it speak version 1, whatever the target offers.
	ForceV1 bool

	ConnectTimeout time.Duration // 0 means 5 s
	// StatusTimeout bounds the wait for an answer, from when the whole request was
	// sent and those before it were answered; 0 means 30 s.
	StatusTimeout time.Duration
	// CloseWait bounds how long a peer may take to prove that it has left the memory; 0
	// means 200 ms.
	CloseWait  time.Duration
	FetchEvery time.Duration // least time between two fetches of a descriptor; 0 means 100 ms
	// Spin is how long the pump looks for an answer before it may park; 0 means 20 µs,
	// or not at all where only two processors run Go: the peer may need the other.
	Spin time.Duration

	// Device returns the GPU that a range of this process's memory lies on. Nil, or a
	// nil Device, means host memory.
	Device func(addr, length uint64) gpu.Device

	Now  func() time.Duration // the pump's clock; nil means the monotonic one
	Wake func()               // rings the pump; may be nil
	Log  *slog.Logger         // nil discards
}

func (o Options) withDefaults() Options {
	o.Lanes = cmp.Or(o.Lanes, 4)
	o.Window = cmp.Or(o.Window, 1024)
	o.PieceSize = cmp.Or(o.PieceSize, 16<<20)
	o.StageSize = cmp.Or(o.StageSize, 1<<20)
	o.StageSize = min(o.StageSize, maxStage)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 5*time.Second)
	o.StatusTimeout = cmp.Or(o.StatusTimeout, 30*time.Second)
	o.CloseWait = cmp.Or(o.CloseWait, 200*time.Millisecond)
	o.FetchEvery = cmp.Or(o.FetchEvery, 100*time.Millisecond)
	if o.Spin == 0 && runtime.GOMAXPROCS(0) > 2 {
		o.Spin = 20 * time.Microsecond
	}
	if o.Device == nil {
		o.Device = func(uint64, uint64) gpu.Device { return nil }
	}
	if o.Now == nil {
		start := time.Now()
		o.Now = func() time.Duration { return time.Since(start) }
	}
	if o.Wake == nil {
		o.Wake = func() {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// ErrClosed is the end of what was open when a path was closed.
var ErrClosed = errors.New("tcp: path is closed")
