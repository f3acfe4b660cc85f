package endpoint

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
)

// NIC is one opened local device.
type NIC struct {
	Name   string
	Rail   string // canonical name
	Index  int    // position in the local key lists
	Device nic.Device
	PD     nic.PD

	inactive atomic.Bool
}

// Active reports whether the NIC may be used. It is active until told otherwise.
func (n *NIC) Active() bool { return !n.inactive.Load() }

// SetActive switches the NIC on or off for new work and new handshakes.
func (n *NIC) SetActive(on bool) { n.inactive.Store(!on) }

// Dialer sends handshakes.
type Dialer interface {
	// Connect sends hs to the server of a NIC path and returns its reply. A reply
	// that rejects (ReplyMsg is not empty) may come with an error or without.
	Connect(ctx context.Context, server string, hs wire.HandShake) (wire.HandShake, error)
}

// Gate bounds how many dials are in progress. Sets may share one.
type Gate struct{ slots chan struct{} }

// NewGate returns a gate for n dials at once.
func NewGate(n int) *Gate { return &Gate{slots: make(chan struct{}, max(n, 1))} }

// Options configures a [Set]. NIC, Server and Dialer are needed.
type Options struct {
	NIC    *NIC
	Server string // first part of the own NIC path
	Path   string // the own NIC path, if it is not that of Server and NIC
	Dialer Dialer
	// Lookup finds a peer NIC that sends no GID. Nil means it cannot be found.
	Lookup func(ctx context.Context, path string) (nic.GID, uint16, error)
	// Gate is shared by the sets of a process. Nil means 32 dials at once.
	Gate *Gate

	QPs          int    // queue pairs an endpoint dials with; 0 means 2
	MaxWR        int    // outstanding a queue pair; 0 means 256
	MaxCQE       int    // outstanding in all; 0 means 4096
	MaxEndpoints int    // 0 means 65536
	FIFO         bool   // evict the oldest idle endpoint, not by SIEVE
	RelayEpoch   uint64 // marks the handshakes that the set sends, if not 0

	MTU          int // upper bound in bytes; 0 means 4096
	PKeyIndex    uint16
	TrafficClass uint8
	ServiceLevel uint8

	DialTimeout  time.Duration // of one handshake; 0 means 60 s
	AckTimeout   time.Duration // for the ready ACK where work waits; 0 means 10 s
	FlushTimeout time.Duration // for flushed completions; 0 means 30 s
	CloseTimeout time.Duration // for one attempt to close a queue pair; 0 means 5 s
	// Pause is the least time between two dials to a peer. It doubles from the
	// third failure on, up to 16 times. Zero means 1 s.
	Pause time.Duration

	Now  func() time.Duration // the pump's clock; nil means the monotonic one
	Wake func()               // rings the pump; may be nil
	Done func()               // rings it for completions; nil means Wake
	Log  *slog.Logger         // nil discards
}

func (o Options) withDefaults() Options {
	o.QPs = cmp.Or(o.QPs, 2)
	o.MaxWR = cmp.Or(o.MaxWR, 256)
	o.MaxCQE = cmp.Or(o.MaxCQE, 4096)
	o.MaxEndpoints = cmp.Or(o.MaxEndpoints, 65536)
	o.MTU = cmp.Or(o.MTU, 4096)
	o.DialTimeout = cmp.Or(o.DialTimeout, 60*time.Second)
	o.AckTimeout = cmp.Or(o.AckTimeout, 10*time.Second)
	o.FlushTimeout = cmp.Or(o.FlushTimeout, 30*time.Second)
	o.CloseTimeout = cmp.Or(o.CloseTimeout, 5*time.Second)
	o.Pause = cmp.Or(o.Pause, time.Second)
	if o.Gate == nil {
		o.Gate = NewGate(32)
	}
	if o.Now == nil {
		start := time.Now()
		o.Now = func() time.Duration { return time.Since(start) }
	}
	if o.Wake == nil {
		o.Wake = func() {}
	}
	if o.Done == nil {
		o.Done = o.Wake
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}
