package sim

import (
	"fmt"
	"io"
	"slices"
	"sync/atomic"
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
	for _, o := range g.w.procs {
		for _, e := range o.entries {
			if e.claims == p {
				e.claims = nil // the kernel drops its locks, of files without a name too
			}
		}
	}
	g.ring()
}

// ring wakes the pumps of those who watch, each after a while.
func (g *group) ring() {
	w := g.w
	for _, p := range w.procs {
		for _, x := range p.watches {
			if !x.closed.Load() {
				w.after(p, 20*time.Microsecond, 500*time.Microsecond, "watch "+p.name, "death seen", func() {
					if !x.closed.Load() {
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
	if w.hits(p, "registry", 20) {
		return nil, fmt.Errorf("sim: registry: %w", shm.ErrNoSpace)
	}
	return &view{p: p, g: &w.group, timeout: o.HeartbeatTimeout, peers: make(map[*entry]*rankPeer)}, nil
}

// Publish implements [registry.Group].
func (v *view) Publish(o registry.EntryOptions) (registry.OwnEntry, error) {
	w := v.p.w
	e := &entry{g: v.g, p: v.p, opts: o}
	err := w.call(v.p, 50*time.Microsecond, 2*time.Millisecond, "publish "+v.p.name, "publish", func() error {
		if w.hits(v.p, "publish: no space", 20) {
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
		if w.hits(v.p, "registry busy", 10) {
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
	closed atomic.Bool
}

// Close implements [io.Closer].
func (x *watch) Close() error {
	x.closed.Store(true)
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
