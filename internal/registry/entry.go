package registry

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

// EntryOptions is what a rank publishes of itself.
type EntryOptions struct {
	Rails       []string // canonical names, 1..16, together at most 256 bytes with their NULs
	SlotSize    uint64   // bytes, a power of two, 256 KiB to 8 MiB
	ArenaHandle [shmabi.HandleBytes]byte
}

// Entry is a control block of this process.
type Entry struct {
	r     *Registry
	name  string
	rails []string
	id    shmabi.Identity
	epoch uint64
	file  *shm.File
	m     *shm.Mapping
	block *shmabi.ControlBlock
	life  *shm.Robust

	mu        sync.Mutex
	withdrawn bool
	closed    bool
}

// Publish makes a control block and shows it to the group: reserved, locked,
// filled and alive before anybody can see it. Entries of dead ranks are
// reclaimed on the way. It returns [ErrGroupFull] if eight ranks are there,
// [ErrBusy] if the directory's lock was not to be had, and an error that wraps
// [shm.ErrNoSpace] if the file system is full.
func (r *Registry) Publish(o EntryOptions) (*Entry, error) {
	rails, err := packRails(o.Rails)
	if err != nil {
		return nil, err
	}
	if err := checkSlotSize(o.SlotSize); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	e, err := r.makeEntry()
	if err != nil {
		return nil, err
	}
	e.rails = append([]string(nil), o.Rails...)
	if err := shm.Guard(func() error { return e.fill(o, rails) }); err != nil {
		e.release()
		return nil, fmt.Errorf("registry: fill %s: %w", e.name, err)
	}
	if e.life, err = shm.HoldRobust(&e.block.Header.Life); err != nil {
		e.release()
		return nil, fmt.Errorf("registry: life word of %s: %w", e.name, err)
	}
	if err := r.link(e); err != nil {
		e.release()
		return nil, err
	}
	r.opts.Logger.Debug("registry: published", "entry", e.name, "rails", e.rails)
	return e, nil
}

// makeEntry makes the file, takes its liveness lock, reserves what the owner
// will touch and maps it.
func (r *Registry) makeEntry() (*Entry, error) {
	epoch, err := newEpoch()
	if err != nil {
		return nil, err
	}
	id := shmabi.Identity{UID: r.uid, PID: r.self.PID, StartTicks: r.self.StartTicks}
	e := &Entry{r: r, id: id, epoch: epoch, name: entryName(id, epoch)}
	if e.file, err = r.dir.Create(shmabi.ControlBytes); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	err = e.file.LockLiveness()
	if err == nil {
		err = e.reserve()
	}
	if err == nil {
		e.m, err = e.file.Map(true)
	}
	if err == nil {
		e.block, err = shmabi.ControlAt(e.m.Bytes())
	}
	if err != nil {
		e.release()
		return nil, fmt.Errorf("registry: make an entry: %w", err)
	}
	return e, nil
}

const laneHeaderBytes = 64

// reserve allocates what the owner touches: the header, and each lane's first
// page. A claimer reserves the rest of its lane.
func (e *Entry) reserve() error {
	ranges := []shm.Range{shm.Pages(0, shmabi.LaneOffset(0)+laneHeaderBytes)}
	for i := 1; i < shmabi.Lanes; i++ {
		ranges = append(ranges, shm.Pages(shmabi.LaneOffset(i), laneHeaderBytes))
	}
	return e.file.Reserve(ranges...)
}

func (e *Entry) fill(o EntryOptions, rails []byte) error {
	h := &e.block.Header
	h.Magic = shmabi.Magic
	h.ABIVersion = shmabi.ABIVersion
	h.HeaderBytes = shmabi.HeaderBytes
	h.MappingBytes = shmabi.ControlBytes
	h.Owner = e.id
	h.Epoch = e.epoch
	h.LaneCount = shmabi.Lanes
	h.SlotsPerLane = shmabi.Slots
	h.SlotSize = o.SlotSize
	h.ArenaSize = arenaSize(o.SlotSize)
	h.HandleBytes = shmabi.HandleBytes
	h.RailCount = uint32(len(o.Rails))
	h.RailBytes = uint32(len(rails))
	copy(h.Rail[:], rails)
	h.ArenaHandle = o.ArenaHandle
	h.BootIDHash = e.r.self.BootIDHash
	h.PIDNamespace = e.r.self.PIDNamespace
	h.Heartbeat.Store(uint64(e.r.opts.Now()))
	h.State.Store(shmabi.StateReady)
	return nil
}

