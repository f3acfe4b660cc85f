package softnic

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/railhop/railhop/internal/iov"
	"github.com/railhop/railhop/internal/nic"
)

// ackAhead is how much is read at once where acks are expected.
const ackAhead = 4 << 10

var errPortDown = errors.New("the port is down")

// start starts run. The caller holds mu.
func (q *qp) start() {
	ctx, cancel := context.WithCancel(q.d.ctx)
	q.running, q.cancel = true, cancel
	q.d.wg.Go(func() {
		defer cancel()
		q.run(ctx)
	})
}

// run is the life of the requesting side: connect, send, and after a failure
// close and flush. It ends with the queue pair in ERR.
func (q *qp) run(ctx context.Context) {
	if q.talk(ctx) {
		if err := q.d.closeRemote(q.peer, q.num); err != nil {
			q.d.log.Warn("queue pair given up, what was posted may still land", "qpn", q.num, "err", err)
			q.mu.Lock()
			q.lost = true
			close(q.ended)
			q.mu.Unlock()
			return
		}
	}
	q.mu.Lock()
	wake := q.flush()
	q.finished = true
	close(q.ended)
	q.mu.Unlock()
	if wake {
		q.cq.wake()
	}
}

// talk connects and sends until the queue pair is in ERR. It reports whether the
// peer has still to be asked to close.
func (q *qp) talk(ctx context.Context) (open bool) {
	conn, rep, err := q.connect(ctx)
	if err != nil {
		q.d.log.Debug("queue pair cannot connect", "qpn", q.num, "err", err)
		q.fail(nic.StatusRetryExceeded)
		return false
	}
	defer conn.Close()
	s, err := newStream(conn, &q.d.far)
	if err != nil {
		q.fail(nic.StatusFatal)
		return true
	}
	q.mu.Lock()
	if q.state == nic.Err {
		q.mu.Unlock()
		return true
	}
	q.out = conn
	q.mu.Unlock()
	if q.d.Port().State != nic.PortActive {
		conn.Close() // it went down before cut could see the connection
	}
	count := q.d.count(tallyKey{q.peer, rep.name, rep.rail})
	closed := false
	read := make(chan struct{})
	q.d.wg.Go(func() {
		defer close(read)
		closed = q.receive(s, count)
	})
	err = q.send(s, count, rep.rail != q.d.cfg.Rail)
	if err != nil && errors.Is(err, syscall.EFAULT) {
		q.fail(nic.StatusLocalProtection)
	} else if err != nil {
		<-read // a nak may be on its way
		q.fail(nic.StatusRetryExceeded)
	}
	conn.Close()
	<-read
	return !closed
}

// send writes requests in batches, many in one call, until the queue pair is in
// ERR or the connection fails.
func (q *qp) send(s *stream, count *tallyCount, cross bool) error {
	h := q.d.hold(q.revoked(), q.done.Load)
	defer q.d.drop(h)
	head := make([]byte, batchHead)
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	for {
		q.mu.Lock()
		for q.state == nic.RTS && (q.sent == q.tail || q.blocked && q.done.Load() != q.sent) {
			s.idle = true
			q.more.Wait()
		}
		if q.state != nic.RTS {
			q.mu.Unlock()
			return nil
		}
		if q.blocked {
			q.mu.Unlock()
			q.fail(nic.StatusLocalProtection)
			return nil
		}
		n, wrote, read := q.gather(s, h, head)
		q.mu.Unlock()
		if n == 0 {
			continue
		}
		count.opsThere.Add(uint64(n))
		count.wroteThere.Add(wrote)
		count.readThere.Add(read)
		err := s.writePaced(s.wiov, q.d.pace, cross, timer, q.stop)
		h.release()
		if err != nil {
			return err
		}
	}
}

// revoked returns what to do when a region is taken away that is in use. It holds
// until the next reset.
func (q *qp) revoked() func() {
	q.mu.Lock()
	stop := q.stop
	q.mu.Unlock()
	return func() {
		go func() {
			q.mu.Lock()
			wake := q.stop == stop && q.enterErr(nic.StatusLocalProtection)
			q.mu.Unlock()
			if wake {
				q.cq.wake()
			}
		}()
	}
}

