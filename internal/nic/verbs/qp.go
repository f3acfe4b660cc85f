package verbs

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

const (
	defaultWR      = 256
	defaultTimeout = 67 * time.Millisecond
	mostRetries    = 7 // and Mooncake's number

	// What Mooncake sets, and both ends must agree on or never send.
	hopLimit    = 16
	minRNRTimer = 12
	rnrRetry    = 7 // without end
)

// qp is a queue pair. The state is what was asked for, and ERR once a completion has
// said so.
type qp struct {
	d    *Device
	pd   *pd
	cq   *cq
	at   uintptr
	num  uint32
	slot uint32 // in the completion queue
	max  uint64
	mask uint64
	ids  []uint64 // of requests, by number

	state atomic.Uint32
	freed atomic.Uint64 // requests before it are reported

	mu     sync.Mutex
	tail   uint64 // requests before it are posted
	closed bool
}

// NewQP implements [nic.PD].
func (p *pd) NewQP(opts nic.QPOptions) (nic.QP, error) {
	const what = "new queue pair"
	d := p.d
	f, done, err := d.begin(what)
	if err != nil {
		return nil, err
	}
	defer done()
	c, ok := opts.CQ.(*cq)
	if !ok || c.d != d {
		return nil, d.failed(what, errors.New("the completion queue is not of this device"))
	}
	if opts.MaxWR == 0 {
		opts.MaxWR = min(defaultWR, d.attr.MaxWR)
	}
	if opts.MaxWR < 1 || opts.MaxWR > d.attr.MaxWR {
		return nil, d.failed(what, fmt.Errorf("%d work requests: want 1..%d", opts.MaxWR, d.attr.MaxWR))
	}
	if err := p.use(&p.qps); err != nil {
		return nil, d.failed(what, err)
	}
	q := &qp{d: d, pd: p, cq: c, max: uint64(opts.MaxWR)}
	ring := uint64(1) << bits.Len64(q.max-1)
	q.mask, q.ids = ring-1, make([]uint64, ring)
	if err := c.enter(q); err != nil {
		p.drop(&p.qps)
		return nil, d.failed(what, fmt.Errorf("completion queue: %w", err))
	}
	f.init = qpInitAttr{sendCQ: c.at, recvCQ: c.at, kind: qptRC, cap: qpCap{maxSendWR: uint32(opts.MaxWR), maxRecvWR: 1, maxSend: 1, maxRecv: 1}}
	at, errno := d.p.lib.pointer(f, d.p.lib.createQP, p.at, addr(&f.init))
	if at == 0 {
		c.mu.Lock()
		c.leave(q)
		c.mu.Unlock()
		p.drop(&p.qps)
		return nil, d.failed(fmt.Sprintf("%s with %d work requests", what, opts.MaxWR), errno)
	}
	q.at, q.num = at, numOf(at)
	d.mu.Lock()
	d.qps[q] = struct{}{}
	d.mu.Unlock()
	return q, nil
}

func numOf(qp uintptr) uint32 { return at[uint32](qp, qpNum) }

func (q *qp) Num() uint32        { return q.num }
func (q *qp) State() nic.QPState { return nic.QPState(q.state.Load()) }

func (q *qp) failed(what string, err error) error {
	return fmt.Errorf("verbs: %s queue pair %d on %s: %w", what, q.num, q.d.name, err)
}

// Modify implements [nic.QP].
func (q *qp) Modify(attr nic.QPAttr) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return q.failed("modify", nic.ErrClosed)
	}
	from, to := q.State(), attr.State
	if to > nic.Err || to != nic.Reset && to != nic.Err && (from == nic.Err || to != from+1) {
		return q.failed(fmt.Sprintf("modify from %v to %v:", from, to), nic.ErrState)
	}
	used := q.d.address()
	if from == nic.Reset && to == nic.Err {
		// The kernel knows no way from one to the other.
		if e := q.modify(nic.QPAttr{State: nic.Init, PKeyIndex: attr.PKeyIndex}, used); e != 0 {
			return q.failed("modify to INIT", e)
		}
	}
	if from == nic.RTS && to == nic.Reset {
		// Soft-RoCE does not always find its way back from the middle of its work.
		if e := q.modify(nic.QPAttr{State: nic.Err}, used); e != 0 {
			return q.failed("modify to ERR", e)
		}
	}
	if e := q.modify(attr, used); e != 0 {
		if e == syscall.EINVAL && to == nic.RTR {
			q.d.doubt(used)
			return q.failed(fmt.Sprintf("modify to RTR with %v", used), e)
		}
		return q.failed(fmt.Sprintf("modify to %v", to), e)
	}
	if to != nic.Reset {
		q.state.Store(uint32(to))
		return nil
	}
	q.cq.purge(q, func() {
		q.tail = 0
		q.freed.Store(0)
		q.state.Store(uint32(nic.Reset))
	})
	return nil
}

