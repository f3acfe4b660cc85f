package registry

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/proc"
	"github.com/railhop/railhop/internal/shmabi"
)

// Liveness is what is known of a process. Only facts count; a heartbeat that
// stands still is no fact.
type Liveness uint8

const (
	Unknown Liveness = iota // nothing decides: treat as in use, never attach, never unlink
	Alive
	Dead // its code no longer runs; its NIC and GPU may, until it is closed
)

func (l Liveness) String() string {
	switch l {
	case Alive:
		return "alive"
	case Dead:
		return "dead"
	}
	return "unknown"
}

// Why a peer is suspected.
const (
	whyTruncated = "its file was truncated"
	whyDied      = "its process died"
	whyStale     = "its heartbeat stands still"
	whyLetGo     = "it was let go"
)

// Life looks at the facts about the peer's process, strongest first. It makes a
// few system calls; what is dead stays dead.
func (p *Peer) Life() Liveness {
	if p.dead.Load() {
		return Dead
	}
	l := p.judge()
	if l == Dead {
		p.dead.Store(true)
	}
	return l
}

func (p *Peer) judge() Liveness {
	died := false
	p.touch(func(b *shmabi.ControlBlock) { died = b.Header.Life.Load()&shmabi.LifeOwnerDied != 0 })
	if died {
		return Dead
	}
	if p.sameNS {
		return p.process()
	}
	// A forked child inherits the lock, but here it is the only fact left. So it
	// is for an entry of another boot: nobody can hold its lock, unless it is a
	// container that shows a boot id of its own.
	held, err := p.livenessHeld()
	switch {
	case err != nil:
		return Unknown
	case held:
		return Alive
	}
	return Dead
}

// process asks the kernel about the peer's pid, which is one of our namespace.
// Dead means here that the process has ended: its memory is torn down.
func (p *Peer) process() Liveness {
	if p.ended.Load() {
		return Dead
	}
	l := Unknown
	p.mu.Lock()
	fd := p.pidfd
	if fd >= 0 {
		l = pollPidfd(fd)
	}
	p.mu.Unlock()
	if fd < 0 {
		l = p.look.stat(p.hdr.owner)
	}
	if l == Dead {
		p.ended.Store(true)
	}
	return l
}

// stat judges by /proc alone.
func (k *looker) stat(id shmabi.Identity) Liveness {
	st, err := k.procs.Stat(int(id.PID))
	switch {
	case errors.Is(err, proc.ErrGone):
		return Dead
	case err != nil:
		return Unknown
	case st.Zombie() || st.StartTicks != id.StartTicks:
		return Dead
	case st.State == 'Z' || st.State == 'X':
		return Unknown // its leader has left; the rest may be on its way out
	}
	return Alive
}

// pollPidfd: a pidfd is readable once every thread has ended.
func pollPidfd(fd int) Liveness {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || fds[0].Revents&unix.POLLNVAL != 0:
			return Unknown
		case fds[0].Revents != 0:
			return Dead
		}
		return Alive
	}
}

func (p *Peer) livenessHeld() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unmapped {
		return false, ErrGone
	}
	return p.file.LivenessHeld()
}

// Suspected reports whether to feed the peer nothing more, and why: its life
// word says so, its memory is gone, or its heartbeat has stood still for the
// timeout on the caller's clock. It makes no system call. Every caller passes
// the same clock. Suspicion may pass.
func (p *Peer) Suspected(now time.Duration) (bool, string) {
	if p.dead.Load() || p.ended.Load() {
		return true, whyDied
	}
	var life uint32
	var beat uint64
	if !p.touch(func(b *shmabi.ControlBlock) {
		life, beat = b.Header.Life.Load(), b.Header.Heartbeat.Load()
	}) {
		if p.truncated.Load() {
			return true, whyTruncated
		}
		return true, whyLetGo
	}
	if life&shmabi.LifeOwnerDied != 0 {
		p.dead.Store(true)
		return true, whyDied
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.watched || beat != p.beat {
		p.watched, p.beat, p.changed = true, beat, now
	}
	if now-p.changed >= p.look.timeout {
		return true, whyStale
	}
	return false, ""
}

// Closed reports whether the peer is dead and its resources are gone, so that
// neither its NIC nor its GPU can write any more: its pidfd fired, and no forked
// child holds its descriptors, which its liveness lock would show. A free lock
// alone, or a stopped process, proves nothing. It makes two system calls at
// most, and none once it is true.
func (p *Peer) Closed() bool {
	if p.closed.Load() {
		return true
	}
	if !p.sameNS || p.process() != Dead {
		return false
	}
	p.dead.Store(true)
	if held, err := p.livenessHeld(); err != nil || held {
		return false
	}
	p.closed.Store(true)
	return true
}