// link shows the entry to the group, if there is room and a lock.
func (r *Registry) link(e *Entry) error {
	return r.locked(func() error {
		live, err := r.reclaimAll()
		if err != nil {
			return err
		}
		if live >= MaxRanks {
			return fmt.Errorf("%w: %d entries in %s, at most %d", ErrGroupFull, live, r.dir.Path(), MaxRanks)
		}
		off, err := r.offMarker()
		if err != nil {
			return err
		}
		if off {
			e.block.Header.Flags.Or(shmabi.FlagOff)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.closed {
			return errors.New("registry: closed")
		}
		if err := r.dir.Link(e.file, e.name); err != nil {
			return fmt.Errorf("registry: publish: %w", err)
		}
		r.entries[e.name] = e
		return nil
	})
}

func newEpoch() (uint64, error) {
	for {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("registry: epoch: %w", err)
		}
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n, nil
		}
	}
}

// Name is the entry's file name.
func (e *Entry) Name() string { return e.name }

// Rails are the rails that the entry offers.
func (e *Entry) Rails() []string { return e.rails }

// Identity is this process.
func (e *Entry) Identity() shmabi.Identity { return e.id }

// Epoch is the entry's random number, never 0.
func (e *Entry) Epoch() uint64 { return e.epoch }

// Block is the control block. Touch it under [shm.Guard], and not after Close.
func (e *Entry) Block() *shmabi.ControlBlock { return e.block }

// Bytes is the control block's memory, page-aligned.
func (e *Entry) Bytes() []byte { return e.m.Bytes() }

// Descriptor is the entry's file; see [Registry.Descriptors].
func (e *Entry) Descriptor() int { return e.file.Descriptor() }

// Contains reports whether addr, of a [shm.FaultError], lies in this block.
func (e *Entry) Contains(addr uintptr) bool { return e.m.Contains(addr) }

// Beat tells the group that the pump turns. now must differ from call to call.
func (e *Entry) Beat(now time.Duration) error {
	return shm.Guard(func() error { e.block.Header.Heartbeat.Store(uint64(now)); return nil })
}

// Off reports whether the rank's relay is switched off.
func (e *Entry) Off() bool {
	off := false
	shm.Guard(func() error { off = e.block.Header.Flags.Load()&shmabi.FlagOff != 0; return nil })
	return off
}

// Withdraw marks the entry as stopping and takes it out of the directory, with
// its stats. The block stays mapped, and alive, for those who still use it. It
// returns [ErrBusy] if the directory's lock was not to be had: try again. A
// second call does nothing.
func (e *Entry) Withdraw() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.withdraw()
}

func (e *Entry) withdraw() error {
	if e.withdrawn {
		return nil
	}
	fault := e.stop()
	err := e.r.locked(func() error { return e.r.unlink(e.name, e.file) })
	if err != nil {
		return err
	}
	e.withdrawn = true
	return fault
}

// stop says that no lane is to be claimed any more, under the lock that claims are
// made under: whoever looks at the lanes after it sees all that ever will be.
func (e *Entry) stop() error {
	f, err := e.reopen()
	if err == nil {
		defer f.Close() // unlocks
		err = f.Flock(e.r.opts.LockWait)
	}
	fault := shm.Guard(func() error { e.block.Header.State.Store(shmabi.StateStopping); return nil })
	return errors.Join(fault, err)
}

// Close withdraws the entry, if that has not been done, and takes its memory
// away; nobody may be in the block any more. It goes through even if it returns
// an error. A second call does nothing.
func (e *Entry) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	err := e.withdraw()
	e.r.mu.Lock()
	delete(e.r.entries, e.name)
	e.r.mu.Unlock()
	return errors.Join(err, e.release())
}

// release gives back what makeEntry and Publish took. The mapping goes before
// the file: it, too, holds the liveness lock.
func (e *Entry) release() error {
	if e.life != nil {
		e.life.Release()
	}
	var errs []error
	if e.m != nil {
		errs = append(errs, e.m.Unmap())
	}
	return errors.Join(append(errs, e.file.Close())...)
}
