package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
)

// Acceptor answers the handshakes that peers send to this process. All its
// methods may be called by any goroutine.
//
// Handshakes of relays are kept apart, by epoch, so that [Acceptor.Fence] closes
// what a relay can reach and nothing else.
type Acceptor struct {
	mu   sync.RWMutex
	sets map[string]*Set // by device name
}

// NewAcceptor returns an acceptor for the NICs of sets, one set a NIC.
func NewAcceptor(sets ...*Set) *Acceptor {
	a := &Acceptor{sets: make(map[string]*Set, len(sets))}
	for _, s := range sets {
		a.sets[s.opts.NIC.Name] = s
	}
	return a
}

// Accept answers a handshake, in either phase. It always returns a reply: a
// rejection is one with a ReplyMsg, in Mooncake's words.
func (a *Acceptor) Accept(ctx context.Context, hs wire.HandShake) wire.HandShake {
	_, device := wire.SplitNICPath(hs.PeerNICPath)
	if device == "" {
		return wire.HandShake{ReplyMsg: "Invalid peer_nic_path in handshake: " + hs.PeerNICPath}
	}
	a.mu.RLock()
	s := a.sets[device]
	a.mu.RUnlock()
	if s == nil {
		return wire.HandShake{ReplyMsg: "Local RDMA context not found for handshake NIC: " + device}
	}
	return s.accept(ctx, hs)
}

// Fence closes every queue pair that a relay of this epoch connected, those that
// wait for their ready ACK included, and returns how many this call closed.
// When it returns without an error, nothing that the relay posted to them lands
// any more. Handshakes that come later are new connections.
func (a *Acceptor) Fence(ctx context.Context, epoch uint64) (closed int, err error) {
	if epoch == 0 {
		return 0, errors.New("endpoint: fence: epoch is 0")
	}
	a.mu.RLock()
	var all []*Endpoint
	for _, s := range a.sets {
		s.mu.Lock()
		for e := range s.relayed[epoch] {
			all = append(all, e)
		}
		s.mu.Unlock()
	}
	a.mu.RUnlock()
	var mine []*Endpoint
	for _, e := range all {
		if e.die(ErrFenced) {
			mine = append(mine, e)
		}
	}
	// Those that another cause has killed are waited for too: their readers may
	// still be in the memory.
	for _, e := range all {
		select {
		case <-e.gone:
		case <-ctx.Done():
			return closed, fmt.Errorf("endpoint: fence %016x: %s not closed: %w", epoch, e.path, context.Cause(ctx))
		}
	}
	for _, e := range mine {
		e.mu.Lock()
		closed += len(e.qps)
		e.mu.Unlock()
	}
	return closed, nil
}

// accept finds or makes the endpoint for a handshake and lets it answer.
func (s *Set) accept(ctx context.Context, hs wire.HandShake) wire.HandShake {
	ack := hs.ReadyAck != nil && *hs.ReadyAck
	k := key{hs.RelayEpoch, hs.LocalNICPath}
	if hs.LocalNICPath == "" || !s.opts.NIC.Active() {
		return s.reject(hs, nil, "Local RDMA endpoint unavailable for "+hs.LocalNICPath)
	}
	var gid nic.GID
	var lid uint16
	var unknown error
	if !ack {
		gid, lid, unknown = s.identity(ctx, hs.LocalNICPath, hs)
	}
	for ctx.Err() == nil {
		s.mu.Lock()
		e := s.living(k)
		var victim *Endpoint
		if e == nil && ack {
			s.mu.Unlock()
			return s.reject(hs, nil, "Received RDMA ready ACK for unconnected endpoint")
		}
		if e == nil {
			var err error
			if e, victim, err = s.add(k, true); err != nil {
				s.mu.Unlock()
				return s.reject(hs, nil, fmt.Sprintf("Local RDMA endpoint unavailable for %s: %v", hs.LocalNICPath, err))
			}
		}
		s.mu.Unlock()
		if victim != nil {
			victim.die(ErrEvicted)
		}
		if reply, done := e.accept(hs, ack, gid, lid, unknown); done {
			return reply
		}
	}
	return s.reject(hs, nil, "Local RDMA endpoint unavailable for "+hs.LocalNICPath)
}

