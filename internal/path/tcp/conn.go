package tcp

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/iov"
	"github.com/railhop/railhop/internal/xfer"
)

// conn is a connection to a target. The pieces on it are sent, and answered, in the
// order of its fifo:
//
//	head … answered next     tx … being sent     tail
type conn struct {
	peer   *peer
	fd     int // -1 once closed
	slot   int // in Path.conns
	v2     bool
	proves bool

	fifo  list
	tx    int32  // the first piece that is not wholly sent, or none
	sent  uint64 // bytes of it that are
	got   uint64 // bytes of the head's answer that are here
	bytes uint64 // payload of the fifo
	stage [][statusSize]byte

	listed   bool // in Path.ready
	readable bool
	hungUp   bool          // an end of file comes after what can be read
	blocked  bool          // the socket takes no more for now
	broken   bool          // the socket takes no more at all
	since    time.Duration // when the head was sent and its predecessor answered; 0 if it was not sent
	closing  bool          // for writing: an end of file is due
	closeBy  time.Duration
	answered bool // anything, ever
}

// total is the length of a piece as it is sent.
func (c *conn) total(s *piece) uint64 {
	switch {
	case s.op == xfer.Read:
		return headerSize
	case c.v2:
		return headerSize + s.length
	}
	return headerSize + s.length + headerSize
}

// prefix and payload are the two parts of a piece's answer.
func (c *conn) prefix(s *piece) uint64 {
	switch {
	case c.v2:
		return statusSize
	case s.op == xfer.Write:
		return 1 // its last byte, read back
	}
	return 0
}

func payload(s *piece) uint64 {
	if s.op == xfer.Read {
		return s.length
	}
	return 0
}

// write sends what fits into one system call and the socket.
func (p *Path) write(c *conn, now time.Duration) {
	vs := p.iov[:0]
	headers := 0
	addHeader := func(h header, from uint64) {
		b := &p.headers[headers]
		headers++
		h.put(b)
		vs = append(vs, iov.Of(b[from:]))
	}
	from, bytes := c.sent, uint64(0)
	for i := c.tx; i != none && len(vs)+3 <= maxIOV && headers+2 <= len(p.headers) && bytes < turnSize; i = p.pieces[i].next {
		s := &p.pieces[i]
		if from < headerSize {
			addHeader(header{s.length, s.remote, s.op == xfer.Write, c.v2}, from)
			bytes += headerSize - from
			from = headerSize
		}
		if s.op == xfer.Write {
			if done := from - headerSize; done < s.length {
				n := min(s.length-done, turnSize)
				vs = append(vs, iov.Vec{Base: uintptr(s.host() + done), Len: uintptr(n)})
				bytes += n
				from += n
				if done+n < s.length {
					break
				}
			}
			if !c.v2 {
				addHeader(header{1, s.remote + s.length - 1, false, false}, from-headerSize-s.length)
				bytes += headerSize
			}
		}
		from = 0
	}
	n, errno := iov.Write(uintptr(c.fd), &p.msg, vs)
	switch {
	case errno == unix.EAGAIN:
		c.blocked = true
		return
	case errno != 0:
		p.unwritable(c, errno, now)
		return
	}
	p.counts.sends.Add(1)
	c.blocked = uint64(n) < bytes
	p.wrote(c, uint64(n), now)
}

// wrote accounts for n bytes that were sent.
func (p *Path) wrote(c *conn, n uint64, now time.Duration) {
	for n > 0 {
		s := &p.pieces[c.tx]
		rest := c.total(s) - c.sent
		if n < rest {
			c.sent += n
			return
		}
		n -= rest
		if c.tx == c.fifo.head {
			c.since = now
			p.remind(now + p.opts.StatusTimeout)
		}
		c.tx, c.sent = s.next, 0
	}
}

// unwritable deals with a socket that takes no more. The answers that have come, and
// why the peer has closed, are still to be read.
func (p *Path) unwritable(c *conn, errno unix.Errno, now time.Duration) {
	if errno == unix.EFAULT {
		// Not the peer's doing: the caller's memory is not there.
		s := &p.pieces[c.tx]
		s.cause = fmt.Errorf("tcp: %d bytes at %#x cannot be read: %w", s.length, s.local, xfer.ErrInvalidArgument)
		p.shut(c, now)
		return
	}
	if !gone(errno) {
		p.finish(c, false, errno)
		return
	}
	c.broken, c.blocked, c.readable = true, true, true
}

