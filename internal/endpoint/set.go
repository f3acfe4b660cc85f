package endpoint

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
)

// key tells plain endpoints from those that a relay connected.
type key struct {
	epoch uint64
	path  string
}

// Set is the endpoints of one NIC and one completion queue.
type Set struct {
	opts Options
	path string // own NIC path
	cq   nic.CQ

	inflight int // posted and not reported; of the pump

	changes atomic.Uint64
	due     atomic.Int64 // when Step has something to do, 0 for never
	hasGone atomic.Bool
	closing chan struct{}
	wg      sync.WaitGroup // endpoints and dials

	mu       sync.Mutex
	closed   bool
	store    store
	peers    map[string]*peer
	relayed  map[uint64]map[*Endpoint]struct{} // until destroyed, by epoch
	gone     []*Endpoint
	stats    Stats
	closeErr error
}

// Stats counts what a set did.
type Stats struct {
	Endpoints  int    // now in the store
	Dials      uint64 // handshakes begun
	Connects   uint64 // endpoints that became CONNECTED
	Reconnects uint64 // of them, to a peer that had been connected before
	Failures   uint64 // endpoints that died of an error
	Evictions  uint64
}

// NewSet makes the completion queue and an empty set.
func NewSet(opts Options) (*Set, error) {
	if opts.NIC == nil || opts.NIC.Device == nil || opts.NIC.PD == nil || opts.Dialer == nil {
		return nil, errors.New("endpoint: set: NIC, its device and domain, and a dialer are needed")
	}
	opts = opts.withDefaults()
	if a := opts.NIC.Device.Attr(); a.MaxQP > 0 {
		opts.MaxEndpoints = min(opts.MaxEndpoints, max(a.MaxQP/opts.QPs, 1))
	}
	if a := opts.NIC.Device.Attr(); a.MaxWR > 0 {
		opts.MaxWR = min(opts.MaxWR, a.MaxWR)
	}
	cq, err := opts.NIC.Device.NewCQ(opts.MaxCQE, opts.Done)
	if err != nil {
		return nil, fmt.Errorf("endpoint: completion queue on %s: %w", opts.NIC.Name, err)
	}
	return &Set{
		opts:    opts,
		path:    cmp.Or(opts.Path, wire.NICPath(opts.Server, opts.NIC.Name)),
		cq:      cq,
		closing: make(chan struct{}),
		store:   store{byKey: make(map[key]*Endpoint), fifo: opts.FIFO},
		peers:   make(map[string]*peer),
		relayed: make(map[uint64]map[*Endpoint]struct{}),
	}, nil
}

// NIC returns the local NIC.
func (s *Set) NIC() *NIC { return s.opts.NIC }

// Path returns the own NIC path.
func (s *Set) Path() string { return s.path }

// CQ returns the completion queue, which the pump polls and arms.
func (s *Set) CQ() nic.CQ { return s.cq }

// Changes counts state changes of all endpoints: while it stays the same, no
// endpoint has become ready or died.
func (s *Set) Changes() uint64 { return s.changes.Load() }

func (s *Set) changed() {
	s.changes.Add(1)
	s.opts.Wake()
}

// Stats returns the counters so far.
func (s *Set) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Endpoints = len(s.store.byKey)
	return st
}

// Get returns the endpoint toward a peer NIC path, connected or not, and sees to
// it that it gets connected: at once, or, if the peer has failed lately, when
// its pause is over. It fails with [ErrClosed] or [ErrFull].
func (s *Set) Get(path string) (*Endpoint, error) {
	s.mu.Lock()
	e := s.living(key{0, path})
	if e == nil {
		if server, device := wire.SplitNICPath(path); server == "" || device == "" {
			s.mu.Unlock()
			return nil, fmt.Errorf("endpoint: NIC path %q is not server@device", path)
		}
		var victim *Endpoint
		var err error
		at, now := s.peer(path).notBefore, s.opts.Now()
		if e, victim, err = s.add(key{0, path}, at <= now); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		if at > now {
			e.dialAt = int64(at)
			s.schedule(e.dialAt)
		} else {
			s.startDial(e)
		}
		s.mu.Unlock()
		if victim != nil {
			victim.die(ErrEvicted)
		}
	} else {
		if e.ackAt != 0 && !e.wanted.Load() && e.State() == WaitReadyAck {
			s.schedule(e.ackAt)
		}
		s.mu.Unlock()
	}
	e.wanted.Store(true)
	e.visited.Store(true)
	return e, nil
}

// living returns the endpoint for k unless it is dead. s.mu is held.
func (s *Set) living(k key) *Endpoint {
	e := s.store.byKey[k]
	if e != nil && e.State() == Dead {
		s.store.remove(e)
		return nil
	}
	return e
}

