package tcp

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/xfer"
)

// abortOn ends the pieces of a connection that have a cause to, if any.
func (p *Path) abortOn(c *conn, now time.Duration) {
	unsent, sent := false, false
	past := false
	for i, n := c.fifo.head, c.fifo.n; n > 0; i, n = p.pieces[i].next, n-1 {
		past = past || i == c.tx
		if p.pieces[i].cause == nil {
			continue
		}
		if past && (i != c.tx || c.sent == 0) {
			unsent = true
		} else {
			sent = true
		}
	}
	if unsent && !sent {
		p.drop(c)
	}
	if sent {
		p.shut(c, now)
	}
}

// drop takes the unsent pieces that have a cause to end out of a connection's fifo.
func (p *Path) drop(c *conn) {
	all := c.fifo.take()
	tx := c.tx
	past, first := false, none
	for all.n > 0 {
		i := p.pop(&all)
		past = past || i == tx
		s := &p.pieces[i]
		if s.cause != nil && past && (i != tx || c.sent == 0) {
			c.bytes -= s.length
			c.peer.flying--
			p.end(i, s.cause)
			continue
		}
		if past && first == none {
			first = i
		}
		p.push(&c.fifo, i)
	}
	c.tx = first
	p.wait(c.peer)
}

// shut closes a connection for writing, so that what is under way on it stops. What
// was not sent goes back to the queue. If nothing waits for the peer to have left
// its memory, the connection is finished at once.
func (p *Path) shut(c *conn, now time.Duration) {
	if c.closing || c.fd < 0 {
		return
	}
	c.closing = true
	c.closeBy = now + p.opts.CloseWait
	p.counts.shuts.Add(1)
	p.unlist(c)
	var keep, back list
	past, writes := false, false
	for c.fifo.n > 0 {
		i := p.pop(&c.fifo)
		past = past || i == c.tx
		if past && (i != c.tx || c.sent == 0) {
			c.bytes -= p.pieces[i].length
			c.peer.flying--
			p.push(&back, i)
			continue
		}
		writes = writes || p.pieces[i].op == xfer.Write
		p.push(&keep, i)
	}
	c.fifo, c.tx, c.blocked = keep, none, true
	p.giveBack(c.peer, &back)
	if !writes || unix.Shutdown(c.fd, unix.SHUT_WR) != nil {
		p.finish(c, false, nil)
		return
	}
	p.remind(c.closeBy)
}

// unlist has no more work given to a connection.
func (p *Path) unlist(c *conn) {
	c.peer.conns = slices.DeleteFunc(c.peer.conns, func(o *conn) bool { return o == c })
	p.wait(c.peer)
}

// giveBack puts pieces before those that their peer has queued, except those that
// have a cause to end.
func (p *Path) giveBack(pr *peer, back *list) {
	var ended list
	queue := pr.queue.take()
	for back.n > 0 {
		i := p.pop(back)
		s := &p.pieces[i]
		s.conn = nil
		if s.cause != nil {
			p.push(&ended, i)
			continue
		}
		s.where = queued
		p.push(&pr.queue, i)
	}
	for queue.n > 0 {
		p.push(&pr.queue, p.pop(&queue))
	}
	p.wait(pr)
	for ended.n > 0 {
		i := p.pop(&ended)
		p.end(i, p.pieces[i].cause)
	}
}

// refused deals with an answer that says no, or none that is an answer. The peer
// closes then, having handled nothing of what follows.
func (p *Path) refused(c *conn, err error) {
	r, ok := err.(*refusedError)
	if !ok {
		p.finish(c, false, err)
		return
	}
	c.answered = true
	c.peer.losses = 0
	i := p.leave(c)
	c.got = 0
	p.counts.refusals.Add(1)
	p.finish(c, true, r)
	s := &p.pieces[i]
	switch {
	case s.cause != nil:
		p.end(i, s.cause)
	case s.fresh || !p.refetch(s.peer):
		p.end(i, fmt.Errorf("tcp: target %s: %d bytes at %#x: %w", s.peer.Name(), s.length, s.remote, r))
	default:
		s.where, s.fresh = awaiting, true
		p.push(&s.peer.awaiting, i)
	}
}

// finish closes a connection. left says that the peer has closed its end. What is
// under way ends, or, if it cannot land any more, goes back to the queue.
func (p *Path) finish(c *conn, left bool, err error) {
	if !left && c.fifo.n > 0 {
		// A reset makes the peer throw away what it has not read.
		unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	unix.Close(c.fd)
	c.fd = -1
	p.conns[c.slot] = nil
	p.unlist(c)
	_, refused := err.(*refusedError)
	if c.fifo.n > 0 && !c.closing && !refused {
		p.counts.lost.Add(1)
		p.opts.Log.Debug("tcp: connection lost", "segment", c.peer.Name(), "error", err, "requests", c.fifo.n)
		if !c.answered {
			c.peer.losses++
		}
		p.pieces[c.fifo.head].tries++
	}
	all := c.fifo.take()
	var ended, back list
	sent := true
	for all.n > 0 {
		i := p.pop(&all)
		if i == c.tx && c.sent == 0 {
			sent = false
		}
		s := &p.pieces[i]
		s.conn = nil
		c.peer.flying--
		if s.cause == nil {
			s.cause = p.verdict(c, s, sent, left, refused, err)
		} else if s.op == xfer.Write && sent && !(left && c.proves) {
			s.cause = unproven(c, s, s.cause)
		}
		if s.cause != nil {
			p.push(&ended, i)
		} else {
			p.push(&back, i)
		}
		if i == c.tx {
			sent = false
		}
	}
	p.giveBack(c.peer, &back)
	for ended.n > 0 {
		i := p.pop(&ended)
		p.end(i, p.pieces[i].cause)
	}
}

var (
	errStopped = errors.New("the connection was closed, since another request on it had to stop")
	errHungUp  = errors.New("the peer has closed the connection")
)

// verdict says why a piece cannot go on after its connection was lost, or nil.
func (p *Path) verdict(c *conn, s *piece, sent, left, refused bool, err error) error {
	if err == nil {
		err = errStopped
	}
	if err == io.EOF {
		err = errHungUp
	}
	switch {
	case c.peer.losses >= maxLosses || s.tries >= maxTries:
		return fmt.Errorf("tcp: target %s: %w: %w", c.peer.Name(), xfer.ErrSocket, err)
	case !sent || s.op == xfer.Read || refused || left && c.proves:
		return nil
	case left:
		return fmt.Errorf("tcp: target %s: %w: %w", c.peer.Name(), xfer.ErrSocket, err)
	}
	return unproven(c, s, fmt.Errorf("%w: %w", xfer.ErrSocket, err))
}

// unproven is the end of a write of which nobody knows whether it still lands.
func unproven(c *conn, s *piece, cause error) error {
	why := "the target has not confirmed that it has stopped"
	if !c.proves {
		why = "the target does not confirm that it has stopped"
	}
	return &UnprovenError{Segment: c.peer.Name(), Addr: s.remote, Length: s.length, Why: why, Cause: cause}
}
