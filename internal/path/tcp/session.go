package tcp

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/iov"
)

const (
	smallStage = 8 << 10   // what a session always has
	bigStage   = 256 << 10 // what one with much to do borrows
	// checkEvery is how long a peer counts as there after it was last seen.
	checkEvery = 5 * time.Millisecond
)

// session is one connection of a server. Its requests are handled in order:
//
//	stage ─ header ─ find the range ─ write: stage, then socket ─> memory ─ status
//	                                └ read: status, memory ─> socket
//
// Answers are gathered and leave before a read would block.
type session struct {
	server *Server
	conn   *net.TCPConn
	raw    syscall.RawConn
	done   chan struct{}

	small [smallStage]byte
	large *[bigStage]byte // nil while none is borrowed
	stage []byte
	r, w  int  // stage[r:w] was read and not yet used
	more  bool // the last read has filled the stage

	iov    []iov.Vec
	n      int
	errno  syscall.Errno
	waited bool
	short  bool // the last read has emptied the socket
	readFn func(fd uintptr) bool

	out     []iov.Vec // answers that are to be sent
	rest    []iov.Vec
	status  [maxBatch][statusSize]byte
	marks   int // statuses in out
	bytes   uint64
	msg     iov.Msg
	writeFn func(fd uintptr) bool

	checked time.Duration // the peer was there then, by the server's clock
	alive   bool
	checkFn func(fd uintptr)
	poll    [1]unix.PollFd
	bounce  []byte // for GPU memory

	mu   sync.Mutex
	now  held   // the range of the request in hand
	held []held // ranges that answers are still to be sent from
}

type held struct{ addr, length uint64 }

func newSession(s *Server, conn *net.TCPConn) (*session, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	x := &session{server: s, conn: conn, raw: raw, done: make(chan struct{})}
	x.stage = x.small[:]
	x.readFn, x.writeFn, x.checkFn = x.tryRead, x.tryWrite, x.check
	return x, nil
}

// cut ends the connection. The session leaves the memory soon after.
func (x *session) cut() { x.conn.SetDeadline(time.Unix(1, 0)) }

// uses reports whether the session may use a part of the range.
func (x *session) uses(addr, length uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.now.overlaps(addr, length) || x.answers(addr, length)
}

// answers reports whether an answer is still to be sent from a part of the range. It
// belongs to the session, or to whoever holds its lock.
func (x *session) answers(addr, length uint64) bool {
	for _, h := range x.held {
		if h.overlaps(addr, length) {
			return true
		}
	}
	return false
}

func (h held) overlaps(addr, length uint64) bool {
	return h.addr < addr+length && addr < h.addr+h.length
}

// hold notes that a range is in use, before it is looked up, so that [Server.Revoke]
// sees either the use or a look-up that fails.
func (x *session) hold(addr, length uint64) {
	x.mu.Lock()
	x.now = held{addr, length}
	x.mu.Unlock()
}

// release ends that, unless an answer is still to be sent from the range.
func (x *session) release(answers bool) {
	x.mu.Lock()
	if answers {
		x.held = append(x.held, x.now)
	}
	x.now = held{}
	x.mu.Unlock()
}

func (x *session) run() {
	debug.SetPanicOnFault(true)
	err := x.serve()
	// The end of file tells the peer that the memory has been left.
	x.conn.Close()
	x.giveBack()
	x.server.forget(x)
	close(x.done)
	if err != nil && !quiet(err) {
		x.server.opts.Log.Debug("tcp: connection ended", "peer", x.conn.RemoteAddr(), "err", err)
	}
}

func quiet(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET)
}

func (x *session) serve() error {
	for {
		if err := x.fill(headerSize); err != nil {
			return err
		}
		h := parseHeader(x.stage[x.r:])
		x.r += headerSize
		if err := x.room(); err != nil {
			return err
		}
		x.hold(h.addr, h.size)
		dev, ok := x.find(h)
		if !ok {
			return x.refuse(h)
		}
		var err error
		if h.write {
			err = x.write(h, dev)
		} else {
			err = x.read(h, dev)
		}
		if err != nil {
			return err
		}
		x.release(!h.write && dev == nil)
	}
}

func (x *session) find(h header) (gpu.Device, bool) {
	if h.size == 0 || h.addr+h.size < h.addr {
		return nil, false
	}
	return x.server.memory.Find(h.addr, h.size)
}

// refuse says no, and ends the connection. What the peer has sent meanwhile is taken
// off the socket, or its reset would overtake the status.
func (x *session) refuse(h header) error {
	x.server.counts.refused.Add(1)
	x.server.opts.Log.Info("tcp: request refused: its range is in no single registered buffer",
		"peer", x.conn.RemoteAddr(), "addr", h.addr, "bytes", h.size, "write", h.write)
	if h.v2 {
		x.answer(statusRejected)
	}
	if err := x.flush(); err != nil || !h.v2 {
		return err
	}
	x.release(false)
	return x.linger()
}

const (
	lingerTime  = 100 * time.Millisecond
	lingerBytes = 8 << 20
)

// linger reads and drops what comes until the peer closes, for a while.
func (x *session) linger() error {
	if err := x.conn.CloseWrite(); err != nil {
		return err
	}
	if err := x.conn.SetReadDeadline(time.Now().Add(lingerTime)); err != nil {
		return err
	}
	for n := 0; n < lingerBytes; {
		k, err := x.conn.Read(x.stage)
		if err != nil {
			return err
		}
		n += k
	}
	return nil
}

// answer queues a status.
func (x *session) answer(status uint64) {
	b := &x.status[x.marks]
	x.marks++
	binary.LittleEndian.PutUint64(b[:], status)
	x.out = append(x.out, iov.Of(b[:]))
}

// flush sends the answers that are queued.
func (x *session) flush() error {
	if len(x.out) == 0 {
		return nil
	}
	x.rest = x.out
	for len(x.rest) > 0 {
		if err := x.raw.Write(x.writeFn); err != nil {
			return err
		}
		if x.errno != 0 {
			return x.errno
		}
		x.rest = iov.Advance(x.rest, x.n)
	}
	x.out, x.marks, x.bytes = x.out[:0], 0, 0
	x.mu.Lock()
	x.held = x.held[:0]
	x.mu.Unlock()
	return nil
}

func (x *session) tryWrite(fd uintptr) bool {
	x.n, x.errno = iov.Write(fd, &x.msg, x.rest)
	return x.errno != syscall.EAGAIN
}

// room sees to it that an answer of up to two runs can be queued.
func (x *session) room() error {
	if x.marks == maxBatch || len(x.out)+2 > maxIOV || x.bytes >= turnSize {
		return x.flush()
	}
	return nil
}
