package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	events     [8]unix.EpollEvent
	parks      uint64 // returns from Park
	drain      [8]byte
	ring       [8]byte
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
	p := &Poller{epfd: epfd, bell: bell}
	binary.NativeEndian.PutUint64(p.ring[:], 1)
	if err := p.add(bell); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// add makes Park return while fd can be read.
func (p *Poller) add(fd int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("tcp: poller: %w", err)
	}
	return nil
}

// Park implements [pump.Options].Park.
func (p *Poller) Park(word *atomic.Uint32, d time.Duration) {
	if word.Load() != pump.Asleep {
		return
	}
	ms := -1
	if d > 0 {
		ms = int(min((d+time.Millisecond-1)/time.Millisecond, 1<<30))
	}
	n, _ := unix.EpollWait(p.epfd, p.events[:], ms)
	p.parks++
	for i := range max(n, 0) {
		if int(p.events[i].Fd) == p.bell {
			unix.Read(p.bell, p.drain[:])
		}
	}
}

// Unpark implements [pump.Options].Unpark.
func (p *Poller) Unpark() { unix.Write(p.bell, p.ring[:]) }

// Close closes the poller.
func (p *Poller) Close() error {
	return errors.Join(unix.Close(p.bell), unix.Close(p.epfd))
}
