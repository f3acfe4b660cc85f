package softnic

import (
	"io"
	"net"
	"syscall"
	"time"

	"github.com/railhop/railhop/internal/iov"
)

const (
	stageBytes = 32 << 10
	// smallOp is the mean size up to which operations are read through the
	// stage, many in one call, rather than in place.
	smallOp = 2 << 10
)

// stream reads and writes a connection by scatter and gather, straight from and
// to registered memory. What is read ahead lies in the stage. Reading belongs
// to one goroutine, writing to one.
type stream struct {
	conn *net.TCPConn
	raw  syscall.RawConn
	far  *far
	rfar []byte // what is read for memory that the CPU cannot touch, made when first needed
	wfar []byte
	rone [1]iov.Vec
	wone [1]iov.Vec

	// Reading.
	stage   []byte
	r, w    int // stage[r:w] was read and not yet used
	riov    []iov.Vec
	rrest   []iov.Vec
	rn      int
	rerrno  syscall.Errno
	block   bool
	readFn  func(fd uintptr) bool
	waiting func() error // called before a read blocks; may be nil

	// Writing.
	wiov    []iov.Vec
	wrest   []iov.Vec
	msg     iov.Msg
	idle    bool // there was nothing to write before the next write
	wn      int
	werrno  syscall.Errno
	writeFn func(fd uintptr) bool
}

func newStream(conn *net.TCPConn, far *far) (*stream, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &stream{
		conn:  conn,
		raw:   raw,
		far:   far,
		stage: make([]byte, stageBytes),
		riov:  make([]iov.Vec, 0, maxBatch+1),
		wiov:  make([]iov.Vec, 0, maxBatch+1),
	}
	s.readFn, s.writeFn = s.tryRead, s.tryWrite
	return s, nil
}

func (s *stream) tryRead(fd uintptr) bool {
	s.rn, s.rerrno = iov.Read(fd, s.rrest)
	return s.rerrno != syscall.EAGAIN || !s.block
}

// readv reads at least a byte into the runs of s.rrest.
func (s *stream) readv() (int, error) {
	s.block = s.waiting == nil
	for {
		if err := s.raw.Read(s.readFn); err != nil {
			return 0, err
		}
		switch s.rerrno {
		case 0:
			if s.rn == 0 {
				return 0, io.EOF
			}
			return s.rn, nil
		case syscall.EAGAIN:
			if err := s.waiting(); err != nil {
				return 0, err
			}
			s.block = true
		default:
			return 0, s.rerrno
		}
	}
}

// fill reads until the stage holds n unused bytes, and not much more than ahead.
func (s *stream) fill(n, ahead int) error {
	if s.w-s.r >= n {
		return nil
	}
	if s.r > 0 {
		s.w = copy(s.stage, s.stage[s.r:s.w])
		s.r = 0
	}
	for s.w < n {
		s.rrest = append(s.riov[:0], iov.Of(s.stage[s.w:max(n, min(ahead, len(s.stage)))]))
		k, err := s.readv()
		if err != nil {
			return err
		}
		s.w += k
	}
	return nil
}

// begin starts a scatter read: land adds runs to it, finish fills them.
func (s *stream) begin() { s.riov = s.riov[:0] }

// land adds a run of memory as the next bytes' place. Bytes that are in the
// stage go there at once, which fails with EFAULT if there is no such memory; there are no
// unfilled runs then.
func (s *stream) land(addr uint64, length uint32) error {
	if k := min(s.w-s.r, int(length)); k > 0 {
		if err := s.place(addr, s.stage[s.r:s.r+k]); err != nil {
			return err
		}
		s.r += k
		addr += uint64(k)
		length -= uint32(k)
	}
	if length > 0 {
		s.riov = append(s.riov, iov.Vec{Base: uintptr(addr), Len: uintptr(length)})
	}
	return nil
}

func (s *stream) place(addr uint64, src []byte) error {
	if c := s.far.find(uintptr(addr)); c == nil {
		return tryCopy(addr, src)
	} else if err := c.CopyIn(addr, src); err != nil {
		return syscall.EFAULT
	}
	return nil
}

// tryCopy is copyTo on a goroutine that has [debug.SetPanicOnFault].
func tryCopy(addr uint64, src []byte) (err error) {
	defer func() {
		if recover() != nil {
			err = syscall.EFAULT
		}
	}()
	iov.CopyTo(addr, src)
	return nil
}

// finish fills the runs, and reads up to ahead bytes more into the stage. It
// returns how many bytes of the runs are still missing, which is 0 unless it fails.
func (s *stream) finish(ahead int) (missing int, err error) {
	for _, v := range s.riov {
		missing += int(v.Len)
	}
	if missing == 0 {
		return 0, nil
	}
	s.r, s.w = 0, 0 // runs remain only once the stage is used up
	if s.far.some() {
		return s.finishFar(missing)
	}
	s.rrest = append(s.riov, iov.Of(s.stage[:min(ahead, len(s.stage))]))
	for {
		n, err := s.readv()
		if err != nil {
			return missing, err
		}
		if n >= missing {
			s.w = n - missing
			return 0, nil
		}
		missing -= n
		s.rrest = iov.Advance(s.rrest, n)
	}
}

func (s *stream) tryWrite(fd uintptr) bool {
	s.wn, s.werrno = iov.Write(fd, &s.msg, s.wrest)
	return s.werrno != syscall.EAGAIN
}

// writeRuns writes all runs of vs, which it uses up.
func (s *stream) writeRuns(vs []iov.Vec) error {
	if s.far.some() {
		return s.writeFar(vs)
	}
	return s.writeNear(vs)
}

func (s *stream) writeNear(vs []iov.Vec) error {
	for len(vs) > 0 {
		s.wrest = vs
		if err := s.raw.Write(s.writeFn); err != nil {
			return err
		}
		if s.werrno != 0 {
			return s.werrno
		}
		vs = iov.Advance(vs, s.wn)
	}
	return nil
}

// writePaced writes all runs of vs, held to the device's rate. stop ends the
// wait; timer is the caller's, stopped and drained.
func (s *stream) writePaced(vs []iov.Vec, p *pacer, cross bool, timer *time.Timer, stop <-chan struct{}) error {
	if !p.limited(cross) {
		return s.writeRuns(vs)
	}
	for chunk := p.chunk(cross); len(vs) > 0; {
		// Cut off a chunk: its last run may have to be split.
		n, k := 0, 0
		for k < len(vs) && n < chunk {
			n += int(vs[k].Len)
			k++
		}
		over := uintptr(max(0, n-chunk))
		last := &vs[k-1]
		rest := iov.Vec{Base: last.Base + last.Len - over, Len: over}
		last.Len -= over
		wait := p.take(n-int(over), cross, s.idle)
		s.idle = false
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-stop:
				timer.Stop()
				return net.ErrClosed
			}
		}
		if err := s.writeRuns(vs[:k]); err != nil {
			return err
		}
		if over > 0 {
			k--
			vs[k] = rest
		}
		vs = vs[k:]
	}
	return nil
}