// gather makes a batch of what is posted: its headers in head, and all its runs
// in s.wiov. It holds the regions, and stops before a request whose local memory is not
// valid. The caller holds mu.
func (q *qp) gather(s *stream, h *holder, head []byte) (n int, wrote, read uint64) {
	s.wiov = append(s.wiov[:0], iov.Vec{})
	for n < maxBatch && q.sent != q.tail && wrote < batchPayload {
		w := q.slot(q.sent)
		if !h.local(q.pd, w, q.sent) {
			q.blocked = true
			break
		}
		putOp(head[batchBytes+n*opBytes:], op{w.Op, w.RKey, w.RemoteAddr, w.Length})
		if w.Op == nic.OpRead {
			read += uint64(w.Length)
		} else if w.Length > 0 {
			s.wiov = append(s.wiov, iov.Vec{Base: uintptr(w.LocalAddr), Len: uintptr(w.Length)})
			wrote += uint64(w.Length)
		}
		q.sent++
		n++
	}
	putBatch(head, n)
	s.wiov[0] = iov.Of(head[:batchBytes+n*opBytes])
	return n, wrote, read
}

// receive reads acks and read data until the connection ends. It reports whether
// the peer has said that it closed its end.
func (q *qp) receive(s *stream, count *tallyCount) (closed bool) {
	h := q.d.hold(q.revoked(), nil)
	defer q.d.drop(h)
	debug.SetPanicOnFault(true)
	line := newDelay(q)
	defer line.close()
	err := q.acks(s, h, line)
	var nak *nakError
	if errors.As(err, &nak) {
		line.close()
		q.fail(nak.status)
		return true
	}
	if errors.Is(err, errMalformed) {
		q.d.log.Warn("queue pair's peer breaks the protocol", "qpn", q.num, "err", err)
	}
	line.close()
	q.mu.Lock()
	idle := q.done.Load() == q.tail && q.state == nic.RTS
	q.broken = q.broken || idle
	q.mu.Unlock()
	switch {
	case idle:
	case errors.Is(err, syscall.EFAULT):
		q.fail(nic.StatusLocalProtection)
	default:
		q.fail(nic.StatusRetryExceeded)
	}
	return false
}

// nakError is the peer's word that an operation failed.
type nakError struct{ status nic.Status }

func (e *nakError) Error() string { return fmt.Sprintf("refused by the peer: %v", e.status) }

// acks turns frames into completions.
func (q *qp) acks(s *stream, h *holder, line *delay) error {
	seen, ahead := uint64(0), ackAhead
	reads := make([]nic.WR, 0, maxBatch)
	for {
		if err := s.fill(frameBytes, ahead); err != nil {
			return err
		}
		f, err := parseFrame(s.stage[s.r:])
		if err != nil {
			return err
		}
		s.r += frameBytes
		if reads, err = q.check(seen, f, reads[:0]); err != nil {
			return err
		}
		seen, ahead = f.seq, ackAhead
		switch f.kind {
		case frameNak:
			line.pass(f.seq)
			return &nakError{f.status}
		case frameData:
			seen += uint64(f.count)
			if int(f.length)/f.count > smallOp {
				ahead = frameBytes
			}
			s.begin()
			for i := range reads {
				w := &reads[i]
				if !h.local(q.pd, w, f.seq) {
					err = syscall.EFAULT
				} else if err = s.land(w.LocalAddr, w.Length); err == nil {
					continue
				}
				break
			}
			if err == nil {
				_, err = s.finish(ahead)
			}
			h.release()
			if err != nil {
				return err
			}
		}
		line.pass(seen)
	}
}

// check refuses a frame that does not fit what was sent: acks must not go back, run
// ahead or skip a read. It appends the reads that data belongs to.
func (q *qp) check(seen uint64, f frame, reads []nic.WR) ([]nic.WR, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	ok := f.seq >= seen && f.seq <= q.sent && (f.kind == frameAck || f.seq < q.sent) && uint64(f.count) <= q.sent-f.seq
	for i := seen; ok && i < f.seq; i++ {
		ok = q.slot(i).Op != nic.OpRead
	}
	total := uint64(0)
	for i := range uint64(f.count) {
		if !ok {
			break
		}
		w := q.slot(f.seq + i)
		ok = w.Op == nic.OpRead
		total += uint64(w.Length)
		reads = append(reads, *w)
	}
	if !ok || total != uint64(f.length) {
		return nil, fmt.Errorf("frame of kind %d for %d, %d of %d done: %w", f.kind, f.seq, seen, q.sent, errMalformed)
	}
	return reads, nil
}
