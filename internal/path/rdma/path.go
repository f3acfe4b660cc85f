// Package rdma is the direct way: from an own NIC to a NIC of the target.
//
// A [Work] is cut into slices, none of which crosses a registered buffer at either
// end. Each slice is queued at a link, the pair of a local NIC and a peer NIC
// path, and is posted in a batch with whatever else waits there:
//
//	Submit ─> cut ─> choose a link ─> queue ─> Post ─> completion ─> Owner.Closed
//	                    ^                                  │ failed
//	                    └──────── descriptor fetched anew ─┘
//
// A slice is posted again only after the NIC has reported the end of its last
// attempt, or the endpoint was destroyed: no late write (pxn.md 8).
//
// The package does not register memory, publish descriptors or answer handshakes,
// and it does not decide between ways.
//
// Threads: all methods of [Path] belong to the pump, except Stats. Descriptors
// are fetched in goroutines, and each NIC has one that reads its events; both leave
// what they have in a mailbox that Step reads.
package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/xfer"
)

// Owner is told what becomes of a [Work], on the pump: Opened with the number of
// slices, then one Closed for each of them. A nil error means that the bytes
// are in place.
type Owner interface {
	Opened(slices int)
	Closed(bytes uint64, err error)
}

// Region is registered memory of this process.
type Region struct {
	Addr, Length uint64
	Location     string   // such as "cuda:0"
	LKeys        []uint32 // by [endpoint.NIC.Index]
}

// Local knows the registered memory of this process.
type Local interface {
	// Find returns the region that holds addr. If there is none it fails, and the
	// error names the nearest one.
	Find(addr uint64) (Region, error)
}

// Choice is the device of a target through which a range is reached.
type Choice struct {
	NICPath string
	RKey    uint32
}

// Target is the memory of a peer, as its descriptor tells.
type Target interface {
	// Name is the segment's name.
	Name() string
	// End returns the end of the buffer that holds addr. If there is none it fails,
	// and the error names the nearest one.
	End(addr uint64) (uint64, error)
	// Select chooses a device for [addr, addr+length), to be reached from a local
	// NIC, by Mooncake's rule: with retry 0 one of the preferred, from 1 on all of them
	// in turn.
	Select(from string, addr, length uint64, retry int) (Choice, error)
	// Devices returns how many devices there are.
	Devices() int
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
	Retry  int // failures that count as having been already
}

// Options configures a [Path]. Sets and Local are needed.
type Options struct {
	// Sets are the endpoints of the local NICs, one set a NIC. The path takes them
	// over: it polls their completion queues and closes them.
	Sets  []*endpoint.Set
	Local Local
	// Matrix maps a location to the preferred and the other local devices. A
	// location that is not in it, nor "*", prefers none.
	Matrix map[string][2][]string
	// RailOf names the rail of a device for error messages. Nil means its name.
	RailOf func(device string) string

	SliceSize  uint64        // 0 means 65536
	Fragment   uint64        // a rest up to this much longer stays whole; 0 means 16384
	RetryCount int           // attempts a slice; 0 means 9
	DialCount  int           // failed dials in a row after which a peer NIC counts as out of reach; 0 means 3
	RailPause  time.Duration // of a link that failed where there are others; 0 means 30 s
	Quarantine time.Duration // of a NIC that failed; 0 means RailPause
	FetchEvery time.Duration // least time between two fetches of a descriptor; 0 means 100 ms

	// Health is called on the pump when a NIC becomes inactive or active again.
	Health func(n *endpoint.NIC, active bool, cause error)
	Now    func() time.Duration // the pump's clock; nil means the monotonic one
	Wake   func()               // rings the pump; may be nil
	Log    *slog.Logger         // nil discards
}

