package softnic

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

// resetWait bounds how long a reset waits for the peer to close the old connection.
const resetWait = 2 * time.Second

// qp is a queue pair. Its requests lie in a ring and are numbered from 0 since
// the last reset:
//
//	freed <= done <= sent <= tail
//	polled   ended   on the wire   posted
//
// The way to ERR is enterErr, whatever the cause. From there run, if it was
// started, sees to it that the peer has closed its end, and only then flushes.
type qp struct {
	d     *Device
	pd    *pd
	cq    *cq
	num   uint32
	maxWR uint64
	ring  []nic.WR // length is a power of two

	freed atomic.Uint64 // written by CQ.Poll
	done  atomic.Uint64 // written under mu

	mu       sync.Mutex
	more     sync.Cond // the sender waits: for requests, or for acks if blocked
	state    nic.QPState
	access   nic.Access
	peer     end
	budget   time.Duration // for connecting
	tail     uint64
	sent     uint64
	blocked  bool // the request at sent must not be sent: its local memory is not valid
	broken   bool // the connection is gone, and nothing was outstanding
	silent   bool // closed: report nothing any more
	cause    nic.Status
	closed   bool
	running  bool // run was started
	cancel   context.CancelFunc
	out      *net.TCPConn
	in       *inbound
	inClosed bool          // the peer's connection has ended: no other one
	stop     chan struct{} // closed on the way to ERR
	finished bool          // in ERR, and nothing moves any more
	lost     bool          // given up without the peer's word
	ended    chan struct{} // closed when finished or lost
}

func newQP(p *pd, c *cq, wrs int) *qp {
	size := 1
	for size < wrs {
		size *= 2
	}
	q := &qp{d: p.d, pd: p, cq: c, maxWR: uint64(wrs), ring: make([]nic.WR, size)}
	q.more.L = &q.mu
	q.renew()
	return q
}

// renew puts the queue pair in state RESET.
func (q *qp) renew() {
	q.state = nic.Reset
	q.tail, q.sent = 0, 0
	q.done.Store(0)
	q.freed.Store(0)
	q.blocked, q.broken, q.silent, q.running, q.finished, q.inClosed = false, false, false, false, false, false
	q.peer = end{}
	q.cause = nic.StatusFlushed
	q.out, q.in, q.cancel = nil, nil, nil
	q.stop, q.ended = make(chan struct{}), make(chan struct{})
}

func (q *qp) slot(i uint64) *nic.WR { return &q.ring[i&uint64(len(q.ring)-1)] }

// Num implements [nic.QP].
func (q *qp) Num() uint32 { return q.num }

// State implements [nic.QP].
func (q *qp) State() nic.QPState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state
}

// Modify implements [nic.QP]. To ERR it waits until no peer touches memory
// through the queue pair; the flush comes later, if it has to wait for the peer. To RESET it
// waits for both.
func (q *qp) Modify(attr nic.QPAttr) error {
	switch attr.State {
	case nic.Err:
		q.fail(nic.StatusFlushed)
		q.leave()
		return nil
	case nic.Reset:
		return q.reset()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return fmt.Errorf("softnic: modify queue pair %#x: %w", q.num, nic.ErrClosed)
	}
	if attr.State > nic.RTS || q.state == nic.Err || attr.State != q.state+1 {
		return fmt.Errorf("softnic: modify queue pair %#x from %v to %v: %w", q.num, q.state, attr.State, nic.ErrState)
	}
	switch attr.State {
	case nic.Init:
		q.access = attr.Access
	case nic.RTR:
		at := addrOf(attr.RemoteGID, attr.RemoteLID)
		if at.Addr().IsUnspecified() || at.Addr().IsMulticast() || at.Port() == 0 {
			return fmt.Errorf("softnic: modify queue pair %#x to RTR: remote GID %v, LID %d: not an address of a software NIC", q.num, attr.RemoteGID, attr.RemoteLID)
		}
		if attr.RemoteQPN >= 1<<24 {
			return fmt.Errorf("softnic: modify queue pair %#x to RTR: remote number %#x: want 24 bits", q.num, attr.RemoteQPN)
		}
		q.peer = end{gid: attr.RemoteGID, port: attr.RemoteLID, qpn: attr.RemoteQPN}
	case nic.RTS:
		if attr.Timeout < 0 || attr.Retries < 0 {
			return fmt.Errorf("softnic: modify queue pair %#x to RTS: timeout %v, %d retries: want no negative ones", q.num, attr.Timeout, attr.Retries)
		}
		timeout, retries := attr.Timeout, attr.Retries
		if timeout == 0 {
			timeout, retries = defaultTimeout, defaultRetries
		}
		q.budget = timeout * time.Duration(min(retries, 1<<10)+1)
	}
	q.state = attr.State
	return nil
}

