package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

// qp is a queue pair. Work goes over the wire in order; it is delivered first and
// acknowledged later.
type qp struct {
	pd     *pd
	d      *device
	num    uint32
	key    string
	cq     *cq
	max    int
	state  nic.QPState
	remote uint32
	gid    nic.GID
	cut    bool // nothing comes through any more
	closed bool

	work      []wr
	wire      int // of work: how much may still be delivered once in ERR
	delivered int
	sending   bool // an event is under way
	acking    bool
	flushing  bool
}

type wr struct {
	nic.WR
	half   bool // half of it has been delivered
	status nic.Status
}

// Num implements [nic.QP].
func (q *qp) Num() uint32 { return q.num }

// State implements [nic.QP].
func (q *qp) State() nic.QPState {
	q.d.p.w.mu.Lock()
	defer q.d.p.w.mu.Unlock()
	return q.state
}

// Modify implements [nic.QP].
func (q *qp) Modify(a nic.QPAttr) error {
	w := q.d.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if q.closed {
		return nic.ErrClosed
	}
	if up := a.State == q.state+1 && a.State <= nic.RTS; !up && a.State != nic.Reset && a.State != nic.Err {
		return nic.ErrState
	}
	switch a.State {
	case nic.RTR:
		q.remote, q.gid = a.RemoteQPN, a.RemoteGID
	case nic.Reset:
		q.work, q.delivered = nil, 0
	case nic.Err:
		q.fail()
		return nil
	}
	q.state = a.State
	return nil
}

// fail moves to ERR: what is on the wire may land until the flush is reported. The
// world's mutex is held.
func (q *qp) fail() {
	if q.state != nic.Err {
		q.state = nic.Err
		q.wire = len(q.work)
	}
	q.flush()
}

func (q *qp) flush() {
	if q.flushing || q.closed {
		return
	}
	w := q.d.p.w
	q.flushing = true
	if len(q.work) == 0 {
		q.flushing = false
		return
	}
	if w.opts.Bug == EarlyFlush {
		work := slices.Clone(q.work) // what is on the wire stays there
		q.laterLocked(0, 0, "flush", func() {
			for _, x := range work {
				q.cq.put(nic.Completion{ID: x.ID, QPN: q.num, Status: nic.StatusFlushed})
			}
		})
		return
	}
	q.laterLocked(5*time.Microsecond, w.plan.flushDelay, "flush", q.flushed)
}

