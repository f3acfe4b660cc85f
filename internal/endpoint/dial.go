package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
)

// errMoot ends a dial that is not needed any more.
var errMoot = errors.New("endpoint: connected by the peer")

// CountMismatch refuses a handshake with another number of queue pairs, in Mooncake's words.
const CountMismatch = "QP count mismatch in peer and local endpoints, check MC_MAX_EP_PER_CTX"

// startDial begins to connect e from this side. s.mu is held.
func (s *Set) startDial(e *Endpoint) {
	if !e.state.CompareAndSwap(uint32(Unconnected), uint32(Connecting)) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.DialTimeout)
	e.cancel.Store(&cancel)
	if e.State() == Dead {
		cancel()
	}
	p := s.peer(e.path)
	p.notBefore = max(p.notBefore, s.opts.Now()+s.opts.Pause)
	s.stats.Dials++
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer cancel()
		e.dial(ctx, p.qps)
	}()
}

// dial connects e, or lets it die.
func (e *Endpoint) dial(ctx context.Context, qps int) {
	s := e.set
	select {
	case s.opts.Gate.slots <- struct{}{}:
	case <-ctx.Done():
		e.dialFailed.Store(true)
		e.die(fmt.Errorf("endpoint: dial %s: %w", e.path, context.Cause(ctx)))
		return
	}
	defer func() { <-s.opts.Gate.slots }()
	if qps == 0 {
		qps = s.opts.QPs
	}
	err := e.connect(ctx, qps)
	if n := (*countError)(nil); errors.As(err, &n) {
		s.mu.Lock()
		s.peer(e.path).qps = n.want
		s.mu.Unlock()
		err = e.connect(ctx, n.want)
	}
	if err != nil && !errors.Is(err, errMoot) {
		e.dialFailed.Store(true)
		e.die(fmt.Errorf("endpoint: dial %s from %s: %w", e.path, s.path, err))
	}
}

// countError says that the peer has another number of queue pairs.
type countError struct{ have, want int }

func (e *countError) Error() string {
	return fmt.Sprintf("peer has %d queue pairs and rejects %d", e.want, e.have)
}

// connect does one handshake with qps queue pairs, in both phases. The lock is not
// held over a call to the peer, so the state is looked at again after each.
func (e *Endpoint) connect(ctx context.Context, qps int) error {
	s := e.set
	e.mu.Lock()
	if e.State() != Connecting {
		e.mu.Unlock()
		return errMoot
	}
	if err := e.makeQPs(qps); err != nil {
		e.mu.Unlock()
		return err
	}
	if e.path == s.path && s.opts.RelayEpoch == 0 {
		defer e.mu.Unlock()
		return e.loop()
	}
	req := e.handshake(false)
	e.mu.Unlock()

	server, _ := wire.SplitNICPath(e.path)
	reply, err := s.opts.Dialer.Connect(ctx, server, req)
	var gid nic.GID
	var lid uint16
	if err == nil && reply.ReplyMsg == "" {
		gid, lid, err = s.identity(ctx, e.path, reply)
	}
	ack, err := e.answered(req, reply, gid, lid, err)
	if err != nil || !ack {
		return err
	}
	yes := true
	req.ReadyAck = &yes
	reply, err = s.opts.Dialer.Connect(ctx, server, req)
	if err == nil {
		err = rejection(reply)
	}
	if err != nil {
		return fmt.Errorf("ready ACK: %w", err)
	}
	e.move(WaitReadyAck, Connected)
	return nil
}

// loop connects the queue pairs to themselves. e.mu is held.
func (e *Endpoint) loop() error {
	port := e.set.opts.NIC.Device.Port()
	if err := e.connectQPs(port.GID, port.LID, e.nums); err != nil {
		return err
	}
	if !e.move(Connecting, Connected) {
		return errMoot
	}
	return nil
}

func rejection(reply wire.HandShake) error {
	if reply.ReplyMsg == "" {
		return nil
	}
	return fmt.Errorf("rejected: %s", reply.ReplyMsg)
}

// answered makes use of a reply, and reports whether a ready ACK is to be sent.
func (e *Endpoint) answered(req, reply wire.HandShake, gid nic.GID, lid uint16, err error) (ack bool, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		err = rejection(reply)
	}
	switch e.State() {
	case Connecting:
	case WaitReadyAck, Connected:
		// The peer dialled meanwhile. If it connected to what was sent to it, and
		// with what it sent, both handshakes made the same connection.
		if err != nil {
			return false, errMoot
		}
		if !slices.Equal(e.nums, req.QPNum) || !slices.Equal(e.peer, reply.QPNum) {
			return false, errors.New("two handshakes crossed and disagree on the queue pairs")
		}
		return reply.ReadyAck != nil, nil
	default:
		return false, errMoot
	}
	if err != nil {
		if n := len(reply.QPNum); strings.HasPrefix(reply.ReplyMsg, "QP count mismatch") && n != len(req.QPNum) && n > 0 && n <= maxQPs {
			return false, &countError{have: len(req.QPNum), want: n}
		}
		return false, err
	}
	if reply.LocalNICPath != e.path || reply.PeerNICPath != e.set.path {
		return false, fmt.Errorf("reply is of %q to %q, not of %q to %q", reply.LocalNICPath, reply.PeerNICPath, e.path, e.set.path)
	}
	if n := len(reply.QPNum); n != len(e.qps) {
		return false, fmt.Errorf("reply lists %d queue pairs, not %d", n, len(e.qps))
	}
	if err := e.connectQPs(gid, lid, reply.QPNum); err != nil {
		return false, err
	}
	next := Connected
	if reply.ReadyAck != nil {
		next = WaitReadyAck
	}
	if !e.move(Connecting, next) {
		return false, errMoot
	}
	return reply.ReadyAck != nil, nil
}

// identity returns the sender's GID and LID, from the message or, for peers that
// do not send them, from its descriptor.
func (s *Set) identity(ctx context.Context, path string, hs wire.HandShake) (nic.GID, uint16, error) {
	if hs.LocalGID == "" {
		if s.opts.Lookup == nil {
			return nic.GID{}, 0, refusal("Peer nic not found in that server: " + path)
		}
		gid, lid, err := s.opts.Lookup(ctx, path)
		if err != nil {
			return nic.GID{}, 0, refusal(fmt.Sprintf("Peer nic not found in that server: %s: %v", path, err))
		}
		return gid, lid, nil
	}
	gid, err := wire.ParseGID(hs.LocalGID)
	if err != nil {
		return nic.GID{}, 0, refusal("Invalid peer GID: " + hs.LocalGID)
	}
	return gid, hs.LocalLID, nil
}
