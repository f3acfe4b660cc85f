package registry

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/proc"
	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

// Scan looks through the directory, under its lock, and returns the other ranks
// of the group, those that are stopping included, and the files that it refused.
// Entries of dead owners are unlinked, unless a lane of a live rank is still
// theirs. A peer that an earlier scan returned is
// the same [Peer]; one that is missing has died or left. It returns [ErrBusy] if
// the lock was not to be had in time. It may sleep: not for a pump.
func (r *Registry) Scan() ([]*Peer, []Refusal, error) {
	var peers []*Peer
	var refused []Refusal
	err := r.locked(func() error {
		var s sorted
		var err error
		refused, err = r.each(func(p *Peer) *Refusal {
			switch {
			case s.add(p) == Dead:
			case p.isSelf():
			case len(peers) == MaxRanks:
				return refuse(TooMany, "%d others were accepted", MaxRanks)
			case p.list():
				peers = append(peers, p)
			}
			return nil
		})
		if err == nil {
			r.letGo(&s)
		}
		r.reclaim(&s)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	for _, f := range refused {
		r.note(f)
	}
	r.pokeWatchers()
	return peers, refused, nil
}

// Reclaim unlinks the entries of dead owners, as [Registry.Scan] does on the way.
func (r *Registry) Reclaim() error {
	return r.locked(func() error {
		_, err := r.reclaimAll()
		return err
	})
}

// reclaimAll unlinks the entries of dead owners, under the lock, and returns how
// many entries remain, our own included.
func (r *Registry) reclaimAll() (int, error) {
	r.mu.Lock()
	live := len(r.entries)
	r.mu.Unlock()
	var s sorted
	_, err := r.each(func(p *Peer) *Refusal {
		s.add(p)
		return nil
	})
	live += len(s.live)
	r.reclaim(&s)
	return live, err
}

// sorted is peers by whether they live, with a hold on each.
type sorted struct{ live, dead []*Peer }

func (s *sorted) add(p *Peer) Liveness {
	l := p.Life()
	switch held := p.hold(); {
	case held && l == Dead:
		s.dead = append(s.dead, p)
	case held:
		s.live = append(s.live, p)
	}
	return l
}

// letGo ends the scans' holds on peers that live and have left. Those that died
// may have been removed by others, and are let go once they are closed.
func (r *Registry) letGo(s *sorted) {
	r.mu.Lock()
	all := values(r.peers)
	r.mu.Unlock()
	for _, p := range all {
		if !slices.Contains(s.live, p) && !slices.Contains(s.dead, p) && p.Life() == Alive {
			p.unlist()
		}
	}
}

// reclaim unlinks the entries of dead owners, under the lock, and ends the holds.
// An entry stays while a lane of a live rank is its owner's: without it the lane's
// relay could never tell that its sender is dead.
func (r *Registry) reclaim(s *sorted) {
	r.mu.Lock()
	entries := values(r.entries)
	r.mu.Unlock()
	for _, p := range s.dead {
		lent := slices.ContainsFunc(entries, func(e *Entry) bool { return e.lends(p.hdr.owner, p.hdr.epoch) }) ||
			slices.ContainsFunc(s.live, func(o *Peer) bool { return o.lends(p.hdr.owner, p.hdr.epoch) })
		if !lent {
			r.remove(p)
		}
		p.drop()
	}
	for _, p := range s.live {
		p.drop()
	}
}

func (p *Peer) lends(id shmabi.Identity, epoch uint64) (yes bool) {
	p.touch(func(b *shmabi.ControlBlock) { yes = lends(b, id, epoch) })
	return yes
}

// lends does not wait for an entry that is being withdrawn, whose owner may wait for
// the directory's lock, which the caller has: such a one may lend.
func (e *Entry) lends(id shmabi.Identity, epoch uint64) (yes bool) {
	if !e.mu.TryLock() {
		return true
	}
	defer e.mu.Unlock()
	if !e.closed {
		shm.Guard(func() error { yes = lends(e.block, id, epoch); return nil })
	}
	return yes
}

// lends reports whether a lane of a block is a sender's.
func lends(b *shmabi.ControlBlock, id shmabi.Identity, epoch uint64) bool {
	for i := range shmabi.Lanes {
		h := &b.Lanes[i].Header
		if h.State.Load() == shmabi.LaneReady && h.SenderEpoch.Load() == epoch && h.Sender == id {
			return true
		}
	}
	return false
}

// each calls f, under the lock and in the order of names, for every valid entry
// but this Registry's own. It returns the others, and what f refused.
func (r *Registry) each(f func(*Peer) *Refusal) (refused []Refusal, err error) {
	names, err := r.dir.Names()
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	slices.Sort(names)
	for _, name := range names {
		if _, _, ok := parseName(name); !ok || r.own(name) {
			continue
		}
		p, bad := r.find(name)
		if bad == nil {
			bad = f(p)
			p.drop()
		}
		if bad != nil {
			bad.Name = name
			refused = append(refused, *bad)
		}
	}
	return refused, nil
}

func (r *Registry) own(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entries[name] != nil
}

// find returns the peer of an entry, with a hold on it: the one that is open
// already, or a new one.
func (r *Registry) find(name string) (*Peer, *Refusal) {
	if p := r.held(name); p != nil {
		if bad := p.recheck(r.dir, r.uid); bad != nil {
			p.drop()
			return nil, bad
		}
		return p, nil
	}
	p, bad := openPeer(r.dir, r.looker(), r.uid, name, true)
	if bad != nil {
		return nil, bad
	}
	p.r = r
	r.mu.Lock()
	closed := r.closed
	if !closed {
		r.peers[name] = p
	}
	r.mu.Unlock()
	if closed {
		p.drop()
		return nil, refuse(Unreadable, "the registry was closed")
	}
	return p, nil
}

// held returns an open peer, with a hold on it, or nil.
func (r *Registry) held(name string) *Peer {
	r.mu.Lock()
	p := r.peers[name]
	r.mu.Unlock()
	if p == nil || !p.hold() {
		return nil
	}
	return p
}

func (r *Registry) looker() *looker {
	return &looker{r.self, r.opts.Processes, r.opts.HeartbeatTimeout}
}

// remove unlinks a dead owner's entry.
func (r *Registry) remove(p *Peer) {
	if err := r.unlink(p.name, p.file); err != nil {
		r.opts.Logger.Warn("registry: cannot reclaim the entry of a dead rank", "entry", p.name, "err", err)
		return
	}
	r.reclaimed.Add(1)
	r.opts.Logger.Info("registry: reclaimed the entry of a dead rank", "entry", p.name)
}

// unlink removes an entry and its stats, under the directory's lock, if the name
// still is that file's. A name that is gone is no error.
func (r *Registry) unlink(name string, f *shm.File) error {
	have, err := f.Stat()
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	now, err := r.dir.Lstat(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	if now.Dev != have.Dev || now.Ino != have.Ino {
		return nil
	}
	if err := r.dir.Unlink(name); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	for _, stats := range []string{statsPrefix + name, statsPrefix + name + statsNext} {
		if err := r.dir.Unlink(stats); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("registry: %w", err)
		}
	}
	return nil
}

// note counts and logs a refusal, once.
func (r *Registry) note(f Refusal) {
	key := f.Name + " " + f.Cause.String()
	r.mu.Lock()
	_, seen := r.seen[key]
	if len(r.seen) > 1024 {
		clear(r.seen)
	}
	r.seen[key] = struct{}{}
	r.mu.Unlock()
	if !seen {
		r.refused.Add(1)
		r.opts.Logger.Warn("registry: refused a file", "file", f.Name, "cause", f.Cause.String(), "detail", f.Detail)
	}
}

// isSelf reports whether this process owns the entry, through another Registry. Unlike
// sameNS it need not know the namespace.
func (p *Peer) isSelf() bool {
	h, self := &p.hdr, p.look.self
	return h.owner.PID == self.PID && h.owner.StartTicks == self.StartTicks &&
		h.bootIDHash == self.BootIDHash && h.pidNamespace == self.PIDNamespace
}

// recheck looks at an open peer's file again.
func (p *Peer) recheck(dir *shm.Dir, uid uint32) *Refusal {
	st, err := dir.Lstat(p.name)
	if err != nil {
		return refuse(Vanished, "%v", err)
	}
	if bad := checkFile(&st, uid); bad != nil {
		return bad
	}
	if uint64(st.Dev) != p.dev || st.Ino != p.ino {
		return refuse(Vanished, "another file has its name")
	}
	if st.Size != shmabi.ControlBytes {
		p.cut()
		return refuse(WrongSize, "%d bytes, was %d", st.Size, shmabi.ControlBytes)
	}
	return nil
}

// checkFile looks at what kind of file it is, before it is opened.
func checkFile(st *unix.Stat_t, uid uint32) *Refusal {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		return refuse(Symlink, "a symbolic link")
	default:
		return refuse(NotRegular, "file type %#o", st.Mode&unix.S_IFMT)
	}
	switch mode := st.Mode & 0o7777; {
	case st.Uid != uid:
		return refuse(WrongOwner, "uid %d, want %d", st.Uid, uid)
	case mode != 0o600:
		return refuse(WrongMode, "mode %#o, want 0600", mode)
	case st.Nlink != 1:
		return refuse(HardLinked, "%d links, want 1", st.Nlink)
	case st.Size == 0:
		return refuse(Empty, "0 bytes, want %d", shmabi.ControlBytes)
	}
	return nil
}

// openPeer checks a file and maps it, with a hold for the caller. Nothing is mapped before the file and its
// header, read by a system call, have passed.
func openPeer(dir *shm.Dir, look *looker, uid uint32, name string, writable bool) (*Peer, *Refusal) {
	before, err := dir.Lstat(name)
	if err != nil {
		return nil, refuse(Unreadable, "%v", err)
	}
	if bad := checkFile(&before, uid); bad != nil {
		return nil, bad
	}
	f, err := dir.Open(name, writable)
	if err != nil {
		return nil, refuse(Unreadable, "%v", err)
	}
	p := &Peer{look: look, name: name, file: f, pidfd: -1, refs: 1, dev: uint64(before.Dev), ino: before.Ino}
	if bad := p.open(uid, writable); bad != nil {
		f.Close()
		return nil, bad
	}
	return p, nil
}

func (p *Peer) open(uid uint32, writable bool) *Refusal {
	st, err := p.file.Stat()
	if err != nil {
		return refuse(Unreadable, "%v", err)
	}
	if uint64(st.Dev) != p.dev || st.Ino != p.ino {
		return refuse(Vanished, "another file has its name")
	}
	if bad := checkFile(&st, uid); bad != nil {
		return bad
	}
	var b [shmabi.HeaderBytes]byte
	n, _ := p.file.ReadAt(b[:], 0)
	if n >= offHeaderBytes {
		if bad := checkMagic(b[:]); bad != nil {
			return bad
		}
	}
	if st.Size != shmabi.ControlBytes || n < len(b) {
		return refuse(WrongSize, "%d bytes, want %d", st.Size, shmabi.ControlBytes)
	}
	hdr, bad := parseHeader(b[:])
	if bad != nil {
		return bad
	}
	p.hdr = hdr
	if want := entryName(hdr.owner, hdr.epoch); want != p.name {
		return refuse(WrongName, "the header's is %s", want)
	}
	if hdr.owner.UID != uid {
		return refuse(WrongOwner, "header says uid %d, want %d", hdr.owner.UID, uid)
	}
	if p.m, err = p.file.Map(writable); err != nil {
		return refuse(Unreadable, "%v", err)
	}
	if p.block, err = shmabi.ControlAt(p.m.Bytes()); err != nil {
		p.m.Unmap()
		return refuse(Unreadable, "%v", err)
	}
	p.openProcess()
	return nil
}

// openProcess gets a pidfd where the peer's pid means something. The pid may be
// another process's by now, so that the start ticks are read after the pidfd is
// open: if they match, both are of the same process.
func (p *Peer) openProcess() {
	self := p.look.self
	p.sameNS = p.hdr.bootIDHash == self.BootIDHash && self.PIDNamespace != 0 && p.hdr.pidNamespace == self.PIDNamespace
	if !p.sameNS {
		return
	}
	fd, err := p.look.procs.Pidfd(int(p.hdr.owner.PID))
	if errors.Is(err, proc.ErrGone) {
		p.ended.Store(true)
		p.provable = true
		return
	}
	if err != nil {
		return // life by /proc then
	}
	st, err := p.look.procs.Stat(int(p.hdr.owner.PID))
	switch {
	case errors.Is(err, proc.ErrGone), err == nil && st.StartTicks != p.hdr.owner.StartTicks:
		p.ended.Store(true)
		p.provable = true
	case err == nil:
		p.pidfd, p.provable = fd, true
		return
	}
	unix.Close(fd)
}