// laterLocked adds an event of the queue pair. The world's mutex is held.
func (q *qp) laterLocked(lo, hi time.Duration, what string, f func()) {
	w := q.d.p.w
	w.incoming = append(w.incoming, &event{lo: lo, hi: hi, key: q.key, what: what, fire: f})
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// peer returns the other end if it can be reached, and whether that is for good.
func (q *qp) peer() (r *qp, frozen bool) {
	w := q.d.p.w
	r = w.fabric.qps[q.remote]
	if r == nil || r.closed || r.d.gid != q.gid || r.remote != q.num {
		return nil, false
	}
	if !w.plan.deathCloses && r.d.p.stopped && !r.d.p.gone {
		return r, true // the software NIC stops with its process
	}
	return r, false
}

// flushed reports what is left, once none of it can land any more.
func (q *qp) flushed() {
	w := q.d.p.w
	w.mu.Lock()
	q.flushing = false
	if q.closed {
		w.mu.Unlock()
		return
	}
	if _, frozen := q.peer(); frozen || !w.plan.deathCloses && q.d.p.stopped {
		q.flushing = true
		q.laterLocked(5*time.Millisecond, 20*time.Millisecond, "flush held up", q.flushed)
		w.mu.Unlock()
		return
	}
	work := q.work
	q.work, q.delivered, q.wire = nil, 0, 0
	w.mu.Unlock()
	for _, x := range work {
		s := x.status
		if s == 0 {
			s = nic.StatusFlushed
		}
		q.cq.put(nic.Completion{ID: x.ID, QPN: q.num, Status: s})
	}
}

// Post implements [nic.QP].
func (q *qp) Post(wrs []nic.WR) (int, error) {
	w := q.d.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if q.closed {
		return 0, nic.ErrClosed
	}
	if q.state != nic.RTS && q.state != nic.Err {
		return 0, nic.ErrState
	}
	n := min(len(wrs), q.max-len(q.work))
	for _, x := range wrs[:n] {
		q.work = append(q.work, wr{WR: x})
	}
	if q.state == nic.Err {
		q.flush()
	} else {
		q.push()
	}
	return n, nil
}

// push sends the next request on its way. The world's mutex is held.
func (q *qp) push() {
	w := q.d.p.w
	limit := len(q.work)
	if q.state == nic.Err {
		limit = min(limit, q.wire)
	}
	if !q.sending && q.delivered < limit && !q.closed {
		q.sending = true
		q.laterLocked(time.Microsecond, w.plan.wireDelay, "wire", q.deliver)
	}
	if !q.acking && q.delivered > 0 && q.state == nic.RTS && !q.closed {
		q.acking = true
		q.laterLocked(time.Microsecond, w.plan.ackDelay, "ack", q.ack)
	}
}

// deliver brings a request, or half of it, to the other end.
func (q *qp) deliver() {
	w := q.d.p.w
	w.mu.Lock()
	q.sending = false
	limit := len(q.work)
	if q.state == nic.Err {
		limit = min(limit, q.wire)
	}
	if q.closed || q.delivered >= limit || q.state != nic.RTS && q.state != nic.Err {
		w.mu.Unlock()
		return
	}
	x := &q.work[q.delivered]
	r, frozen := q.peer()
	frozen = frozen || !w.plan.deathCloses && q.d.p.stopped && !q.d.p.gone
	if frozen {
		q.sending = true
		q.laterLocked(time.Millisecond, 20*time.Millisecond, "wire held up", q.deliver)
		w.mu.Unlock()
		return
	}
	if !w.quiet && q.state == nic.RTS && w.chance(w.plan.wireLoss, 2000) {
		w.fault("connection cut", q.key)
		q.cut = true
	}
	if w.opts.Bug == EarlyDone && q.state == nic.RTS && !q.cut && x.status == 0 && !x.half {
		x.half = true // told before it is done
		id := x.ID
		q.sending = true
		q.laterLocked(time.Microsecond, w.plan.wireDelay, "wire", func() { q.land(id) })
		signaled := x.Signaled
		w.mu.Unlock()
		if signaled {
			q.cq.put(nic.Completion{ID: id, QPN: q.num})
		}
		return
	}
	if q.cut || r == nil || r.state != nic.RTR && r.state != nic.RTS || !w.connected(q.d, r.d) {
		q.drop(x)
		w.mu.Unlock()
		return
	}
	q.carry(x, r)
	q.push()
	w.mu.Unlock()
}

// land is the late half of a planted bug: a completion that came too early.
func (q *qp) land(id uint64) {
	w := q.d.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	q.sending = false
	for i := range q.work {
		if x := &q.work[i]; x.ID == id {
			if r, _ := q.peer(); r != nil {
				q.carry(x, r)
			}
			q.work = append(q.work[:i], q.work[i+1:]...)
			q.delivered = 0
			break
		}
	}
	q.push()
}

// carry moves bytes, if the keys allow it. The world's mutex is held.
func (q *qp) carry(x *wr, r *qp) {
	w := q.d.p.w
	f := &w.fabric
	need, local := nic.RemoteWrite, nic.Access(0)
	if x.Op == nic.OpRead {
		need, local = nic.RemoteRead, nic.LocalWrite
	}
	if !f.mrs[x.LKey].covers(q.d, x.LocalAddr, uint64(x.Length), local) {
		if !q.d.p.dead {
			w.violateLocked("%s: work of %s posted with memory that is not registered", q.key, q.d.p)
		}
		q.refuse(x, nic.StatusLocalProtection)
		return
	}
	if m := f.mrs[x.RKey]; !m.covers(r.d, x.RemoteAddr, uint64(x.Length), need) && w.opts.Bug != StaleKey {
		r.fail()
		q.refuse(x, nic.StatusRemoteAccess)
		return
	}
	lr, lo, err := q.d.p.space.find(x.LocalAddr, uint64(x.Length))
	rr, ro, err2 := r.d.p.space.find(x.RemoteAddr, uint64(x.Length))
	if err != nil || err2 != nil {
		q.refuse(x, nic.StatusRemoteAccess)
		return
	}
	from, fo, to, fto := lr, lo, rr, ro
	if x.Op == nic.OpRead {
		from, fo, to, fto = rr, ro, lr, lo
	}
	n := uint64(x.Length)
	if !x.half && n > 4096 && w.chance(1, 6) {
		x.half = true
		w.move(from, fo, to, fto, n/2, q.key)
		return
	}
	w.move(from, fo, to, fto, n, q.key)
	q.delivered++
	if !w.quiet && w.chance(w.plan.nicErrors, 3000) {
		w.fault("NIC error", q.key) // the bytes are there, and the sender is told otherwise
		q.fail()
		x.status = nic.StatusRetryExceeded
	}
}

// drop ends a request that nobody answers. The world's mutex is held.
func (q *qp) drop(x *wr) {
	w := q.d.p.w
	if q.state == nic.Err {
		q.wire = q.delivered
		return
	}
	x.status = nic.StatusRetryExceeded
	q.cut = true
	q.flushing = true
	q.sending = true
	q.laterLocked(time.Millisecond, w.plan.retryDelay, "no answer", func() {
		w.mu.Lock()
		if q.state == nic.RTS {
			q.state = nic.Err
			q.wire = q.delivered
		}
		q.sending = false
		w.mu.Unlock()
		q.flushed()
	})
}

// refuse ends a request that the other end, or this one, does not allow.
func (q *qp) refuse(x *wr, s nic.Status) {
	if q.state == nic.Err {
		q.wire = q.delivered
		return
	}
	x.status = s
	q.state, q.wire = nic.Err, q.delivered
	q.flush()
}

// ack reports the oldest request that was delivered.
func (q *qp) ack() {
	w := q.d.p.w
	w.mu.Lock()
	q.acking = false
	if q.closed || q.state != nic.RTS || q.delivered == 0 {
		w.mu.Unlock()
		return
	}
	if !w.plan.deathCloses && q.d.p.stopped {
		q.acking = true
		q.laterLocked(time.Millisecond, 20*time.Millisecond, "ack held up", q.ack)
		w.mu.Unlock()
		return
	}
	x := q.work[0]
	q.work = q.work[1:]
	q.delivered--
	q.push()
	w.mu.Unlock()
	if x.Signaled {
		q.cq.put(nic.Completion{ID: x.ID, QPN: q.num})
	}
}

// Close implements [nic.QP].
func (q *qp) Close(ctx context.Context) error {
	w := q.d.p.w
	w.mu.Lock()
	if q.closed {
		w.mu.Unlock()
		return nic.ErrClosed
	}
	if q.state < nic.RTR || q.d.p.zombie() { // nothing to wait for
		q.destroy()
		w.mu.Unlock()
		return nil
	}
	if q.state != nic.Err {
		q.state = nic.Err
		q.wire = len(q.work)
	}
	w.mu.Unlock()
	done := make(chan struct{})
	over := false
	var try func()
	attempt := func(lo, hi time.Duration) {
		w.add(&event{lo: lo, hi: hi, key: q.key, what: "close", owner: q.d.p, fire: func() { try() }, lost: func() { try() }})
	}
	try = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if over || q.closed {
			if !over {
				close(done)
			}
			return
		}
		if _, frozen := q.peer(); frozen && len(q.work) > 0 && !q.d.p.zombie() {
			w.incoming = append(w.incoming, &event{lo: 5 * time.Millisecond, hi: 20 * time.Millisecond, key: q.key, what: "close held up", owner: q.d.p, fire: try, lost: try})
			return
		}
		q.destroy()
		close(done)
	}
	attempt(2*time.Microsecond, w.plan.closeDelay)
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		if q.closed {
			return nil
		}
		over = true
		return fmt.Errorf("sim: queue pair %s: peer cannot be reached: %w", q.key, context.Cause(ctx))
	}
}