// gone reports whether an error means that the peer has closed its socket.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// read takes what one system call yields: answers, each to where it belongs.
func (p *Path) read(c *conn, now time.Duration) {
	vs := p.iov[:0]
	got, bytes := c.got, uint64(0)
	k, all := 0, true // all: all answers that are due fit one call
	for i, n := c.fifo.head, c.fifo.n; n > 0; i, n = p.pieces[i].next, n-1 {
		if i == c.tx && c.sent < headerSize {
			break // nothing can answer it yet
		}
		if k == len(c.stage) || len(vs)+3 > maxIOV || bytes >= turnSize {
			all = false
			break
		}
		s := &p.pieces[i]
		prefix, body := c.prefix(s), payload(s)
		if got < prefix {
			vs = append(vs, iov.Of(c.stage[k][got:prefix]))
			bytes += prefix - got
			got = prefix
		}
		k++
		if done := got - prefix; done < body {
			n := min(body-done, turnSize)
			vs = append(vs, iov.Vec{Base: uintptr(s.host() + done), Len: uintptr(n)})
			bytes += n
			if done+n < body {
				all = false
				break
			}
		}
		got = 0
		if i == c.tx {
			break
		}
	}
	room := bytes
	if all {
		// With room for more than is due, it shows whether there is more.
		vs = append(vs, iov.Of(p.sink[:]))
		room += uint64(len(p.sink))
	}
	n, errno := iov.Read(uintptr(c.fd), vs)
	switch {
	case errno == unix.EAGAIN:
		c.readable = false
	case errno == unix.EFAULT:
		s := &p.pieces[c.fifo.head]
		s.cause = fmt.Errorf("tcp: %d bytes at %#x cannot be written: %w", s.length, s.local, xfer.ErrInvalidArgument)
		p.finish(c, false, nil)
	case errno != 0:
		p.finish(c, gone(errno), errno)
	case n == 0:
		p.finish(c, true, io.EOF)
	case uint64(n) > bytes:
		p.answers(c, bytes, now)
		if c.fd >= 0 {
			p.finish(c, false, errUnasked)
		}
	default:
		c.readable = uint64(n) == room || c.hungUp
		p.answers(c, uint64(n), now)
	}
}

var errUnasked = errors.New("the peer sends what nobody has asked for")

// answers takes n bytes that were read to where they belong.
func (p *Path) answers(c *conn, n uint64, now time.Duration) {
	for k := 0; n > 0; k++ {
		i := c.fifo.head
		s := &p.pieces[i]
		prefix, body := c.prefix(s), payload(s)
		if c.got < prefix {
			m := min(n, prefix-c.got)
			c.got += m
			n -= m
			if c.got < prefix {
				c.stage[0] = c.stage[k]
				return
			}
			if c.v2 {
				if err := checkStatus(&c.stage[k]); err != nil {
					p.refused(c, err)
					return
				}
			}
			if i == c.tx {
				// It has not got the whole request.
				p.finish(c, false, errEarly)
				return
			}
		}
		m := min(n, prefix+body-c.got)
		c.got += m
		n -= m
		if c.got < prefix+body {
			return
		}
		p.answered(c, now)
	}
}

var errEarly = errors.New("the peer answers a request before it has the whole of it")

// answered ends the head of a connection's fifo.
func (p *Path) answered(c *conn, now time.Duration) {
	i := p.leave(c)
	c.got, c.since = 0, 0
	if c.fifo.n > 0 && c.fifo.head != c.tx {
		c.since = now
		p.remind(now + p.opts.StatusTimeout)
	}
	c.answered = true
	c.peer.losses = 0
	s := &p.pieces[i]
	p.counts.ops.Add(1)
	p.counts.bytes.Add(s.length)
	if s.dev != nil && s.op == xfer.Read && s.cause == nil {
		p.copyIn(i)
		return
	}
	p.end(i, nil)
}

// leave takes the head out of a connection's fifo.
func (p *Path) leave(c *conn) int32 {
	if c.tx == c.fifo.head {
		c.tx = p.pieces[c.tx].next
	}
	i := p.pop(&c.fifo)
	s := &p.pieces[i]
	s.conn = nil
	c.bytes -= s.length
	c.peer.flying--
	if c.peer.queue.n > 0 {
		p.wait(c.peer)
	}
	return i
}

// expiry is when something must happen on a connection if nothing does, or 0.
func (p *Path) expiry(c *conn) time.Duration {
	switch {
	case c.closing:
		return c.closeBy
	case c.since > 0 && c.got == 0:
		return c.since + p.opts.StatusTimeout
	}
	return 0
}
