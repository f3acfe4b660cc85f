package softnic

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/railhop/railhop/internal/iov"
	"github.com/railhop/railhop/internal/nic"
)

const (
	helloWait = 5 * time.Second
	nakWait   = 200 * time.Millisecond
	maxHalf   = 256 // connections that have said nothing yet

	// An ack is sent when the reader would block, and at the latest after this
	// many operations or bytes.
	ackOps   = 2 * maxBatch
	ackBytes = 4 << 20
)

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// accept takes connections until the listener is closed.
func (d *Device) accept() {
	for {
		c, err := d.lis.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely
			d.log.Warn("accept", "err", err)
			select {
			case <-time.After(10 * time.Millisecond):
				continue
			case <-d.ctx.Done():
				return
			}
		}
		d.mu.Lock()
		if len(d.half) >= maxHalf { // an honest one says hello at once
			d.half[0].Close()
			d.half = append(d.half[:0], d.half[1:]...)
		}
		d.half = append(d.half, c)
		d.mu.Unlock()
		d.wg.Go(func() { d.greet(c) })
	}
}

// greet reads a hello and does what it asks for.
func (d *Device) greet(c *net.TCPConn) {
	defer c.Close()
	b := make([]byte, helloBytes)
	c.SetDeadline(time.Now().Add(helloWait))
	_, err := io.ReadFull(c, b)
	d.mu.Lock()
	for i, x := range d.half {
		if x == c {
			d.half = append(d.half[:i], d.half[i+1:]...)
			break
		}
	}
	d.mu.Unlock()
	if err != nil {
		return
	}
	h, err := parseHello(b)
	if err != nil {
		d.log.Warn("connection refused", "peer", c.RemoteAddr(), "err", err)
		d.answer(c, verdictRefused)
		return
	}
	if h.kind == kindClose {
		if q := d.qp(h.dstQPN); q != nil {
			q.closeFrom(h.src)
		}
		d.answer(c, verdictOK)
		return
	}
	c.SetDeadline(time.Time{})
	in, verdict := d.admit(c, &h)
	if in != nil {
		in.serve()
		return
	}
	c.SetDeadline(time.Now().Add(helloWait))
	d.answer(c, verdict)
}

func (d *Device) answer(c *net.TCPConn, verdict uint16) error {
	r := reply{verdict: verdict, name: d.cfg.Name, rail: d.cfg.Rail}
	_, err := c.Write(r.encode())
	return err
}

// closeFrom closes the connection that the peer's queue pair has to this one, for
// good, and waits until its reader has left.
func (q *qp) closeFrom(src end) {
	q.mu.Lock()
	var in *inbound
	if q.peer == src {
		in = q.in
		q.inClosed = true
	}
	q.mu.Unlock()
	if in != nil {
		in.kick()
		<-in.left
	}
}

// inbound is the responding side of a queue pair: one connection of its peer.
type inbound struct {
	q     *qp
	s     *stream
	h     *holder
	count *tallyCount
	cross bool
	ops   [maxBatch]op
	frame [frameBytes]byte
	timer *time.Timer

	applied uint64 // operations
	acked   uint64
	unacked int // bytes applied since the last ack

	mu      sync.Mutex
	leaving bool
	kicked  chan struct{} // closed once leaving
	left    chan struct{} // closed when it does not touch memory any more
}

// admit makes c the peer's connection to the queue pair that it asks for, if that
// one expects it.
func (d *Device) admit(c *net.TCPConn, h *hello) (*inbound, uint16) {
	s, err := newStream(c, &d.far)
	if err != nil {
		return nil, verdictNotReady
	}
	q := d.qp(h.dstQPN)
	if q == nil {
		return nil, verdictRefused
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.state == nic.Err, d.Port().State != nic.PortActive:
		return nil, verdictRefused
	case q.state < nic.RTR:
		return nil, verdictNotReady
	case q.peer != h.src || q.inClosed || q.in != nil:
		return nil, verdictRefused
	}
	in := &inbound{
		q:      q,
		s:      s,
		count:  d.count(tallyKey{h.src, h.name, h.rail}),
		cross:  h.rail != d.cfg.Rail,
		timer:  time.NewTimer(time.Hour),
		kicked: make(chan struct{}),
		left:   make(chan struct{}),
	}
	in.timer.Stop()
	in.h = d.hold(in.interrupt, nil)
	s.waiting = in.ack
	q.in = in
	return in, verdictOK
}

// kick makes the reader leave. It does not wait.
func (in *inbound) kick() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.leaving {
		in.leaving = true
		close(in.kicked)
		in.s.conn.SetDeadline(longAgo)
	}
}

// interrupt makes the reader look again at the regions it holds.
func (in *inbound) interrupt() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.s.conn.SetDeadline(longAgo)
}

// resume undoes interrupt. It reports false if the reader has to leave.
func (in *inbound) resume() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.leaving {
		in.s.conn.SetDeadline(time.Time{})
	}
	return !in.leaving
}

// serve applies what the peer sends until the connection ends, or the peer does
// what it may not do.
func (in *inbound) serve() {
	debug.SetPanicOnFault(true)
	q, status := in.q, nic.StatusSuccess
	err := q.d.answer(in.s.conn, verdictOK)
	if err == nil {
		status, err = in.apply()
	}
	if errors.Is(err, errMalformed) {
		status = nic.StatusRemoteInvalid
	}
	q.d.drop(in.h)
	q.mu.Lock()
	q.inClosed, q.in = true, nil
	live, wake := q.state != nic.Err, false
	if status != nic.StatusSuccess {
		wake = q.enterErr(nic.StatusFlushed)
	}
	q.mu.Unlock()
	close(in.left)
	if wake {
		q.cq.wake()
	}
	if status == nic.StatusSuccess {
		return
	}
	q.d.log.Debug("peer's operation refused", "qpn", q.num, "status", status, "err", err)
	if live {
		q.d.event(nic.Event{Type: nic.QPFatal, QPN: q.num})
	}
	in.s.conn.SetDeadline(time.Now().Add(nakWait))
	putFrame(in.frame[:], frame{kind: frameNak, status: status, seq: in.applied})
	in.s.conn.Write(in.frame[:])
}