// add puts a new endpoint into the store, and takes an idle one out if it is
// full: the caller lets that one die when it holds no lock. One that connects
// now may also take the place of one that has yet to wait. s.mu is held.
func (s *Set) add(k key, now bool) (e, victim *Endpoint, err error) {
	if s.closed {
		return nil, nil, ErrClosed
	}
	if len(s.store.byKey) >= s.opts.MaxEndpoints {
		if victim = s.store.evict(); victim == nil && now {
			victim = s.store.evictWaiting()
		}
		if victim == nil {
			return nil, nil, fmt.Errorf("%w: %d endpoints on %s, none idle", ErrFull, s.opts.MaxEndpoints, s.opts.NIC.Name)
		}
		s.stats.Evictions++
	}
	e = &Endpoint{
		set:     s,
		path:    k.path,
		epoch:   k.epoch,
		drained: make(chan struct{}, 1),
		gone:    make(chan struct{}),
	}
	s.store.put(k, e)
	if k.epoch != 0 {
		if s.relayed[k.epoch] == nil {
			s.relayed[k.epoch] = make(map[*Endpoint]struct{})
		}
		s.relayed[k.epoch][e] = struct{}{}
	}
	s.wg.Add(1)
	return e, victim, nil
}

// schedule makes Step look at time t at the latest. s.mu is held.
func (s *Set) schedule(t int64) {
	if d := s.due.Load(); d == 0 || t < d {
		s.due.Store(max(t, 1))
	}
}

// Step starts dials whose pause is over, and gives up endpoints whose ready ACK is
// overdue.
func (s *Set) Step(now time.Duration) (busy bool) {
	if d := s.due.Load(); d == 0 || int64(now) < d {
		return false
	}
	var late []*Endpoint
	s.mu.Lock()
	s.due.Store(0)
	for e := s.store.oldest; e != nil; e = e.newer {
		switch e.State() {
		case Unconnected:
			if e.dialAt == 0 {
				continue
			}
			if e.dialAt > int64(now) {
				s.schedule(e.dialAt)
				continue
			}
			s.startDial(e)
			busy = true
		case WaitReadyAck:
			if e.ackAt == 0 || !e.wanted.Load() {
				continue
			}
			if e.ackAt > int64(now) {
				s.schedule(e.ackAt)
				continue
			}
			late = append(late, e)
		}
	}
	s.mu.Unlock()
	for _, e := range late {
		e.die(fmt.Errorf("%w: %s, within %v", ErrNoReadyAck, e.path, s.opts.AckTimeout))
		busy = true
	}
	return busy
}

// Idle reports whether Step has nothing to do later. What is posted does not count.
func (s *Set) Idle() bool { return s.due.Load() == 0 }

// Arm arms the completion queue and returns after what time Step has something to
// do, 0 for never.
func (s *Set) Arm(now time.Duration) (limit time.Duration, err error) {
	if err := s.cq.Arm(); err != nil {
		return 0, fmt.Errorf("endpoint: arm completion queue on %s: %w", s.opts.NIC.Name, err)
	}
	if d := s.due.Load(); d != 0 {
		limit = max(time.Duration(d)-now, time.Microsecond)
	}
	return limit, nil
}

// Reap returns an endpoint that has been destroyed since the last calls, or nil.
// Whatever was posted to it and not reported has ended without a report, and
// nothing of it moves any more.
func (s *Set) Reap() *Endpoint {
	if !s.hasGone.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.gone) == 0 {
		return nil
	}
	e := s.gone[len(s.gone)-1]
	s.gone = s.gone[:len(s.gone)-1]
	s.hasGone.Store(len(s.gone) > 0)
	for i, n := range e.used {
		e.count(i, -n)
	}
	return e
}

// ClosePeer lets the plain endpoint toward path die, if there is one, and forgets
// its failures. It does not wait.
func (s *Set) ClosePeer(path string) {
	s.mu.Lock()
	e := s.store.byKey[key{0, path}]
	delete(s.peers, path)
	s.mu.Unlock()
	if e != nil {
		e.die(ErrClosed)
	}
}

// Drop lets all endpoints die of cause. It does not wait.
func (s *Set) Drop(cause error) {
	s.mu.Lock()
	all := s.store.all()
	s.mu.Unlock()
	for _, e := range all {
		e.die(cause)
	}
}

// FailQP lets the endpoint that owns queue pair qpn die: the device says that it
// is broken. It may wait for a dial.
func (s *Set) FailQP(qpn uint32) {
	s.mu.Lock()
	all := s.store.all()
	s.mu.Unlock()
	for _, e := range all {
		e.mu.Lock()
		found := slices.Contains(e.nums, qpn)
		e.mu.Unlock()
		if found {
			e.die(fmt.Errorf("%w: number %d", ErrQPFatal, qpn))
			return
		}
	}
}

// Close lets all endpoints die and waits until their queue pairs are destroyed,
// then closes the completion queue. What was posted and not reported is dropped
// without a report. An error names the queue pairs whose peers could not be
// reached in time: what was posted to them may still land.
func (s *Set) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		close(s.closing)
	}
	s.Drop(ErrClosed)
	s.wg.Wait()
	if !first {
		return nil
	}
	s.mu.Lock()
	err := s.closeErr
	s.mu.Unlock()
	return errors.Join(err, s.cq.Close())
}