func (q *qp) reset() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return fmt.Errorf("softnic: modify queue pair %#x: %w", q.num, nic.ErrClosed)
	}
	q.mu.Unlock()
	q.abandon()
	q.leave()
	ctx, cancel := context.WithTimeout(q.d.ctx, resetWait)
	defer cancel()
	if err := q.await(ctx); err != nil {
		return fmt.Errorf("softnic: reset queue pair %#x: %w", q.num, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cq.purge(q)
	q.renew()
	return nil
}

// Post implements [nic.QP].
func (q *qp) Post(wrs []nic.WR) (int, error) {
	q.mu.Lock()
	if q.closed || (q.state != nic.RTS && q.state != nic.Err) {
		defer q.mu.Unlock()
		cause := nic.ErrState
		if q.closed {
			cause = nic.ErrClosed
		}
		return 0, fmt.Errorf("softnic: post to queue pair %#x in state %v: %w", q.num, q.state, cause)
	}
	var err error
	n, room := 0, q.maxWR-(q.tail-q.freed.Load())
	for n < len(wrs) && uint64(n) < room {
		if k := wrs[n].Op; k != nic.OpWrite && k != nic.OpRead {
			err = fmt.Errorf("softnic: post to queue pair %#x: %v is not an operation", q.num, k)
			break
		}
		*q.slot(q.tail) = wrs[n]
		q.tail++
		n++
	}
	wake := false
	switch {
	case n == 0:
	case q.finished:
		wake = q.flush()
	case q.state == nic.Err: // flushed together with the rest
	case q.broken:
		wake = q.enterErr(nic.StatusRetryExceeded)
	case !q.running:
		q.start()
	default:
		q.more.Signal()
	}
	q.mu.Unlock()
	if wake {
		q.cq.wake()
	}
	return n, err
}

// complete ends the requests before n, with success.
func (q *qp) complete(n uint64) {
	q.mu.Lock()
	q.cq.mu.Lock()
	wake := false
	for i := q.done.Load(); i < n; i++ {
		w := q.slot(i)
		if w.Signaled && !q.silent {
			wake = q.cq.add(entry{nic.Completion{ID: w.ID, QPN: q.num}, q, i}) || wake
		}
	}
	q.done.Store(n)
	q.cq.mu.Unlock()
	if q.blocked {
		q.more.Signal()
	}
	q.mu.Unlock()
	if wake {
		q.cq.wake()
	}
}

// flush ends all that is outstanding: the first with the cause of the failure.
// The caller holds mu and calls wake later if flush says so.
func (q *qp) flush() (wake bool) {
	q.cq.mu.Lock()
	for i := q.done.Load(); i < q.tail; i++ {
		if !q.silent {
			e := entry{nic.Completion{ID: q.slot(i).ID, QPN: q.num, Status: q.cause}, q, i}
			wake = q.cq.add(e) || wake
		}
		q.cause = nic.StatusFlushed
	}
	q.cq.mu.Unlock()
	q.cause = nic.StatusFlushed
	q.sent = q.tail
	q.done.Store(q.tail)
	return wake
}

// fail moves the queue pair to ERR. It does not wait.
func (q *qp) fail(cause nic.Status) {
	q.mu.Lock()
	wake := q.enterErr(cause)
	q.mu.Unlock()
	if wake {
		q.cq.wake()
	}
}

// abandon is fail, and nothing is reported any more.
func (q *qp) abandon() {
	q.mu.Lock()
	q.silent = true
	q.enterErr(nic.StatusFlushed)
	q.mu.Unlock()
}

// enterErr shuts both connections. The caller holds mu and calls wake later if
// enterErr says so.
func (q *qp) enterErr(cause nic.Status) (wake bool) {
	if q.state == nic.Err {
		return false
	}
	q.state, q.cause = nic.Err, cause
	close(q.stop)
	q.more.Broadcast()
	if q.in != nil {
		q.in.kick()
	}
	if !q.running {
		wake = q.flush()
		q.finished = true
		close(q.ended)
		return wake
	}
	q.cancel()
	if q.out != nil {
		q.out.Close()
	}
	return false
}

// cut shuts both connections, as a port that goes down does.
func (q *qp) cut() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.out != nil {
		q.out.Close()
	}
	if q.in != nil {
		q.in.kick()
	}
}

// leave waits until no peer touches memory through the queue pair, which is in ERR.
func (q *qp) leave() {
	q.mu.Lock()
	in := q.in
	q.mu.Unlock()
	if in != nil {
		<-in.left
	}
}

// await waits until nothing the queue pair has posted moves any more.
func (q *qp) await(ctx context.Context) error {
	q.mu.Lock()
	ended, peer := q.ended, addrOf(q.peer.gid, q.peer.port)
	q.mu.Unlock()
	select {
	case <-ended:
		if !q.isLost() {
			return nil
		}
		return fmt.Errorf("%v has not confirmed, what was posted may still land: %w", peer, nic.ErrClosed)
	default:
	}
	select {
	case <-ended:
		return q.await(ctx)
	case <-ctx.Done():
		return fmt.Errorf("%v has not confirmed, what was posted may still land: %w", peer, context.Cause(ctx))
	}
}

func (q *qp) isLost() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lost
}

// Close implements [nic.QP]. Completions that were not polled are dropped.
func (q *qp) Close(ctx context.Context) error {
	q.abandon()
	q.leave()
	if err := q.await(ctx); err != nil {
		return fmt.Errorf("softnic: close queue pair %#x: %w", q.num, err)
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	q.mu.Unlock()
	q.cq.purge(q)
	q.cq.use(-1)
	q.d.dropQP(q)
	q.pd.mu.Lock()
	q.pd.qps--
	q.pd.mu.Unlock()
	return nil
}
