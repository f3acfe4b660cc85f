// Package endpoint connects queue pairs to peer NICs and keeps them.
//
// A [Set] holds the endpoints of one local NIC and one completion queue, one
// [Endpoint] for each peer NIC path. An endpoint is used for both directions
// and connected by whoever comes first: actively, by a handshake that it sends,
// or passively, by one that an [Acceptor] receives.
//
//	              dial                 reply               ready ACK sent
//	UNCONNECTED ───────> CONNECTING ─────────> WAIT_READY_ACK ─────────> CONNECTED
//	     └─ handshake received ─┴──────────────^        └─ ready ACK received ─^
//	                 any of them ── failure, eviction, fence, Close ──> DEAD
//
// DEAD is final: a goroutine moves the queue pairs to ERR, waits until their work
// is flushed, destroys them and puts the endpoint on the list that [Set.Reap]
// reads. The set has forgotten it by then, so the next [Set.Get] makes another.
//
// The package does not choose NICs, cut requests or retry work, and it does not
// speak TCP: handshakes go out through a [Dialer] and come in through
// [Acceptor.Accept].
//
// Threads: Get, Step, Arm, Reap, Post and Completed belong to the pump and never
// block. Dials and teardowns run in goroutines of their own; everything else
// may be called by any goroutine.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/railhop/railhop/internal/nic"
)

// Sentinels for causes on which a caller acts.
var (
	// ErrClosed is the cause when the set was closed.
	ErrClosed = errors.New("endpoint: closed")
	// ErrNotReady is returned by Post unless the endpoint is CONNECTED.
	ErrNotReady = errors.New("endpoint: not connected")
	// ErrFull is returned when the store is full and nothing in it is idle.
	ErrFull = errors.New("endpoint: store full")
	// ErrEvicted is the cause of an endpoint that made room for another.
	ErrEvicted = errors.New("endpoint: evicted")
	// ErrReplaced is the cause of an endpoint whose peer connected anew.
	ErrReplaced = errors.New("endpoint: peer connected anew")
	// ErrFenced is the cause of a relay's endpoint that a fence closed.
	ErrFenced = errors.New("endpoint: fenced")
	// ErrQPFatal is the cause when the device says that a queue pair is broken.
	ErrQPFatal = errors.New("endpoint: queue pair broken")
	// ErrWithdrawn is the cause when work had to be taken back from the NIC.
	ErrWithdrawn = errors.New("endpoint: work withdrawn")
	// ErrNoReadyAck is the cause when the peer never confirmed its handshake.
	ErrNoReadyAck = errors.New("endpoint: no ready ACK from the peer")
)

// State is an endpoint's state.
type State uint32

const (
	Unconnected State = iota
	Connecting
	WaitReadyAck
	Connected
	Dead
)

var states = [...]string{"UNCONNECTED", "CONNECTING", "WAIT_READY_ACK", "CONNECTED", "DEAD"}

func (s State) String() string {
	if int(s) >= len(states) {
		return fmt.Sprintf("state %d", uint32(s))
	}
	return states[s]
}

// Endpoint is the connection between one local NIC and one peer NIC path.
type Endpoint struct {
	set   *Set
	path  string
	epoch uint64 // the relay's that connected it, 0 for a plain one

	state      atomic.Uint32
	cause      atomic.Pointer[error] // the first one
	cancel     atomic.Pointer[context.CancelFunc]
	wanted     atomic.Bool  // somebody here waits to post
	visited    atomic.Bool  // for SIEVE
	open       atomic.Int64 // posted and not reported
	cut        atomic.Bool  // a run's end was not taken: some of it is never reported
	dialFailed atomic.Bool  // its own dial is why it died
	drained    chan struct{}
	gone       chan struct{} // closed once the queue pairs are destroyed

	// Of the pump, once CONNECTED.
	used []int  // outstanding, by queue pair
	runs []runs // that PostRuns has posted, by queue pair
	next int    // queue pair that the next run goes to

	mu   sync.Mutex
	qps  []nic.QP // not changed once CONNECTED
	nums []uint32
	peer []uint32 // the peer's numbers

	// Guarded by the set's mutex.
	older, newer *Endpoint
	stored       bool
	dialAt       int64 // when to dial, 0 for never
	ackAt        int64 // when a missing ready ACK is too late
}

// Path returns the peer's NIC path.
func (e *Endpoint) Path() string { return e.path }

// Set returns the set that the endpoint belongs to.
func (e *Endpoint) Set() *Set { return e.set }

// State returns the present state.
func (e *Endpoint) State() State { return State(e.state.Load()) }

// Ready reports whether work may be posted.
func (e *Endpoint) Ready() bool { return e.State() == Connected }

// Err returns why the endpoint is DEAD: the first cause. It is nil before.
func (e *Endpoint) Err() error {
	if e.State() != Dead {
		return nil
	}
	return *e.cause.Load()
}

