package registry

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

// Event is what a [Watcher] saw of a peer.
type Event uint8

// A peer dies first and is closed later, by seconds if it had much memory.
const (
	Died   Event = iota + 1 // [Peer.Life] is Dead
	Closed                  // [Peer.Closed] is true
)

func (e Event) String() string {
	switch e {
	case Died:
		return "died"
	case Closed:
		return "closed"
	}
	return "none"
}

// Watcher waits for the deaths of all peers of a registry: for their life words,
// with one blocked thread, and for their pidfds, in the runtime's poller. When
// nobody dies it looks around once a heartbeat; the blocked thread stays blocked,
// since its coming back would cost more than the look.
//
// Where the kernel has no FUTEX_WAITV (before 5.16, or by a seccomp filter), a
// death is seen by the pidfd, or a heartbeat later.
type Watcher struct {
	r      *Registry
	notify func(*Peer, Event)
	every  time.Duration
	rounds atomic.Uint64
	stop   atomic.Bool
	poked  chan struct{}  // wakes the loop where it waits in Go,
	poke   *atomic.Uint32 // and where it waits in the kernel
	kernel kernelWait
	done   sync.WaitGroup
	peers  map[*Peer]*watched // the loop's own
}

// watched is what the loop knows of a peer.
type watched struct {
	told  Event
	life  uint32 // the word that it waits on; 0: none
	shy   bool   // the word changed without a death: do not wait on it
	pidfd *os.File
}

// Watch starts a watcher over the peers that scans find, now and later. notify
// is called from one goroutine, once an event and peer; it must not block long
// and must not close the watcher.
func (r *Registry) Watch(notify func(*Peer, Event)) (*Watcher, error) {
	return r.watch(notify, r.opts.HeartbeatTimeout)
}

func (r *Registry) watch(notify func(*Peer, Event), every time.Duration) (*Watcher, error) {
	w := &Watcher{
		r: r, notify: notify, every: every,
		poked: make(chan struct{}, 1), poke: new(atomic.Uint32), peers: map[*Peer]*watched{},
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errors.New("registry: watch: closed")
	}
	r.watchers[w] = struct{}{}
	w.done.Add(1)
	go w.run()
	return w, nil
}

// Close stops the watcher and waits for it. A second call does nothing.
func (w *Watcher) Close() error {
	w.stop.Store(true)
	w.wake()
	w.done.Wait()
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	delete(w.r.watchers, w)
	return nil
}

// Rounds counts how often the watcher has looked around.
func (w *Watcher) Rounds() uint64 { return w.rounds.Load() }

// wake makes the loop look around.
func (w *Watcher) wake() {
	w.poke.Add(1)
	shm.WakePrivate(w.poke)
	select {
	case w.poked <- struct{}{}:
	default:
	}
}

// pokeWatchers tells the watchers that the set of peers has changed.
func (r *Registry) pokeWatchers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers {
		w.wake()
	}
}

// kernelWait is the thread that waits in the kernel. It is the loop's own.
type kernelWait struct {
	ask  chan []shm.Wait
	back chan error
	on   []shm.Wait // what it waits for, nil if it does not
}

func (k *kernelWait) run() {
	for waits := range k.ask {
		k.back <- shm.WaitAny(waits, -1)
	}
}

// waitKernel waits for one of the words, for at most a heartbeat. The thread may
// go on waiting beyond that: for the same words, if nothing has changed.
func (w *Watcher) waitKernel(waits []shm.Wait) error {
	k := &w.kernel
	if k.on != nil && !slices.Equal(k.on, waits) {
		w.poke.Add(1)
		shm.WakePrivate(w.poke)
		<-k.back
		k.on = nil
		return nil // the loop looks again, and finds the poke
	}
	if k.on == nil {
		k.on = waits
		k.ask <- waits
	}
	t := time.NewTimer(w.every)
	defer t.Stop()
	select {
	case err := <-k.back:
		k.on = nil
		return err
	case <-t.C:
		return nil
	}
}

