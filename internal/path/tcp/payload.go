package tcp

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/iov"
)

// bounceSize is the host memory of a session through which GPU memory is copied.
const bounceSize = 1 << 20

// After a rest of a payload of directSize no more than the next header is read into the
// stage: payloads of that size are worth a call each, and not a copy.
const directSize = 8 << 10

// errStale is a write whose peer has gone before it was in place. The peer counts on
// it that nothing lands.
var errStale = errors.New("the peer has closed the connection before its write was in place")

// write takes a payload into place.
func (x *session) write(h header, dev gpu.Device) error {
	x.server.counts.writes.Add(1)
	addr, rest := h.addr, h.size
	if x.answers(addr, rest) {
		// What was asked for before is what was there before.
		if err := x.flush(); err != nil {
			return err
		}
	}
	for rest > 0 {
		n, err := x.land(addr, rest, h.v2, dev)
		if err != nil {
			return err
		}
		addr += uint64(n)
		rest -= uint64(n)
	}
	x.server.counts.writeBytes.Add(h.size)
	if h.v2 {
		x.answer(statusOK)
	}
	return nil
}

// land takes the next bytes of a payload into place, at least one and at most rest. A
// peer that does not wait for the status may have gone.
func (x *session) land(addr, rest uint64, v2 bool, dev gpu.Device) (int, error) {
	if dev != nil {
		return x.landOn(dev, addr, rest, v2)
	}
	if k := int(min(uint64(x.w-x.r), rest)); k > 0 {
		if v2 && !x.there() {
			return 0, x.stale()
		}
		if err := tryCopy(addr, x.stage[x.r:x.r+k]); err != nil {
			return 0, err
		}
		x.r += k
		return k, nil
	}
	x.choose()
	n := int(min(rest, turnSize))
	ahead := x.stage
	if n >= directSize {
		ahead = ahead[:headerSize]
	}
	for {
		if v2 && !x.there() {
			return 0, x.stale()
		}
		x.iov = append(x.iov[:0], iov.Vec{Base: uintptr(addr), Len: uintptr(n)}, iov.Of(ahead))
		k, err := x.readSome()
		if err != nil {
			return 0, err
		}
		if k == 0 {
			continue // waited, and perhaps for long
		}
		x.w = max(k-n, 0)
		x.more = x.w == len(ahead)
		return min(k, n), nil
	}
}

// landOn is land for GPU memory.
func (x *session) landOn(dev gpu.Device, addr, rest uint64, v2 bool) (int, error) {
	b := x.bounceFor(rest)
	n := copy(b, x.stage[x.r:x.w])
	x.r += n
	for n < len(b) {
		x.iov = append(x.iov[:0], iov.Of(b[n:]))
		k, err := x.readSome()
		if err != nil {
			return 0, err
		}
		n += k
	}
	if v2 && !x.there() {
		return 0, x.stale()
	}
	if err := dev.CopyIn(addr, b); err != nil {
		return 0, fmt.Errorf("GPU memory at %#x: %w", addr, err)
	}
	return n, nil
}

// tryCopy is copyTo on a goroutine that has [debug.SetPanicOnFault].
func tryCopy(addr uint64, src []byte) (err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("%d bytes at %#x: %w", len(src), addr, syscall.EFAULT)
		}
	}()
	iov.CopyTo(addr, src)
	return nil
}

func (x *session) bounceFor(n uint64) []byte {
	if x.bounce == nil {
		x.bounce = make([]byte, bounceSize)
	}
	return x.bounce[:min(n, bounceSize)]
}

// read answers with memory.
func (x *session) read(h header, dev gpu.Device) error {
	x.server.counts.reads.Add(1)
	x.server.counts.readBytes.Add(h.size)
	if h.v2 {
		x.answer(statusOK)
	}
	if dev == nil {
		x.out = append(x.out, iov.Vec{Base: uintptr(h.addr), Len: uintptr(h.size)})
		x.bytes += h.size
		return nil
	}
	for addr, rest := h.addr, h.size; rest > 0; {
		b := x.bounceFor(rest)
		if err := dev.CopyOut(b, addr); err != nil {
			return fmt.Errorf("GPU memory at %#x: %w", addr, err)
		}
		x.out = append(x.out, iov.Of(b))
		if err := x.flush(); err != nil {
			return err
		}
		addr += uint64(len(b))
		rest -= uint64(len(b))
	}
	return nil
}

// fill reads until the stage holds n unused bytes.
func (x *session) fill(n int) error {
	if x.w-x.r >= n {
		return nil
	}
	if x.r == x.w {
		x.choose()
	} else {
		x.w = copy(x.stage, x.stage[x.r:x.w])
		x.r = 0
	}
	for x.w < n {
		x.iov = append(x.iov[:0], iov.Of(x.stage[x.w:]))
		k, err := x.readSome()
		if err != nil {
			return err
		}
		x.w += k
	}
	x.more = x.w == len(x.stage)
	return nil
}

// choose takes a stage of the size that the session needs now. The one it has must be used up.
func (x *session) choose() {
	x.r, x.w = 0, 0
	switch {
	case x.more && x.large == nil:
		x.large = x.server.big.Get().(*[bigStage]byte)
		x.stage = x.large[:]
	case !x.more && x.large != nil:
		x.giveBack()
	}
}

func (x *session) giveBack() {
	if x.large != nil {
		x.server.big.Put(x.large)
		x.large = nil
		x.stage = x.small[:]
	}
}

// readSome reads into the runs of x.iov what is there. If there is nothing it sends the
// answers, waits and returns 0.
func (x *session) readSome() (int, error) {
	if x.short {
		// Most likely there is nothing: whoever waits for the answers comes first.
		if err := x.flush(); err != nil {
			return 0, err
		}
	}
	x.waited = false
	if err := x.raw.Read(x.readFn); err != nil {
		return 0, err
	}
	switch {
	case x.errno == syscall.EAGAIN:
		x.short = true
		return 0, nil
	case x.errno != 0:
		return 0, x.errno
	case x.n == 0:
		return 0, io.EOF
	}
	all := 0
	for _, v := range x.iov {
		all += int(v.Len)
	}
	x.short = x.n < all
	return x.n, nil
}

// tryRead reads. If there is nothing to read, and nothing to be sent first, it has
// [syscall.RawConn.Read] wait once.
func (x *session) tryRead(fd uintptr) bool {
	if x.waited {
		return true
	}
	x.n, x.errno = iov.Read(fd, x.iov)
	x.waited = x.errno == syscall.EAGAIN && len(x.out) == 0
	return !x.waited
}

// there reports whether the peer has not closed its end, as far as is known here.
func (x *session) there() bool {
	now := x.server.now()
	if x.checked != 0 && now-x.checked < checkEvery {
		return true
	}
	if x.raw.Control(x.checkFn) != nil {
		return false
	}
	x.checked = now
	return x.alive
}

func (x *session) check(fd uintptr) {
	x.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLRDHUP}
	_, err := unix.Poll(x.poll[:], 0)
	x.alive = err == unix.EINTR || err == nil && x.poll[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) == 0
}

func (x *session) stale() error {
	x.server.counts.stale.Add(1)
	return errStale
}