func (o Options) withDefaults() Options {
	o.SliceSize = cmp.Or(o.SliceSize, 65536)
	o.Fragment = cmp.Or(o.Fragment, 16384)
	o.RetryCount = cmp.Or(o.RetryCount, 9)
	o.DialCount = cmp.Or(o.DialCount, 3)
	o.RailPause = cmp.Or(o.RailPause, 30*time.Second)
	o.Quarantine = cmp.Or(o.Quarantine, o.RailPause)
	o.FetchEvery = cmp.Or(o.FetchEvery, 100*time.Millisecond)
	if o.RailOf == nil {
		o.RailOf = func(device string) string { return device }
	}
	if o.Health == nil {
		o.Health = func(*endpoint.NIC, bool, error) {}
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

const (
	pollBatch = 64  // completions a poll
	postBatch = 512 // requests a post
	pollTurns = 16  // polls a step and NIC
)

// Path posts work to NICs.
type Path struct {
	opts   Options
	nics   []*local
	places map[string]place
	links  map[linkKey]*link
	active []*link // with slices queued
	turn   int     // where the next step begins
	full   bool    // a link waits for room in an endpoint store

	slices   []slice
	free     int32      // first free slice, none if there is none
	requests []*request // those with open slices
	spare    []*request
	targets  map[Target]*target
	cuts     []cut
	wrs      []nic.WR
	done     [pollBatch]nic.Completion
	closed   bool

	quit chan struct{}
	wg   sync.WaitGroup

	hasMail atomic.Bool
	mailMu  sync.Mutex
	mail    []letter

	counts  counters
	statsMu sync.Mutex
	all     []*link
}

// New returns a path over the given sets.
func New(opts Options) (*Path, error) {
	if len(opts.Sets) == 0 || opts.Local == nil {
		return nil, errors.New("rdma: path: at least one set and the local memory are needed")
	}
	opts = opts.withDefaults()
	if opts.SliceSize > 1<<30 || opts.Fragment > 1<<30 {
		return nil, fmt.Errorf("rdma: path: slice size %d and fragment %d: want at most %d", opts.SliceSize, opts.Fragment, 1<<30)
	}
	p := &Path{
		opts:    opts,
		links:   make(map[linkKey]*link),
		free:    none,
		targets: make(map[Target]*target),
		wrs:     make([]nic.WR, postBatch),
		quit:    make(chan struct{}),
	}
	for i, s := range opts.Sets {
		p.nics = append(p.nics, &local{set: s, nic: s.NIC(), pos: i, active: true})
	}
	p.places = placeNICs(p.nics, opts.Matrix)
	for _, n := range p.nics {
		if n.nic.Device.Port().State != nic.PortActive {
			p.deactivate(n, errors.New("port is down"), 0)
		}
		p.wg.Go(func() { p.watch(n) })
	}
	return p, nil
}

// Submit cuts a request into slices and queues them. It keeps w.Target and
// w.Owner, not w. It fails only for what can never work, such as memory that is
// not registered, and then has opened nothing. A target address that the
// descriptor does not know makes it fetch a new one first, which may end in
// a Closed with the error.
func (p *Path) Submit(w *Work) error {
	if p.closed {
		return ErrClosed
	}
	if w.Op != xfer.Write && w.Op != xfer.Read {
		return fmt.Errorf("rdma: submit: %v: %w", w.Op, xfer.ErrInvalidArgument)
	}
	if w.Local+w.Length < w.Local || w.Remote+w.Length < w.Remote {
		return fmt.Errorf("rdma: submit: %d bytes at %#x to %#x wrap around: %w", w.Length, w.Local, w.Remote, xfer.ErrInvalidArgument)
	}
	if w.Length == 0 {
		w.Owner.Opened(1)
		w.Owner.Closed(0, nil)
		return nil
	}
	now := p.opts.Now()
	t := p.target(w.Target)
	p.look(t, now)
	location, err := p.cut(w.Target, w.Local, w.Remote, w.Length)
	fetch := err != nil && isTargetError(err) && p.demand(t, now)
	if err != nil && !fetch {
		return err
	}
	r := p.newRequest(w, t)
	r.since, r.retry = now, int16(min(max(w.Retry, 0), p.opts.RetryCount-1))
	r.nic = p.preferred(location)
	if fetch {
		r.open = 1
		i := p.newSlice(r, cut{local: w.Local, remote: w.Remote, length: w.Length})
		p.slices[i].uncut = true
		p.await(i)
		w.Owner.Opened(1)
		return nil
	}
	r.open = len(p.cuts)
	w.Owner.Opened(len(p.cuts))
	p.queue(r, now)
	return nil
}

// queue makes slices of the cuts and routes them.
func (p *Path) queue(r *request, now time.Duration) {
	// Routing may end slices, and their owner may submit more meanwhile.
	cuts := p.cuts
	p.cuts = nil
	for k := range cuts {
		i := p.newSlice(r, cuts[k])
		p.slices[i].tries = r.retry
		p.route(i, now)
	}
	if p.cuts == nil {
		p.cuts = cuts[:0]
	}
}

// Step does a bounded amount of work and reports whether there was any.
func (p *Path) Step(now time.Duration) (busy bool) {
	busy = p.readMail(now)
	for _, n := range p.nics {
		if n.set.Step(now) {
			busy = true
		}
		if p.poll(n, now) {
			busy = true
		}
		for e := n.set.Reap(); e != nil; e = n.set.Reap() {
			p.reaped(e, now)
			busy = true
		}
		if n.backAt != 0 && now >= n.backAt {
			p.reactivate(n)
			busy = true
		}
	}
	if p.serveAll(now) {
		busy = true
	}
	return busy
}

// Idle reports whether there is nothing to do or to wait for, but what rings.
func (p *Path) Idle() bool {
	if len(p.requests) > 0 || len(p.active) > 0 {
		return false
	}
	for _, n := range p.nics {
		if n.backAt != 0 || !n.set.Idle() {
			return false
		}
	}
	return true
}

// Arm arms the completion queues and returns for how long the pump may sleep, 0
// for without limit. It is followed by one more Step.
func (p *Path) Arm(now time.Duration) (limit time.Duration) {
	sooner := func(d time.Duration) {
		if d > 0 && (limit == 0 || d < limit) {
			limit = d
		}
	}
	for _, n := range p.nics {
		if n.lost {
			continue
		}
		d, err := n.set.Arm(now)
		if err != nil {
			p.lose(n, err)
			continue
		}
		sooner(d)
		if n.backAt != 0 {
			sooner(max(n.backAt-now, time.Microsecond))
		}
	}
	if p.full {
		sooner(time.Millisecond)
	}
	return limit
}