func (w *Watcher) run() {
	defer w.done.Done()
	w.kernel = kernelWait{ask: make(chan []shm.Wait), back: make(chan error)}
	w.done.Go(w.kernel.run)
	defer func() {
		close(w.kernel.ask)
		if w.kernel.on != nil {
			w.poke.Add(1)
			shm.WakePrivate(w.poke)
			<-w.kernel.back
		}
	}()
	defer func() {
		for _, k := range w.peers {
			k.close()
		}
	}()
	inKernel := true
	for idle := 0; !w.stop.Load(); w.rounds.Add(1) {
		old := w.poke.Load()
		peers := w.r.holdAll()
		w.follow(peers)
		waits := []shm.Wait{{Word: w.poke, Old: old, Private: true}}
		found, ended := false, false
		for _, p := range peers {
			told := w.peers[p].told
			found = w.look(p) || found
			ended = ended || told != Closed && w.peers[p].told == Closed
			if k := w.peers[p]; k.life != 0 && len(waits) < shm.WaitMax {
				waits = append(waits, shm.Wait{Word: &p.block.Header.Life, Old: k.life})
			}
		}
		if ended {
			w.tidy()
		}
		// A peer that plays with its word, or wakes it without need, must not
		// make this loop spin.
		began := time.Now()
		if inKernel && idle < 16 {
			err := w.waitKernel(waits)
			switch {
			case errors.Is(err, unix.EFAULT):
				idle = 16 // a block was cut: the next look finds which
			case err != nil:
				inKernel = false
				w.r.opts.Logger.Info("registry: no FUTEX_WAITV, deaths are seen by pidfd", "err", err)
			}
		} else {
			w.pause(inKernel)
		}
		if found || time.Since(began) >= time.Millisecond || w.poke.Load() != old {
			idle = 0
		} else {
			idle++
		}
		for _, p := range peers {
			p.drop()
		}
	}
}

// tidy removes what closed ranks have left in the directory, for which nobody may
// ever look again.
func (w *Watcher) tidy() {
	if err := w.r.Reclaim(); err != nil {
		w.r.opts.Logger.Debug("registry: entries of dead ranks not reclaimed", "err", err)
	}
}

// pause waits in Go: a little after too many wake-ups for nothing, a heartbeat
// where the kernel cannot wait for several words.
func (w *Watcher) pause(little bool) {
	d := w.every
	if little {
		d = min(d, 10*time.Millisecond)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.poked:
	}
}

// holdAll returns the open peers, with a hold on each.
func (r *Registry) holdAll() []*Peer {
	r.mu.Lock()
	peers := values(r.peers)
	r.mu.Unlock()
	held := peers[:0]
	for _, p := range peers {
		if p.hold() {
			held = append(held, p)
		}
	}
	return held
}

// follow starts to watch the pidfds of new peers and forgets those that left.
func (w *Watcher) follow(peers []*Peer) {
	here := make(map[*Peer]bool, len(peers))
	for _, p := range peers {
		here[p] = true
		if w.peers[p] != nil {
			continue
		}
		k := &watched{}
		w.peers[p] = k
		if k.pidfd = p.dupPidfd(); k.pidfd != nil {
			w.done.Add(1)
			go w.waitPidfd(k.pidfd)
		}
	}
	for p, k := range w.peers {
		if !here[p] {
			k.close()
			delete(w.peers, p)
		}
	}
}

func (k *watched) close() {
	if k.pidfd != nil {
		k.pidfd.Close()
		k.pidfd = nil
	}
}

// look tells of a peer's death and end, if they are new, and chooses the value
// of its life word to wait on.
func (w *Watcher) look(p *Peer) (found bool) {
	k := w.peers[p]
	if k.told < Died && p.Life() == Dead {
		// The kernel has woken one of those who wait: wake the others.
		p.touch(func(b *shmabi.ControlBlock) { shm.Wake(&b.Header.Life, shm.WaitMax) })
		k.told, found = Died, true
		w.notify(p, Died)
	}
	if k.told == Died && p.Closed() {
		k.told, found = Closed, true
		k.close()
		w.notify(p, Closed)
		p.unlist()
	}
	before := k.life
	k.life = 0
	if k.told == 0 && !k.shy {
		p.touch(func(b *shmabi.ControlBlock) { k.life = b.Header.Life.Load() })
		if k.life&shmabi.LifeWaiters == 0 || k.life&shmabi.LifeOwnerDied != 0 || before != 0 && k.life != before {
			k.shy = k.life&shmabi.LifeOwnerDied == 0
			k.life = 0
		}
	}
	return found
}

// dupPidfd returns a pidfd of the watcher's own, in the runtime's poller; nil if
// there is none.
func (p *Peer) dupPidfd() *os.File {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unmapped || p.pidfd < 0 {
		return nil
	}
	fd, err := unix.FcntlInt(uintptr(p.pidfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "pidfd")
}

// waitPidfd wakes the loop once the process has ended. It returns when the file
// is closed, too.
func (w *Watcher) waitPidfd(f *os.File) {
	defer w.done.Done()
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	err = conn.Read(func(fd uintptr) bool { return pollPidfd(int(fd)) == Dead })
	if err == nil {
		w.wake()
	}
}
