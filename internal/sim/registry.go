package sim

import (
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

// group is the registry of the one node that has ranks.
type group struct {
	w       *world
	entries []*entry // in the directory
	serial  uint64
}

// entry is a rank's file.
type entry struct {
	g      *group
	p      *proc
	name   string
	epoch  uint64
	mem    *shared
	opts   registry.EntryOptions
	died   bool  // the life word says so
	closed bool  // the pidfd has fired
	claims *proc // holds the entry's flock
	linked bool
	cut    bool // the file was truncated: whoever touches it faults
}

// truncate takes the memory of a rank's file away.
func (e *entry) truncate() {
	e.cut = true
	if err := unix.Mprotect(e.mem.bytes, unix.PROT_NONE); err != nil {
		panic(err)
	}
}

// restore undoes truncate, for the next run.
func (e *entry) restore() {
	if !e.cut {
		return
	}
	if err := unix.Mprotect(e.mem.bytes, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		panic(err)
	}
}

var errCut = fmt.Errorf("sim: %w", shm.ErrTruncated)

func (g *group) died(p *proc) {
	for _, e := range p.entries {
		e.died = true
		if !e.cut {
			e.mem.block.Header.Life.Or(shmabi.LifeOwnerDied)
		}
	}
	g.ring()
}

func (g *group) closed(p *proc) {
	for _, e := range p.entries {
		e.closed = true
	}
	for _, e := range g.entries {
		if e.claims == p {
			e.claims = nil // the kernel drops its locks
		}
	}
	g.ring()
}

// ring wakes the pumps of those who watch, each after a while.
func (g *group) ring() {
	w := g.w
	for _, p := range w.procs {
		for _, x := range p.watches {
			if !x.closed {
				w.after(p, 20*time.Microsecond, 500*time.Microsecond, "watch "+p.name, "death seen", func() {
					if !x.closed {
						x.notify()
					}
				})
			}
		}
	}
}

// holds reports whether a rank holds a lane of a live one: its entry then stays.
func (g *group) holds(e *entry) bool {
	for _, o := range g.entries {
		if o.died || o.cut {
			continue // even a field's address reads the first byte of what is cut
		}
		for i := range shmabi.Lanes {
			h := &o.mem.block.Lanes[i].Header
			if h.State.Load() == shmabi.LaneReady && h.SenderEpoch.Load() == e.epoch && h.Sender == e.p.identity() {
				return true
			}
		}
	}
	return false
}

// reclaim unlinks the entries of the dead.
func (g *group) reclaim() {
	g.entries = slices.DeleteFunc(g.entries, func(e *entry) bool {
		gone := e.died && !g.holds(e)
		if gone {
			e.linked = false
		}
		return gone
	})
}

// view is the group as a process sees it.
type view struct {
	p       *proc
	g       *group
	timeout time.Duration
	own     *entry
	peers   map[*entry]*rankPeer
}

func (w *world) openGroup(p *proc, o registry.Options) (registry.Group, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hits("registry", 20) {
		return nil, fmt.Errorf("sim: registry: %w", shm.ErrNoSpace)
	}
	return &view{p: p, g: &w.group, timeout: o.HeartbeatTimeout, peers: make(map[*entry]*rankPeer)}, nil
}

// Publish implements [registry.Group].
func (v *view) Publish(o registry.EntryOptions) (registry.OwnEntry, error) {
	w := v.p.w
	e := &entry{g: v.g, p: v.p, opts: o}
	err := w.call(v.p, 50*time.Microsecond, 2*time.Millisecond, "publish "+v.p.name, "publish", func() error {
		if w.hits("publish: no space", 20) {
			return fmt.Errorf("sim: publish: %w", shm.ErrNoSpace)
		}
		v.g.reclaim()
		if len(v.g.entries) >= registry.MaxRanks {
			return registry.ErrGroupFull
		}
		e.epoch = w.rng.Uint64() | 1
		v.g.serial++
		e.name = fmt.Sprintf("1000.%d.%d.%d", v.p.pid, v.p.identity().StartTicks, e.epoch)
		e.mem = w.pool.control()
		w.used.blocks = append(w.used.blocks, e.mem)
		h := &e.mem.block.Header
		h.Magic, h.Epoch, h.Owner = shmabi.Magic, e.epoch, v.p.identity()
		h.Heartbeat.Store(uint64(w.now()))
		h.State.Store(shmabi.StateReady)
		for i := range shmabi.Lanes {
			at, _ := shmabi.Doorbell(e.mem.bytes, i)
			w.bells[at] = bell{&e.mem.block.Lanes[i].Header.Doorbell, e}
		}
		v.g.entries = append(v.g.entries, e)
		v.p.entries = append(v.p.entries, e)
		e.linked = true
		v.own = e
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &ownEntry{e}, nil
}

// Scan implements [registry.Group].
func (v *view) Scan() (ranks []registry.OtherRank, _ []registry.Refusal, _ error) {
	w := v.p.w
	err := w.call(v.p, 20*time.Microsecond, 2*time.Millisecond, "scan "+v.p.name, "scan", func() error {
		if w.hits("registry busy", 10) {
			return registry.ErrBusy
		}
		v.g.reclaim()
		for _, e := range v.g.entries {
			if e.p != v.p && !e.died && !e.cut {
				ranks = append(ranks, v.peer(e))
			}
		}
		return nil
	})
	return ranks, nil, err
}

func (v *view) peer(e *entry) *rankPeer {
	x := v.peers[e]
	if x == nil {
		x = &rankPeer{v: v, e: e}
		v.peers[e] = x
	}
	return x
}

// LaneOwner implements [registry.Group].
func (v *view) LaneOwner(id shmabi.Identity, epoch uint64) (registry.LaneHolder, error) {
	w := v.p.w
	o := &laneHolder{}
	err := w.call(v.p, 20*time.Microsecond, 2*time.Millisecond, fmt.Sprintf("owner %s %x", v.p.name, epoch), "lane owner", func() error {
		for e, x := range v.peers {
			if e.epoch == epoch && e.p.identity() == id {
				o.x = x
			}
		}
		if o.x == nil {
			v.g.reclaim()
			for _, e := range v.g.entries {
				if e.epoch == epoch && e.p.identity() == id {
					o.x = v.peer(e)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return o, nil
}

type watch struct {
	p      *proc
	notify func()
	closed bool
}

// Close implements [io.Closer].
func (x *watch) Close() error {
	x.p.w.mu.Lock()
	defer x.p.w.mu.Unlock()
	x.closed = true
	return nil
}

// Watch implements [registry.Group].
func (v *view) Watch(notify func()) (io.Closer, error) {
	w := v.p.w
	x := &watch{p: v.p, notify: notify}
	w.mu.Lock()
	defer w.mu.Unlock()
	v.p.watches = append(v.p.watches, x)
	return x, nil
}

// Close implements [registry.Group].
func (v *view) Close() error { return nil }

// ownEntry implements [registry.OwnEntry].
type ownEntry struct{ e *entry }

func (o *ownEntry) Name() string                { return o.e.name }
func (o *ownEntry) Identity() shmabi.Identity   { return o.e.p.identity() }
func (o *ownEntry) Epoch() uint64               { return o.e.epoch }
func (o *ownEntry) Block() *shmabi.ControlBlock { return o.e.mem.block }

func (o *ownEntry) Beat(now time.Duration) error {
	switch {
	case o.e.p.zombie():
	case o.e.cut:
		return errCut
	default:
		o.e.mem.block.Header.Heartbeat.Store(uint64(now) + 1)
	}
	return nil
}

func (o *ownEntry) Off() bool {
	return !o.e.cut && o.e.mem.block.Header.Flags.Load()&shmabi.FlagOff != 0
}

func (o *ownEntry) SweepClaims() (n int, err error) {
	e := o.e
	err = e.p.w.call(e.p, 20*time.Microsecond, time.Millisecond, "sweep "+e.p.name, "sweep claims", func() error {
		switch {
		case e.cut:
			return errCut
		case e.claims != nil:
			return nil
		}
		for i := range shmabi.Lanes {
			h := &e.mem.block.Lanes[i].Header
			if h.State.Load() == shmabi.LaneClaiming {
				h.SenderEpoch.Store(0)
				h.Sender = shmabi.Identity{}
				h.State.Store(shmabi.LaneFree)
				n++
			}
		}
		return nil
	})
	return n, err
}

func (o *ownEntry) WriteStats(registry.Stats) error { return nil }

func (o *ownEntry) Withdraw() error {
	e := o.e
	w := e.p.w
	if e.p.zombie() {
		return nil
	}
	w.mu.Lock()
	linked := e.linked
	w.mu.Unlock()
	if !linked {
		return nil
	}
	if !e.cut {
		e.mem.block.Header.State.Store(shmabi.StateStopping)
	}
	return w.call(e.p, 20*time.Microsecond, time.Millisecond, "withdraw "+e.p.name, "withdraw", func() error {
		e.linked = false
		e.g.entries = slices.DeleteFunc(e.g.entries, func(x *entry) bool { return x == e })
		return nil
	})
}

func (o *ownEntry) Close() error { return o.Withdraw() }

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
	case w.hits("claim: no space", 10):
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
