package railhop

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/path/pxn"
	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/relay"
	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// find claims a lane of a live peer on a rail.
func (r *rank) find(_ context.Context, rail string, held func(uint64) bool) (*pxn.Claim, xfer.Reason, error) {
	peers, _, err := r.registry.Scan()
	if err != nil {
		return nil, registryReason(err), err
	}
	why, cause := xfer.NoPeer, error(nil)
	for _, p := range peers {
		index, ok := p.HasRail(rail)
		if !ok {
			continue
		}
		if suspected, text := p.Suspected(r.host.loop.Now()); suspected {
			why, cause = xfer.RelaySuspected, fmt.Errorf("%s: %s", p.Name(), text)
			continue
		}
		pr := &peer{OtherRank: p, end: r.end(p)}
		rails := make(map[string]uint32)
		for i, name := range p.Rails() {
			rails[name] = uint32(i)
		}
		if held(p.Epoch()) {
			return &pxn.Claim{Peer: pr, Held: true, Rails: rails}, xfer.NoReason, nil
		}
		r.relays.Store(p.Epoch(), len(p.Rails()))
		n, err := p.Claim(r.entry.Identity(), r.entry.Epoch())
		switch {
		case err == nil:
		case errors.Is(err, registry.ErrNoLane):
			why, cause = xfer.NoLane, err
			continue
		case errors.Is(err, registry.ErrOff):
			why, cause = xfer.PXNSwitched, err
			continue
		case errors.Is(err, registry.ErrStopping), errors.Is(err, registry.ErrGone):
			why, cause = xfer.NoPeer, err
			continue
		default:
			return nil, registryReason(err), err
		}
		at, page := shmabi.Doorbell(p.Bytes(), n)
		r.log.Debug("lane claimed", "peer", p.Name(), "lane", n, "rail", rail, "index", index)
		return &pxn.Claim{
			Peer: pr, Mem: r.hooks.lane(SenderEnd, lane.Map(p.Block(), n)), Lane: n, Geometry: r.geometry(p.SlotSize()),
			Handle: p.ArenaHandle(), Arena: p.ArenaSize(), Rails: rails, DoorbellPage: page, DoorbellAt: at,
		}, xfer.NoReason, nil
	}
	return nil, why, cause
}

// findSender finds the rank that has claimed a lane of ours.
func (r *rank) findSender(_ context.Context, n int) (relay.Sender, error) {
	var id shmabi.Identity
	var epoch uint64
	err := shm.Guard(func() error {
		h := &r.entry.Block().Lanes[n].Header
		id, epoch = h.Sender, h.SenderEpoch.Load()
		return nil
	})
	if err != nil {
		return nil, err
	}
	o, err := r.registry.LaneOwner(id, epoch)
	if err != nil {
		return nil, err
	}
	return &sender{LaneHolder: o, end: r.end(o), name: fmt.Sprintf("%d.%d.%d.%d", id.UID, id.PID, id.StartTicks, epoch)}, nil
}

// peer is a rank that relays for us.
type peer struct {
	registry.OtherRank
	end end
}

// Suspected implements [pxn.Peer].
func (p *peer) Suspected(now time.Duration) (bool, xfer.Reason) {
	suspected, _ := p.OtherRank.Suspected(now)
	return suspected, xfer.RelaySuspected
}

// Gone implements [pxn.Peer].
func (p *peer) Gone() bool { return p.end.come() }

// Watched implements [pxn.Peer].
func (p *peer) Watched() bool { return p.HasPidfd() }

// Leaving implements [pxn.Peer].
func (p *peer) Leaving() xfer.Reason {
	switch {
	case p.Off():
		return xfer.PXNSwitched
	case p.Stopping():
		return xfer.RelayStopping
	}
	return xfer.NoReason
}

// Wake implements [pxn.Peer].
func (p *peer) Wake() { p.OtherRank.Wake() }

// Fault implements [pxn.Peer].
func (p *peer) Fault(err error) { p.OtherRank.Fault(err) }

// sender is a rank that holds a lane of ours.
type sender struct {
	registry.LaneHolder
	name string
	end  end
}

// Name implements [relay.Sender].
func (s *sender) Name() string { return s.name }

// Suspected implements [relay.Sender].
func (s *sender) Suspected(now time.Duration) bool {
	suspected, _ := s.LaneHolder.Suspected(now)
	return suspected
}

// Gone implements [relay.Sender].
func (s *sender) Gone() bool { return s.end.come() }

// Wake implements [relay.Sender].
func (s *sender) Wake() { s.LaneHolder.Wake() }

// end is what the pump knows of the end of another process. It asks the system once
// a millisecond at most, and once more whenever the watcher has told of a death: the
// pump may sleep after that, and nothing else would wake it.
type end struct {
	of      interface{ Closed() bool }
	now     func() time.Duration
	deaths  *atomic.Uint64 // told by the watcher
	told    uint64
	checked time.Duration
	gone    bool
}

func (r *rank) end(of interface{ Closed() bool }) end {
	return end{of: of, now: r.host.loop.Now, deaths: &r.deaths}
}

func (e *end) come() bool {
	if e.gone {
		return true
	}
	now, told := e.now(), e.deaths.Load()
	if now-e.checked < time.Millisecond && told == e.told {
		return false
	}
	e.checked, e.told = now, told
	e.gone = e.of.Closed()
	return e.gone
}