func (s *Set) reject(hs wire.HandShake, qps []uint32, text string) wire.HandShake {
	return wire.HandShake{
		LocalNICPath: s.path,
		PeerNICPath:  hs.LocalNICPath,
		QPNum:        slices.Clone(qps),
		ReplyMsg:     text,
	}
}

// accept answers a handshake. It is not done if the endpoint died meanwhile, or
// had to make way for a fresh one.
func (e *Endpoint) accept(hs wire.HandShake, ack bool, gid nic.GID, lid uint16, unknown error) (_ wire.HandShake, done bool) {
	s := e.set
	e.mu.Lock()
	defer e.mu.Unlock()
	state := e.State()
	switch {
	case state == Dead:
		return wire.HandShake{}, false
	case ack:
		return e.acknowledged(hs), true
	}
	// From here on a fresh endpoint must not stay behind if it is not connected.
	fresh := state == Unconnected && len(e.qps) == 0 && e.passiveOnly()
	refuse := func(text string) (wire.HandShake, bool) {
		nums := e.nums
		if fresh {
			e.die(fmt.Errorf("%w: handshake refused: %s", ErrClosed, text))
		}
		return s.reject(hs, nums, text), true
	}
	if hs.PeerNICPath != s.path {
		return refuse(fmt.Sprintf("Invalid argument: peer nic path inconsistency, expect %s + %s, while got %s + %s",
			s.path, e.path, hs.PeerNICPath, hs.LocalNICPath))
	}
	if state == WaitReadyAck || state == Connected {
		if slices.Equal(hs.QPNum, e.peer) {
			return e.handshake(false), true
		}
		if len(hs.QPNum) == 0 || len(hs.QPNum) > maxQPs || unknown != nil {
			return refuse(unusable(unknown))
		}
		e.die(ErrReplaced)
		for _, qp := range e.qps {
			if err := qp.Modify(nic.QPAttr{State: nic.Err}); err != nil && !errors.Is(err, nic.ErrClosed) {
				s.opts.Log.Debug("queue pair not moved to ERR", "peer", e.path, "qpn", qp.Num(), "error", err)
			}
		}
		return wire.HandShake{}, false
	}
	n := len(hs.QPNum)
	if n == 0 || n > maxQPs || (len(e.qps) > 0 && len(e.qps) < n) {
		// Both sides dial with different counts: the smaller one wins.
		return refuse(CountMismatch)
	}
	if unknown != nil {
		return refuse(unusable(unknown))
	}
	if len(e.qps) != n {
		if err := e.makeQPs(n); err != nil {
			e.die(err)
			return s.reject(hs, nil, err.Error()), true
		}
	}
	if err := e.connectQPs(gid, lid, hs.QPNum); err != nil {
		e.die(err)
		return s.reject(hs, e.nums, err.Error()), true
	}
	next := Connected
	if hs.ReadyAck != nil {
		next = WaitReadyAck
		s.mu.Lock()
		e.ackAt = int64(s.opts.Now() + s.opts.AckTimeout)
		if e.wanted.Load() {
			s.schedule(e.ackAt)
		}
		s.mu.Unlock()
	}
	reply := e.handshake(false)
	if !e.move(state, next) {
		// A dial may have begun meanwhile; anything else is the end.
		if e.State() == Dead || !e.move(Connecting, next) {
			return wire.HandShake{}, false
		}
	}
	return reply, true
}

func unusable(unknown error) string {
	if unknown != nil {
		return unknown.Error()
	}
	return CountMismatch
}

// acknowledged takes a ready ACK. e.mu is held.
func (e *Endpoint) acknowledged(hs wire.HandShake) wire.HandShake {
	if st := e.State(); st != WaitReadyAck && st != Connected {
		return e.set.reject(hs, e.nums, "Received RDMA ready ACK for unconnected endpoint")
	}
	if !slices.Equal(hs.QPNum, e.peer) {
		return e.set.reject(hs, e.nums, "Received stale RDMA ready ACK with mismatched peer QP numbers")
	}
	e.move(WaitReadyAck, Connected)
	return wire.HandShake{}
}

// passiveOnly reports whether nobody here asked for the endpoint.
func (e *Endpoint) passiveOnly() bool {
	e.set.mu.Lock()
	defer e.set.mu.Unlock()
	return e.dialAt == 0 && !e.wanted.Load()
}
