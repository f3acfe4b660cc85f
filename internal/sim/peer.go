package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

// rankPeer implements [registry.OtherRank].
type rankPeer struct {
	v       *view
	e       *entry
	beat    uint64
	changed time.Duration
	watched bool
}

func (x *rankPeer) Name() string                          { return x.e.name }
func (x *rankPeer) Epoch() uint64                         { return x.e.epoch }
func (x *rankPeer) Rails() []string                       { return x.e.opts.Rails }
func (x *rankPeer) SlotSize() uint64                      { return x.e.opts.SlotSize }
func (x *rankPeer) ArenaSize() uint64                     { return shmabi.Lanes * shmabi.Slots * x.e.opts.SlotSize }
func (x *rankPeer) ArenaHandle() [shmabi.HandleBytes]byte { return x.e.opts.ArenaHandle }
func (x *rankPeer) Block() *shmabi.ControlBlock           { return x.e.mem.block }
func (x *rankPeer) Bytes() []byte                         { return x.e.mem.bytes }
func (x *rankPeer) HasPidfd() bool                        { return !x.v.p.w.plan.blind }
func (x *rankPeer) Fault(error) bool                      { return x.e.cut }
func (x *rankPeer) Close() error                          { return nil }

func (x *rankPeer) HasRail(name string) (int, bool) {
	i := slices.Index(x.e.opts.Rails, name)
	return i, i >= 0
}

func (x *rankPeer) Off() bool {
	return !x.e.cut && x.e.mem.block.Header.Flags.Load()&shmabi.FlagOff != 0
}

func (x *rankPeer) Stopping() bool {
	return x.e.cut || x.e.mem.block.Header.State.Load() != shmabi.StateReady
}

func (x *rankPeer) Suspected(now time.Duration) (bool, string) {
	switch {
	case x.e.cut:
		return true, "its file was truncated"
	case x.e.mem.block.Header.Life.Load()&shmabi.LifeOwnerDied != 0:
		return true, "its process died"
	}
	w := x.v.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	beat := x.e.mem.block.Header.Heartbeat.Load()
	if !x.watched || beat != x.beat {
		x.watched, x.beat, x.changed = true, beat, now
	}
	if now-x.changed >= x.v.timeout {
		return true, "its heartbeat stands still"
	}
	return false, ""
}

func (x *rankPeer) Closed() bool {
	if x.v.p.zombie() {
		return true
	}
	return x.e.closed && !x.v.p.w.plan.blind
}

func (x *rankPeer) Wake() bool {
	w := x.v.p.w
	if x.v.p.zombie() || x.e.cut || w.opts.Bug == LostWake && w.ids%3 == 0 {
		return false
	}
	return x.e.mem.block.Header.Wake.CompareAndSwap(1, 0)
}

// Claim implements [registry.OtherRank], in two steps: the claimer may die between.
func (x *rankPeer) Claim(sender shmabi.Identity, epoch uint64) (lane int, err error) {
	p, e := x.v.p, x.e
	w := p.w
	key := "claim " + p.name + " of " + e.p.name
	held := false
	for try := 0; !held; try++ {
		err := w.call(p, 10*time.Microsecond, time.Millisecond, key, "claim: lock", func() error {
			switch {
			case e.died || e.cut:
				return registry.ErrGone
			case e.claims != nil:
				if try >= 10 {
					return registry.ErrBusy
				}
				return nil
			}
			held = true
			var err error
			if lane, err = x.pick(sender, epoch); err != nil {
				return err
			}
			e.claims = p
			if !w.quiet && w.plan.hits > 0 && w.chance(1, 40) {
				w.fault("killed while it claims", p.name)
				w.kill(p, time.Duration(1+w.rng.Int64N(int64(20*time.Millisecond))))
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	err = w.call(p, time.Microsecond, 500*time.Microsecond, key, "claim: ready", func() error {
		if e.cut {
			e.claims = nil
			return registry.ErrGone
		}
		h := &e.mem.block.Lanes[lane].Header
		if h.State.Load() == shmabi.LaneClaiming || w.opts.Bug == SharedLane {
			h.Sender = sender
			h.SenderEpoch.Store(epoch)
			h.ArenaAttached.Store(0)
			h.State.Store(shmabi.LaneReady)
		}
		e.claims = nil
		e.p.taken = true
		return nil
	})
	return lane, err
}

// pick chooses a lane, under the flock.
func (x *rankPeer) pick(sender shmabi.Identity, epoch uint64) (int, error) {
	w, b := x.v.p.w, x.e.mem.block
	switch {
	case b.Header.State.Load() != shmabi.StateReady:
		return 0, registry.ErrStopping
	case b.Header.Flags.Load()&shmabi.FlagOff != 0:
		return 0, registry.ErrOff
	case w.hits(x.v.p, "claim: no space", 10):
		return 0, fmt.Errorf("sim: claim: %w", shm.ErrNoSpace)
	}
	free := -1
	for i := range shmabi.Lanes {
		h := &b.Lanes[i].Header
		switch h.State.Load() {
		case shmabi.LaneReady:
			if w.opts.Bug == SharedLane {
				return i, nil
			}
			if h.SenderEpoch.Load() == epoch && h.Sender == sender {
				return i, nil
			}
		case shmabi.LaneFree:
			if free < 0 {
				free = i
			}
		}
	}
	if free < 0 {
		return 0, registry.ErrNoLane
	}
	b.Lanes[free].Header.State.Store(shmabi.LaneClaiming)
	return free, nil
}

// laneHolder implements [registry.LaneHolder].
type laneHolder struct{ x *rankPeer }

func (o *laneHolder) Suspected(now time.Duration) (bool, string) {
	if o.x == nil {
		return true, "its entry is not known"
	}
	return o.x.Suspected(now)
}
func (o *laneHolder) Closed() bool { return o.x != nil && o.x.Closed() }
func (o *laneHolder) Wake() bool   { return o.x != nil && o.x.Wake() }
func (o *laneHolder) Close() error { return nil }
