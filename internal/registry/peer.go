package registry

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/proc"
	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

// Peer is another rank's control block, mapped.
//
// Scans return the same Peer to all, until one calls [Peer.Close]: do that when
// nothing is underway with it, since its memory stays in use until then. That of a
// peer that is closed goes by itself, once a [Watcher] has told of it, unless a
// lane was claimed. A [LaneOwner] holds on to its peer by itself. Methods may be
// called after the memory has gone: they answer with what was known.
type Peer struct {
	r      *Registry // nil in a view
	look   *looker
	name   string
	hdr    header
	file   *shm.File
	m      *shm.Mapping
	block  *shmabi.ControlBlock
	dev    uint64
	ino    uint64
	sameNS bool // as this process, so that its pid means something here
	// provable: there was a pidfd, or the process had ended, when it was opened
	provable bool

	// What is true once stays true.
	dead, closed, ended, truncated atomic.Bool

	claim sync.Mutex // one claim at a time, since they share a description

	mu       sync.Mutex // held to touch memory, so that it does not go meanwhile
	unmapped bool
	pidfd    int // -1: none
	refs     int
	listed   bool
	claims   int // each of them a hold
	beat     uint64
	changed  time.Duration // when beat was first seen, on our clock
	watched  bool          // changed is set
}

// looker is what it takes to judge a process.
type looker struct {
	self    proc.Self
	procs   Processes
	timeout time.Duration // of a heartbeat
}

// Name is the peer's file name.
func (p *Peer) Name() string { return p.name }

// Rails are the rails that the peer offers.
func (p *Peer) Rails() []string { return p.hdr.rails }

// HasRail reports whether the peer offers a rail, and as which index.
func (p *Peer) HasRail(name string) (index int, ok bool) {
	i := slices.Index(p.hdr.rails, name)
	return i, i >= 0
}

// Owner is the peer's process.
func (p *Peer) Owner() shmabi.Identity { return p.hdr.owner }

// Epoch is the entry's random number. Owner and Epoch together are unique.
func (p *Peer) Epoch() uint64 { return p.hdr.epoch }

// SlotSize is the size of the peer's slots.
func (p *Peer) SlotSize() uint64 { return p.hdr.slotSize }

// ArenaSize is the size of the peer's arena.
func (p *Peer) ArenaSize() uint64 { return p.hdr.arenaSize }

// ArenaHandle is what the peer exported its arena as.
func (p *Peer) ArenaHandle() [shmabi.HandleBytes]byte { return p.hdr.arenaHandle }

// HasPidfd reports whether the peer's end can be proven here. It cannot for a
// process of another pid namespace.
func (p *Peer) HasPidfd() bool { return p.provable }

// Block is the peer's control block. Touch it under [shm.Guard], after a claim
// and before Close; the header's plain fields have accessors that were checked.
func (p *Peer) Block() *shmabi.ControlBlock { return p.block }

// Bytes is the control block's memory, page-aligned.
func (p *Peer) Bytes() []byte { return p.m.Bytes() }

// Off reports whether the peer's relay is switched off.
func (p *Peer) Off() bool {
	off := false
	p.touch(func(b *shmabi.ControlBlock) { off = b.Header.Flags.Load()&shmabi.FlagOff != 0 })
	return off
}

// Stopping reports whether the peer takes no new lanes: it is shutting down, or
// is gone.
func (p *Peer) Stopping() bool {
	ready := false
	p.touch(func(b *shmabi.ControlBlock) { ready = b.Header.State.Load() == shmabi.StateReady })
	return !ready
}

// Wake wakes the peer's pump if it has announced that it sleeps, and reports
// whether it had. The word is 1 while it sleeps.
func (p *Peer) Wake() bool {
	woken := false
	p.touch(func(b *shmabi.ControlBlock) {
		w := &b.Header.Wake
		if w.Load() == 1 && w.CompareAndSwap(1, 0) {
			shm.Wake(w, 1)
			woken = true
		}
	})
	return woken
}

// Fault tells the peer of an error of [shm.Guard]. It reports whether the fault
// lay in this peer's block, which is then gone.
func (p *Peer) Fault(err error) bool {
	fault, ok := errors.AsType[*shm.FaultError](err)
	if !ok || !p.m.Contains(fault.Addr) {
		return false
	}
	p.cut()
	return true
}

// Truncated reports whether the block's memory is gone.
func (p *Peer) Truncated() bool { return p.truncated.Load() }

// touch runs f on the block, if it is there, and reports whether it went well.
func (p *Peer) touch(f func(*shmabi.ControlBlock)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unmapped || p.truncated.Load() {
		return false
	}
	if err := shm.Guard(func() error { f(p.block); return nil }); err != nil {
		p.cut()
		return false
	}
	return true
}

// cut marks the peer as lost to a truncation.
func (p *Peer) cut() {
	if p.truncated.Swap(true) || p.r == nil {
		return
	}
	p.r.truncated.Add(1)
	p.r.opts.Logger.Warn("registry: a peer's file was truncated", "entry", p.name)
}

// Close says that those who got the peer from scans are done with its block. Its
// memory goes once no [LaneOwner] holds it either. A scan that finds the entry
// again opens it anew. A second call does nothing.
func (p *Peer) Close() error {
	p.mu.Lock()
	holds := p.claims
	if p.listed {
		holds++
	}
	p.claims, p.listed = 0, false
	p.mu.Unlock()
	if holds == 0 {
		return nil
	}
	var err error
	for range holds {
		err = errors.Join(err, p.drop())
	}
	if p.r != nil {
		p.r.pokeWatchers() // they hold it while they wait
	}
	return err
}

// unlist ends the hold of the scans, who will not find it any more.
func (p *Peer) unlist() {
	p.mu.Lock()
	listed := p.listed
	p.listed = false
	p.mu.Unlock()
	if listed {
		p.drop()
	}
}

// hold keeps the memory mapped until drop. It fails if it is gone already.
func (p *Peer) hold() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unmapped {
		return false
	}
	p.refs++
	return true
}

// list is hold for the scans, which together count once.
func (p *Peer) list() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unmapped {
		return false
	}
	if !p.listed {
		p.listed = true
		p.refs++
	}
	return true
}

// drop ends a hold, and takes memory and descriptors away after the last.
func (p *Peer) drop() error {
	p.mu.Lock()
	p.refs--
	if p.refs > 0 {
		p.mu.Unlock()
		return nil
	}
	err := p.unmap()
	p.mu.Unlock()
	p.forget()
	return err
}

// forget takes the peer out of the registry's table.
func (p *Peer) forget() {
	if p.r == nil {
		return
	}
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if p.r.peers[p.name] == p {
		delete(p.r.peers, p.name)
	}
}

// unmap takes memory and descriptors away. Call it with p.mu held.
func (p *Peer) unmap() error {
	if p.unmapped {
		return nil
	}
	p.unmapped = true
	err := errors.Join(p.m.Unmap(), p.file.Close())
	if p.pidfd >= 0 {
		if e := unix.Close(p.pidfd); e != nil {
			err = errors.Join(err, fmt.Errorf("registry: close pidfd of %s: %w", p.name, e))
		}
		p.pidfd = -1
	}
	return err
}