// destroy takes the queue pair away. The world's mutex is held.
func (q *qp) destroy() {
	if q.closed {
		return
	}
	f := &q.d.p.w.fabric
	q.state, q.closed, q.work, q.delivered = nic.Err, true, nil, 0
	q.pd.qps--
	delete(f.qps, q.num)
	f.all = slices.DeleteFunc(f.all, func(o *qp) bool { return o == q })
}

// closeAll destroys the queue pairs of a process that is gone. What a software NIC
// has put into socket buffers may outlive it.
func (f *fabric) closeAll(p *proc) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	for _, q := range slices.Clone(f.all) {
		if q.d.p != p {
			continue
		}
		if !f.w.plan.deathCloses && !p.zombie() && len(q.work) > 0 {
			q.orphan()
			continue
		}
		q.destroy()
	}
}

// orphan leaves what is on the wire to itself: it lands, as far as it was sent, as
// long as the other end's queue pair is there.
func (q *qp) orphan() {
	w := q.d.p.w
	if q.state != nic.Err {
		q.state = nic.Err
		q.wire = q.delivered + w.rng.IntN(len(q.work)-q.delivered+1)
	}
	q.push()
}

// connected reports whether two NICs can reach each other.
func (w *world) connected(a, b *device) bool {
	if a.down || b.down {
		return false
	}
	return a.rail == b.rail || w.plan.spine
}
