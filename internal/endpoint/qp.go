package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
)

// refusal is a rejection in Mooncake's words, since it travels.
type refusal string

func (r refusal) Error() string { return string(r) }

// maxQPs is the most queue pairs of one endpoint.
const maxQPs = 255

// makeQPs makes n fresh queue pairs, and destroys those of an earlier attempt,
// which were never connected. e.mu is held.
func (e *Endpoint) makeQPs(n int) error {
	if err := closeQPs(e.qps, e.set.opts.CloseTimeout); err != nil {
		return err
	}
	e.qps, e.nums = nil, nil
	for range n {
		qp, err := e.set.opts.NIC.PD.NewQP(nic.QPOptions{CQ: e.set.cq, MaxWR: e.set.opts.MaxWR})
		if err != nil {
			return fmt.Errorf("endpoint: queue pair on %s: %w", e.set.opts.NIC.Name, err)
		}
		e.qps = append(e.qps, qp)
		e.nums = append(e.nums, qp.Num())
	}
	e.used, e.runs = make([]int, n), make([]runs, n)
	return nil
}

// connectQPs moves the queue pairs to RTS, queue pair i toward the peer's i. e.mu is
// held.
func (e *Endpoint) connectQPs(gid nic.GID, lid uint16, peer []uint32) error {
	o := &e.set.opts
	for i, qp := range e.qps {
		for _, step := range [...]struct {
			text string
			attr nic.QPAttr
		}{
			{"RESET", nic.QPAttr{State: nic.Reset}},
			{"INIT, check local context port num", nic.QPAttr{
				State:     nic.Init,
				Access:    nic.LocalWrite | nic.RemoteRead | nic.RemoteWrite,
				PKeyIndex: o.PKeyIndex,
			}},
			{"RTR, check mtu, gid, peer lid, peer qp num", nic.QPAttr{
				State:        nic.RTR,
				RemoteQPN:    peer[i],
				RemoteGID:    gid,
				RemoteLID:    lid,
				MTU:          o.MTU,
				TrafficClass: o.TrafficClass,
				ServiceLevel: o.ServiceLevel,
			}},
			{"RTS", nic.QPAttr{State: nic.RTS}},
		} {
			if err := qp.Modify(step.attr); err != nil {
				return refusal(fmt.Sprintf("Failed to modify QP to %s: %v", step.text, err))
			}
		}
	}
	e.peer = slices.Clone(peer)
	return nil
}

// handshake returns the message that describes this end. e.mu is held.
func (e *Endpoint) handshake(readyAck bool) wire.HandShake {
	port := e.set.opts.NIC.Device.Port()
	return wire.HandShake{
		LocalNICPath: e.set.path,
		PeerNICPath:  e.path,
		LocalLID:     port.LID,
		LocalGID:     port.GID.String(),
		QPNum:        slices.Clone(e.nums),
		ReadyAck:     &readyAck,
		RelayEpoch:   e.set.opts.RelayEpoch,
	}
}

func closeQPs(qps []nic.QP, timeout time.Duration) error {
	if len(qps) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var errs []error
	for _, qp := range qps {
		if err := qp.Close(ctx); err != nil && !errors.Is(err, nic.ErrClosed) {
			errs = append(errs, fmt.Errorf("endpoint: close queue pair %d: %w", qp.Num(), err))
		}
	}
	return errors.Join(errs...)
}

// quiesce moves the queue pairs to ERR.
func (e *Endpoint) quiesce() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, qp := range e.qps {
		if err := qp.Modify(nic.QPAttr{State: nic.Err}); err != nil && !errors.Is(err, nic.ErrClosed) {
			e.set.opts.Log.Debug("queue pair not moved to ERR", "peer", e.path, "qpn", qp.Num(), "error", err)
		}
	}
}

// teardown ends a dead endpoint: ERR, flush, destroy. If the peer of a queue pair
// cannot be reached, what was posted to it may still land, so it tries again
// until the set is closed.
func (e *Endpoint) teardown() {
	s := e.set
	defer s.wg.Done()
	e.quiesce()
	e.awaitFlush()
	e.mu.Lock()
	qps := e.qps // nobody makes others for a dead endpoint
	e.mu.Unlock()
	err := closeQPs(qps, s.opts.CloseTimeout)
	for wait := 100 * time.Millisecond; err != nil; wait = min(2*wait, 10*time.Second) {
		s.opts.Log.Warn("queue pairs not closed: what was posted may still land", "peer", e.path, "error", err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.closing:
			timer.Stop()
			if err = closeQPs(qps, s.opts.CloseTimeout); err != nil {
				s.mu.Lock()
				s.closeErr = errors.Join(s.closeErr, fmt.Errorf("endpoint: %s: %w", e.path, err))
				s.mu.Unlock()
			}
			return
		}
		err = closeQPs(qps, s.opts.CloseTimeout)
	}
	s.mu.Lock()
	if m := s.relayed[e.epoch]; m != nil {
		if delete(m, e); len(m) == 0 {
			delete(s.relayed, e.epoch)
		}
	}
	s.gone = append(s.gone, e)
	s.hasGone.Store(true)
	s.mu.Unlock()
	close(e.gone)
	s.changed()
}

// awaitFlush waits until everything posted has been reported, for a bounded time. It does
// not wait once the set is closed, since then nobody polls, nor for a run without its end.
func (e *Endpoint) awaitFlush() {
	timer := time.NewTimer(e.set.opts.FlushTimeout)
	defer timer.Stop()
	for e.open.Load() > 0 && !e.cut.Load() {
		select {
		case <-e.drained:
		case <-timer.C:
			return
		case <-e.set.closing:
			return
		}
	}
}