// Open returns how many operations are posted and not yet reported.
func (e *Endpoint) Open() int { return int(e.open.Load()) }

// Gone is closed once the queue pairs are destroyed.
func (e *Endpoint) Gone() <-chan struct{} { return e.gone }

// Room returns how many requests Post would take now at most.
func (e *Endpoint) Room() int {
	if !e.Ready() {
		return 0
	}
	room := 0
	for _, u := range e.used {
		room += e.set.opts.MaxWR - u
	}
	return min(room, e.set.opts.MaxCQE-e.set.inflight)
}

// Post hands requests to the queue pairs, in contiguous runs of about the same
// length, and returns how many were taken: the first n, fewer than len(wrs)
// when the queues are full, which is no error. It signals some that are not, which
// wrs says afterwards: those on one queue pair up to one that is signalled are a run. They
// end in their order, so that its report stands for them all; after one that fails all
// are reported. If the last that was taken is not signalled, the caller fails the
// endpoint: nothing would report it. There is no order between the queue pairs. It fails with
// [ErrNotReady] unless the endpoint is CONNECTED; after another error the caller fails
// the endpoint. It takes what [Endpoint.Room] has promised.
func (e *Endpoint) Post(wrs []nic.WR) (n int, err error) { return e.post(wrs, false) }

// PostRuns is Post for requests that share an id, without the bit [RunEnd], and are not
// signalled: [Endpoint.Ended] says how many a report stands for. An endpoint is posted to
// by one of the two only. A caller from whom not all is taken fails the endpoint.
func (e *Endpoint) PostRuns(wrs []nic.WR) (n int, err error) { return e.post(wrs, true) }

func (e *Endpoint) post(wrs []nic.WR, counted bool) (n int, err error) {
	if !e.Ready() {
		return 0, ErrNotReady
	}
	if !e.visited.Load() {
		e.visited.Store(true)
	}
	s := e.set
	total := min(len(wrs), s.opts.MaxCQE-s.inflight)
	// What a full queue pair leaves goes to the others, in further rounds.
	for took := true; took && n < total; {
		took = false
		for left := len(e.qps); left > 0 && n < total; left-- {
			i := e.next
			e.next = (e.next + 1) % len(e.qps)
			k := min((total-n+left-1)/left, s.opts.MaxWR-e.used[i])
			if k <= 0 {
				continue
			}
			e.mark(i, wrs[n:n+k], counted)
			// Counted first: a teardown that starts meanwhile then waits for them.
			e.open.Add(int64(k))
			m, err := e.qps[i].Post(wrs[n : n+k])
			m = min(max(m, 0), k)
			e.count(i, m)
			if m < k {
				e.cut.Store(e.cut.Load() || m > 0)
				e.settle(int64(k - m))
			}
			n += m
			if err != nil {
				return n, fmt.Errorf("endpoint: post to %s: %w", e.path, err)
			}
			took = took || m > 0
		}
	}
	return n, nil
}

// Completed accounts for n operations that queue pair qpn has reported.
func (e *Endpoint) Completed(qpn uint32, n int) {
	for i, num := range e.nums {
		if num == qpn {
			n = min(n, e.used[i])
			e.count(i, -n)
			e.settle(int64(n))
			return
		}
	}
}

func (e *Endpoint) count(i, n int) {
	e.used[i] += n
	e.set.inflight += n
}

func (e *Endpoint) settle(n int64) {
	if e.open.Add(-n) == 0 && e.State() == Dead {
		select {
		case e.drained <- struct{}{}:
		default:
		}
	}
}

// Fail makes the endpoint DEAD. It does not block: what is posted is flushed and
// reported by the completion queue, or, where that fails, by [Set.Reap]. The
// first cause is kept, and later calls do nothing.
func (e *Endpoint) Fail(cause error) { e.die(cause) }

// die reports whether this call was the first.
func (e *Endpoint) die(cause error) bool {
	e.cause.CompareAndSwap(nil, &cause)
	if State(e.state.Swap(uint32(Dead))) == Dead {
		return false
	}
	if c := e.cancel.Load(); c != nil {
		(*c)()
	}
	log, unlogged := e.set.forget(e)
	go func() {
		if log {
			e.set.opts.Log.Warn("endpoint lost", "nic", e.set.opts.NIC.Name, "peer", e.path, "cause", cause, "unlogged", unlogged)
		}
		e.teardown()
	}()
	e.set.changed()
	return true
}

// move changes the state unless somebody else has, for instance to DEAD.
func (e *Endpoint) move(from, to State) bool {
	moved := false
	if to == Connected {
		moved = e.set.connected(e, from)
	} else {
		moved = e.state.CompareAndSwap(uint32(from), uint32(to))
	}
	if moved {
		e.set.changed()
	}
	return moved
}