// modify fills in what the transition wants, and makes it.
func (q *qp) modify(attr nic.QPAttr, own gidEntry) syscall.Errno {
	d := q.d
	f, err := d.p.frames.get()
	if err != nil {
		return syscall.ENOMEM
	}
	defer d.p.frames.put(f)
	a, mask := &f.qp, maskState
	*a = qpAttr{}
	switch attr.State {
	case nic.Reset:
		a.state = qpsReset
	case nic.Err:
		a.state = qpsErr
	case nic.Init:
		a.state, a.port, a.pkeyIndex = qpsInit, uint8(d.port), attr.PKeyIndex
		a.access = uint32(attr.Access &^ nic.RelaxedOrdering)
		mask |= maskPort | maskPKeyIndex | maskAccess
	case nic.RTR:
		if e := code(f.call(d.p.lib.queryPort, d.context, uintptr(d.port), addr(&f.port))); e != 0 {
			return e
		}
		a.state, a.destQPN = qpsRTR, attr.RemoteQPN
		a.pathMTU = f.port.activeMTU
		if attr.MTU > 0 {
			a.pathMTU = min(a.pathMTU, mtuEnum(attr.MTU))
		}
		a.maxDestRdAtomic, a.minRNRTimer = d.dest, minRNRTimer
		a.ah = ahAttr{
			dgid: attr.RemoteGID, sgidIndex: uint8(own.index), hopLimit: hopLimit, trafficClass: attr.TrafficClass,
			dlid: attr.RemoteLID, serviceLevel: attr.ServiceLevel, isGlobal: 1, port: uint8(d.port),
		}
		mask |= maskDestQPN | maskPathMTU | maskMaxDestRdAtomic | maskMinRNRTimer | maskAV | maskRQPSN
	case nic.RTS:
		a.state, a.rnrRetry, a.maxRdAtomic = qpsRTS, rnrRetry, uint8(d.attr.MaxRDAtom)
		a.timeout, a.retryCount = ackTimeout(attr.Timeout), d.retries
		if attr.Timeout == 0 {
			a.timeout += d.slower
		}
		if attr.Retries > 0 {
			a.retryCount = uint8(min(attr.Retries, int(d.retries)))
		}
		mask |= maskTimeout | maskRetryCount | maskRNRRetry | maskMaxRdAtomic | maskSQPSN
	}
	return code(f.call(d.p.lib.modifyQP, q.at, addr(a), uintptr(mask)))
}

// ackTimeout is the least exponent t with 4.096 µs * 2^t at least d, or nearly so.
func ackTimeout(d time.Duration) uint8 {
	if d <= 0 {
		d = defaultTimeout
	}
	t := uint8(1)
	for t < 31 && 4096*time.Nanosecond<<t < d {
		t++
	}
	return t
}

// Post implements [nic.QP].
func (q *qp) Post(wrs []nic.WR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, q.failed("post to", nic.ErrClosed)
	}
	if s := q.State(); s < nic.RTS {
		return 0, q.failed(fmt.Sprintf("post in %v to", s), nic.ErrState)
	}
	n := min(uint64(len(wrs)), q.max-(q.tail-q.freed.Load()))
	if n == 0 {
		return 0, nil
	}
	c, err := q.d.chains.get()
	if err != nil {
		return 0, q.failed("post to", err)
	}
	defer q.d.chains.put(c)
	taken := uint64(0)
	for taken < n {
		k := min(n-taken, chainWRs)
		for i := range k {
			w, number := &wrs[taken+i], q.tail+i
			q.ids[number&q.mask] = w.ID
			c.fill(int(i), uint64(q.slot)<<32|uint64(uint32(number)), w)
		}
		m, r := c.post(q.d.ops.postSend, q.at, int(k))
		taken += uint64(m)
		q.tail += uint64(m)
		switch e := code(r); e {
		case 0:
		case syscall.ENOMEM: // the card's queue is full
			return int(taken), nil
		default:
			return int(taken), q.failed("post to", e)
		}
	}
	return int(taken), nil
}

// Close implements [nic.QP]. A card needs no word of the peer's.
func (q *qp) Close(context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	d := q.d
	// What it had to say goes with it; destroying ends everything anyway.
	q.modify(nic.QPAttr{State: nic.Err}, gidEntry{})
	f, err := d.p.frames.get()
	if err != nil {
		return err
	}
	defer d.p.frames.put(f)
	if e := code(f.call(d.p.lib.destroyQP, q.at)); e != 0 {
		return q.failed("destroy", e)
	}
	q.closed = true
	q.state.Store(uint32(nic.Err))
	q.cq.purge(q, func() { q.cq.leave(q) })
	d.mu.Lock()
	delete(d.qps, q)
	d.mu.Unlock()
	q.pd.drop(&q.pd.qps)
	return nil
}

// chains is a device's memory for work requests: one for each Post that runs at a
// time.
type chains struct {
	mu   sync.Mutex
	free []*chain
}

func (s *chains) get() (*chain, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		c := s.free[n-1]
		s.free = s.free[:n-1]
		return c, nil
	}
	return mapped[chain]()
}

func (s *chains) put(c *chain) {
	s.mu.Lock()
	s.free = append(s.free, c)
	s.mu.Unlock()
}

func (s *chains) close() {
	for _, c := range s.free {
		unmap(c)
	}
	s.free = nil
}