// apply reads batches. It returns a status other than success if the next
// operation must be refused, which the peer can still be told.
func (in *inbound) apply() (nic.Status, error) {
	s, ahead := in.s, stageBytes
	for {
		if err := s.fill(batchBytes, ahead); err != nil {
			return 0, err
		}
		n, err := parseBatch(s.stage[s.r:])
		if err != nil {
			return 0, err
		}
		if err := s.fill(batchBytes+n*opBytes, ahead); err != nil {
			return 0, err
		}
		total := uint64(0)
		for i := range n {
			if in.ops[i], err = parseOp(s.stage[s.r+batchBytes+i*opBytes:]); err != nil {
				return 0, err
			}
			total += uint64(in.ops[i].length)
		}
		s.r += batchBytes + n*opBytes
		ahead = batchHead
		if total/uint64(n) <= smallOp {
			ahead = stageBytes
		}
		for rest := in.ops[:n]; len(rest) > 0; {
			var k int
			var status nic.Status
			if rest[0].kind == nic.OpRead {
				k, status, err = in.read(rest)
			} else {
				k, status, err = in.write(rest, ahead)
			}
			if status != 0 || err != nil {
				return status, err
			}
			rest = rest[k:]
		}
	}
}

// write applies the writes at the head of ops, all in one go. It returns how many
// they were.
func (in *inbound) write(ops []op, ahead int) (int, nic.Status, error) {
	n, refused, fault := 0, false, error(nil)
	in.s.begin()
	for n < len(ops) && ops[n].kind == nic.OpWrite {
		if refused = !in.h.remote(in.q.pd, in.q.access, &ops[n]); refused {
			break
		}
		if fault = in.s.land(ops[n].addr, ops[n].length); fault != nil {
			break
		}
		n++
	}
	missing, err := in.s.finish(ahead)
	revoked := in.h.release()
	n = in.credit(ops[:n], missing)
	if revoked && in.resume() && errors.Is(err, os.ErrDeadlineExceeded) {
		// A region was taken away. Go on behind what has arrived: if it is the
		// one needed next, that operation is refused then.
		err, refused = nil, false
	}
	switch {
	case errors.Is(err, syscall.EFAULT), fault != nil:
		return n, nic.StatusRemoteOperation, nil
	case err != nil:
		return n, 0, err
	case refused:
		return n, nic.StatusRemoteAccess, nil
	}
	if in.applied-in.acked >= ackOps || in.unacked >= ackBytes {
		err = in.ack()
	}
	return n, 0, err
}

// credit counts the operations of which nothing is missing and returns how many
// they are; of the one after them it cuts off what has arrived.
func (in *inbound) credit(ops []op, missing int) int {
	n := len(ops)
	for n > 0 && missing > 0 {
		n--
		here := int(ops[n].length) - min(missing, int(ops[n].length))
		missing -= int(ops[n].length) - here
		ops[n].addr += uint64(here)
		ops[n].length -= uint32(here)
	}
	bytes := 0
	for _, o := range ops[:n] {
		bytes += int(o.length)
	}
	in.applied += uint64(n)
	in.unacked += bytes
	in.count.opsHere.Add(uint64(n))
	in.count.wroteHere.Add(uint64(bytes))
	return n
}

// read sends what the reads at the head of ops ask for. It returns how many they were.
func (in *inbound) read(ops []op) (int, nic.Status, error) {
	s, n, total := in.s, 0, 0
	s.wiov = append(s.wiov[:0], iov.Of(in.frame[:]))
	for n < len(ops) && ops[n].kind == nic.OpRead && (n == 0 || total+int(ops[n].length) <= batchPayload) {
		o := &ops[n]
		if !in.h.remote(in.q.pd, in.q.access, o) {
			break
		}
		if o.length > 0 {
			s.wiov = append(s.wiov, iov.Vec{Base: uintptr(o.addr), Len: uintptr(o.length)})
		}
		total += int(o.length)
		n++
	}
	if n == 0 {
		return 0, nic.StatusRemoteAccess, nil
	}
	putFrame(in.frame[:], frame{kind: frameData, count: n, length: uint32(total), seq: in.applied})
	err := s.writePaced(s.wiov, in.q.d.pace, in.cross, in.timer, in.kicked)
	revoked := in.h.release()
	if err != nil {
		return n, 0, err
	}
	if revoked && !in.resume() {
		return n, 0, net.ErrClosed
	}
	in.applied += uint64(n)
	in.acked, in.unacked = in.applied, 0
	in.count.opsHere.Add(uint64(n))
	in.count.readHere.Add(uint64(total))
	return n, 0, nil
}

// ack tells the peer how far it has got, before the reader waits for more.
func (in *inbound) ack() error {
	in.s.idle = true
	if in.acked == in.applied {
		return nil
	}
	putFrame(in.frame[:], frame{kind: frameAck, seq: in.applied})
	n, err := in.s.conn.Write(in.frame[:])
	switch {
	case err == nil:
		in.acked, in.unacked = in.applied, 0
	case n > 0: // half a frame: an interrupted reader must not go on
		err = net.ErrClosed
	}
	return err
}
