package registry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

// Snapshot is a group as somebody from outside sees it: plain values.
type Snapshot struct {
	Path    string
	Off     bool // ranks to come start switched off
	Ranks   []Rank
	Refused []Refusal
}

// Rank is one entry of a [Snapshot].
type Rank struct {
	Name          string
	Owner         shmabi.Identity
	Epoch         uint64
	Rails         []string
	SlotSize      uint64
	ArenaSize     uint64
	State         uint32 // shmabi.StateInitializing, ...
	Off           bool
	Sleeping      bool // its pump has announced that it sleeps
	SameNamespace bool // its pid means something here
	Life          Liveness
	Suspected     string        // why, or empty
	Beating       bool          // the heartbeat changed between two looks
	HeartbeatAge  time.Duration // at least; since the first look that saw this heartbeat
	Lanes         [shmabi.Lanes]Lane
	Stats         *Stats // nil if there are none, or none to be read
	StatsError    string
}

// Lane is one lane of a [Rank].
type Lane struct {
	State       uint32 // shmabi.LaneFree, ...
	Attached    bool
	Sender      shmabi.Identity
	SenderEpoch uint64
	Head        uint64
	Doorbell    uint64
	Completed   uint64
	Slots       SlotCounts
}

// SlotCounts are the slots of a lane by what is in them. They sum to
// shmabi.Slots for a lane that is ready.
type SlotCounts struct {
	Free    int
	Copying int // committed, the bytes are on their way
	Waiting int // the bytes are there, the relay has not claimed
	Claimed int
	Done    int // the relay has answered, the lane's word not yet
	Revoked int
	Broken  int // words that contradict each other
}

// Viewer looks at a group without being part of it: it maps read-only, takes no
// lock and writes nothing, not even a directory. It belongs to one goroutine.
type Viewer struct {
	opts  Options
	dir   *shm.Dir
	uid   uint32 // whose group it is
	look  *looker
	beats map[string]seenBeat
}

type seenBeat struct {
	value uint64
	since time.Duration
	moved bool
}

// OpenView opens a group that exists; one that does not is an error that wraps
// [os.ErrNotExist].
func OpenView(o Options) (*Viewer, error) {
	o = o.withDefaults()
	if err := CheckGroup(o.Group); err != nil {
		return nil, err
	}
	self, err := o.Processes.Self()
	if err != nil {
		return nil, fmt.Errorf("registry: who am I: %w", err)
	}
	dir, err := shm.OpenDir(filepath.Join(o.Root, o.Group))
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	st, err := dir.Stat()
	if err == nil {
		err = checkGroupDir(dir.Path(), &st, st.Uid) // root may look at anybody's
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("registry: %w", err)
	}
	return &Viewer{
		opts: o, dir: dir, uid: st.Uid, beats: map[string]seenBeat{},
		look: &looker{self, o.Processes, o.HeartbeatTimeout},
	}, nil
}

// View looks twice, with a pause, so that heartbeats can be judged.
func View(o Options, pause time.Duration) (*Snapshot, error) {
	v, err := OpenView(o)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	if _, err := v.Look(); err != nil {
		return nil, err
	}
	time.Sleep(pause)
	return v.Look()
}

// Close closes the viewer.
func (v *Viewer) Close() error { return v.dir.Close() }

// Look takes a snapshot. Heartbeats are compared with those of earlier looks.
func (v *Viewer) Look() (*Snapshot, error) {
	names, err := v.dir.Names()
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	slices.Sort(names)
	s := &Snapshot{Path: v.dir.Path(), Off: slices.Contains(names, offName)}
	beats := map[string]seenBeat{}
	for _, name := range names {
		if _, _, ok := parseName(name); !ok {
			continue
		}
		p, bad := openPeer(v.dir, v.look, v.uid, name, false)
		if bad != nil {
			bad.Name = name
			s.Refused = append(s.Refused, *bad)
			continue
		}
		rank, err := v.rank(p, beats)
		p.drop()
		if err != nil {
			s.Refused = append(s.Refused, Refusal{name, Unreadable, err.Error()})
			continue
		}
		s.Ranks = append(s.Ranks, rank)
	}
	v.beats = beats
	return s, nil
}

func (v *Viewer) rank(p *Peer, beats map[string]seenBeat) (Rank, error) {
	r := Rank{
		Name: p.name, Owner: p.hdr.owner, Epoch: p.hdr.epoch, Rails: p.hdr.rails,
		SlotSize: p.hdr.slotSize, ArenaSize: p.hdr.arenaSize, SameNamespace: p.sameNS,
	}
	var heartbeat uint64
	if !p.touch(func(b *shmabi.ControlBlock) {
		h := &b.Header
		r.State, r.Off = h.State.Load(), h.Flags.Load()&shmabi.FlagOff != 0
		r.Sleeping = h.Wake.Load() == 1
		heartbeat = h.Heartbeat.Load()
		for i := range r.Lanes {
			r.Lanes[i] = readLane(&b.Lanes[i])
		}
	}) {
		return r, shm.ErrTruncated
	}
	now := v.opts.Now()
	seen, ok := v.beats[p.name]
	if !ok || seen.value != heartbeat {
		seen = seenBeat{heartbeat, now, ok}
	}
	beats[p.name] = seen
	r.Beating, r.HeartbeatAge = seen.moved, now-seen.since
	r.Life = p.Life()
	switch {
	case r.Life == Dead:
		r.Suspected = whyDied
	case r.HeartbeatAge >= v.look.timeout:
		r.Suspected = whyStale
	}
	var err error
	if r.Stats, err = readStats(v.dir, v.uid, p.name); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.StatsError = err.Error()
	}
	return r, nil
}

// readLane reads a lane's words. Only the first page of a lane that nobody has
// claimed is sure to be there: to read on would take space in the file system.
func readLane(lc *shmabi.LaneControl) Lane {
	h := &lc.Header
	l := Lane{State: h.State.Load()}
	if l.State != shmabi.LaneReady {
		return l
	}
	l.Attached = h.ArenaAttached.Load() != 0
	l.Sender, l.SenderEpoch = h.Sender, h.SenderEpoch.Load()
	// Oldest first, so that they can only seem too far apart, not swapped.
	l.Completed, l.Doorbell, l.Head = h.Completed.Load(), h.Doorbell.Load(), h.Head.Load()
	l.Slots = countSlots(lc, l)
	return l
}

func countSlots(lc *shmabi.LaneControl, l Lane) SlotCounts {
	var c SlotCounts
	if l.Head < l.Completed || l.Head > shmabi.MaxSequence || l.Head-l.Completed > shmabi.Slots {
		return SlotCounts{Broken: shmabi.Slots}
	}
	for seq := l.Completed + 1; seq <= l.Head; seq++ {
		slot := (seq - 1) % shmabi.Slots
		commit := lc.Descriptors[slot].Commit.Load()
		switch {
		case lc.Completions[slot].Commit.Load() == seq:
			c.Done++
		case commit == seq|shmabi.Claimed:
			c.Claimed++
		case commit == 0:
			c.Revoked++
		case commit != seq:
			c.Broken++
		case l.Doorbell >= seq:
			c.Waiting++
		default:
			c.Copying++
		}
	}
	c.Free = shmabi.Slots - int(l.Head-l.Completed)
	return c
}
