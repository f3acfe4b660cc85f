package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/pump"
)

// Poller is where a pump with TCP paths parks: it wakes for their sockets and for
// whoever rings. Park and the paths belong to the pump; Unpark may be called by any
// goroutine.
type Poller struct {
	epfd, bell int
	lent       int // where others park that turn the pump's loop
	events     [8]unix.EpollEvent
	borrowed   [8]unix.EpollEvent
	parks      atomic.Uint64 // returns from Park

	mu    sync.Mutex
	added []int // the descriptors of the paths
	ring  [8]byte
	heard [8]byte
}

// NewPoller returns a poller. Close it after the pump has stopped.
func NewPoller() (*Poller, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("tcp: poller: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epfd)
		return nil, fmt.Errorf("tcp: poller: %w", err)
	}
	lent, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tcp: poller: %w", err), unix.Close(epfd), unix.Close(bell))
	}
	p := &Poller{epfd: epfd, bell: bell, lent: lent}
	binary.NativeEndian.PutUint64(p.ring[:], 1)
	for _, ep := range []int{epfd, lent} {
		if err := control(ep, unix.EPOLL_CTL_ADD, bell, unix.EPOLLIN); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// add makes Park return while fd can be read, until it is closed.
func (p *Poller) add(fd int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ep := range []int{p.epfd, p.lent} {
		if err := control(ep, unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN); err != nil {
			return err
		}
	}
	p.added = append(p.added, fd)
	return nil
}

// remove undoes add.
func (p *Poller) remove(fd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	control(p.epfd, unix.EPOLL_CTL_DEL, fd, 0)
	control(p.lent, unix.EPOLL_CTL_DEL, fd, 0)
	p.added = slices.DeleteFunc(p.added, func(x int) bool { return x == fd })
}

// Mark is in the upper half of the data of every entry of our epolls, by which the
// library's fork handler finds our descriptors in /proc/self/fdinfo.
const Mark int32 = 'h'<<24 | 'o'<<16 | 'p'<<8 | 's'

func control(epfd, op, fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: Mark}
	if err := unix.EpollCtl(epfd, op, fd, &ev); err != nil {
		return fmt.Errorf("tcp: poller: %w", err)
	}
	return nil
}

// Lend implements [pump.Lender]: while the loop is lent its sockets do not end a Park.
func (p *Poller) Lend(lent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	events := uint32(unix.EPOLLIN)
	if lent {
		events = 0
	}
	for _, fd := range p.added {
		control(p.epfd, unix.EPOLL_CTL_MOD, fd, events)
	}
}

// ParkLent implements [pump.Lender].
func (p *Poller) ParkLent(d time.Duration) {
	unix.EpollWait(p.lent, p.borrowed[:], milliseconds(d))
	p.parks.Add(1)
}

// milliseconds rounds up; 0 is without limit.
func milliseconds(d time.Duration) int {
	if d <= 0 {
		return -1
	}
	return int(min((d+time.Millisecond-1)/time.Millisecond, 1<<30))
}

// Park implements [pump.Options].Park. The bell is heard by the word, which is set
// before it rings. It goes on ringing until the next Park, so that a borrower of the
// loop, whom the pump waits for then, hears it too.
func (p *Poller) Park(word *atomic.Uint32, d time.Duration) {
	unix.Read(p.bell, p.heard[:])
	if word.Load() != pump.Asleep {
		return
	}
	unix.EpollWait(p.epfd, p.events[:], milliseconds(d))
	p.parks.Add(1)
}

// Unpark implements [pump.Options].Unpark.
func (p *Poller) Unpark() { unix.Write(p.bell, p.ring[:]) }

// Close closes the poller.
func (p *Poller) Close() error {
	return errors.Join(unix.Close(p.bell), unix.Close(p.epfd), unix.Close(p.lent))
}
