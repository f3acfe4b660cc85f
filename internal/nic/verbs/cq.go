package verbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/railhop/railhop/internal/nic"
)

// cq is a completion queue.
//
// The id of a work request is its queue pair's place in slots and its number there,
// so that a completion finds both without a search. Some cards leave completions of a
// queue pair behind that was reset or destroyed: purge takes the queue in, without
// those, and Poll hands that out first.
type cq struct {
	d       *Device
	at      uintptr
	channel uintptr
	file    *os.File // the channel's; nil if nobody is to be woken
	wake    func()
	lost    atomic.Bool
	wg      sync.WaitGroup

	mu     sync.Mutex
	h      *harvest
	slots  []*qp
	spare  []uint32 // free places
	back   []wc     // taken in, oldest first
	qps    int
	closed bool
}

// NewCQ implements [nic.Device].
func (d *Device) NewCQ(depth int, wake func()) (nic.CQ, error) {
	const what, most = "new completion queue", 1 << 20
	f, done, err := d.begin(what)
	if err != nil {
		return nil, err
	}
	defer done()
	if depth < 1 || depth > most {
		return nil, d.failed(what, fmt.Errorf("depth %d: want 1..%d", depth, most))
	}
	c := &cq{d: d, wake: wake}
	if c.h, err = mapped[harvest](); err != nil {
		return nil, d.failed(what, err)
	}
	if wake != nil {
		if err = c.open(f); err != nil {
			unmap(c.h)
			return nil, d.failed(what, err)
		}
	}
	at, errno := d.p.lib.pointer(f, d.p.lib.createCQ, d.context, uintptr(depth), 0, c.channel, 0)
	if at == 0 {
		err := d.failed(fmt.Sprintf("%s of %d", what, depth), errno)
		return nil, errors.Join(err, c.shut(f))
	}
	c.at = at
	if c.file != nil {
		c.wg.Go(c.watch)
	}
	d.mu.Lock()
	d.cqs[c] = struct{}{}
	d.mu.Unlock()
	return c, nil
}

// open makes the channel by which the card wakes us.
func (c *cq) open(f *frame) error {
	lib := c.d.p.lib
	channel, errno := lib.pointer(f, lib.createCompChannel, c.d.context)
	if channel == 0 {
		return fmt.Errorf("completion channel: %w", errno)
	}
	file, err := pollable(at[int32](channel, channelFD), c.d.name+" completions")
	if err != nil {
		return errors.Join(err, asError(code(f.call(lib.destroyCompChannel, channel))))
	}
	c.channel, c.file = channel, file
	return nil
}

// watch turns the channel's events into calls of wake.
func (c *cq) watch() {
	lib := c.d.p.lib
	f, err := c.d.p.frames.get()
	if err != nil {
		c.d.log.Warn("completions wake nobody", "err", err)
		return
	}
	defer c.d.p.frames.put(f)
	raw, err := c.file.SyscallConn()
	if err != nil {
		return
	}
	for {
		err := raw.Read(func(uintptr) bool {
			return lib.status(f, lib.getCQEvent, c.channel, addr(&f.word), addr(&f.word2)) == 0
		})
		if err != nil {
			return // closed
		}
		f.call(lib.ackCQEvents, c.at, 1)
		c.wake()
	}
}

// Poll implements [nic.CQ].
func (c *cq) Poll(done []nic.Completion) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, c.d.failed("poll", nic.ErrClosed)
	}
	n := 0
	for len(c.back) > 0 && n < len(done) {
		n += c.report(&c.back[0], &done[n])
		if c.back = c.back[1:]; len(c.back) == 0 {
			c.back = nil
		}
	}
	for n < len(done) {
		want := min(len(done)-n, pollWCs)
		got := c.h.poll(c.d.ops.pollCQ, c.at, want)
		if got < 0 || got > want {
			return n, c.d.failed("poll", fmt.Errorf("the completion queue is lost: %d", got))
		}
		for i := range got {
			n += c.report(&c.h.wcs[i], &done[n])
		}
		if got < want {
			break
		}
	}
	if n == 0 && c.lost.Load() {
		return 0, c.d.failed("poll", errors.New("the card has given the completion queue up"))
	}
	return n, nil
}

// report turns a completion into ours, and returns how many that makes: none if its
// queue pair is not known any more. The caller holds mu.
func (c *cq) report(w *wc, done *nic.Completion) int {
	q := c.of(w)
	if q == nil {
		return 0
	}
	index := q.freed.Load()
	index += uint64(uint32(w.id) - uint32(index))
	*done = nic.Completion{ID: q.ids[index&q.mask], QPN: q.num, Status: nic.Status(w.status)}
	if w.status != 0 {
		done.Vendor = w.vendorErr
		q.state.CompareAndSwap(uint32(nic.RTS), uint32(nic.Err))
	}
	q.freed.Store(index + 1)
	return 1
}

// of returns the queue pair of a completion.
func (c *cq) of(w *wc) *qp {
	slot := w.id >> 32
	if slot >= uint64(len(c.slots)) {
		return nil
	}
	return c.slots[slot]
}

// Arm implements [nic.CQ].
func (c *cq) Arm() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.d.failed("arm", nic.ErrClosed)
	}
	now := len(c.back) > 0 && c.wake != nil
	var err error
	if !now && c.file != nil {
		if e := code(c.h.notify(c.d.ops.reqNotifyCQ, c.at)); e != 0 {
			err = c.d.failed("arm", e)
		}
	}
	c.mu.Unlock()
	if now {
		c.wake()
	}
	return err
}

// enter gives a queue pair its place.
func (c *cq) enter(q *qp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nic.ErrClosed
	}
	if n := len(c.spare); n > 0 {
		q.slot = c.spare[n-1]
		c.spare = c.spare[:n-1]
		c.slots[q.slot] = q
	} else {
		q.slot = uint32(len(c.slots))
		c.slots = append(c.slots, q)
	}
	c.qps++
	return nil
}

// purge drops what q has left in the queue, and then calls then. The card adds
// nothing of q any more.
func (c *cq) purge(q *qp, then func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var kept []wc
	keep := func(w *wc) {
		if o := c.of(w); o != nil && o != q {
			kept = append(kept, *w)
		}
	}
	for i := range c.back {
		keep(&c.back[i])
	}
	for !c.closed {
		got := c.h.poll(c.d.ops.pollCQ, c.at, pollWCs)
		for i := range max(got, 0) {
			keep(&c.h.wcs[i])
		}
		if got <= 0 {
			break
		}
	}
	c.back = kept
	then()
}

// leave gives a queue pair's place up. The caller holds mu, as in purge.
func (c *cq) leave(q *qp) {
	c.slots[q.slot] = nil
	c.spare = append(c.spare, q.slot)
	c.qps--
}

// Close implements [nic.CQ]. It fails if queue pairs still use the queue.
func (c *cq) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	if c.qps > 0 {
		defer c.mu.Unlock()
		return c.d.failed("close completion queue", fmt.Errorf("%d queue pairs are left", c.qps))
	}
	c.closed = true
	c.mu.Unlock()
	c.d.mu.Lock()
	delete(c.d.cqs, c)
	c.d.mu.Unlock()
	f, err := c.d.p.frames.get()
	if err != nil {
		return err
	}
	defer c.d.p.frames.put(f)
	return c.shut(f)
}

// shut frees what the queue holds. Every event must be acknowledged before the queue
// can be destroyed, so its goroutine ends first.
func (c *cq) shut(f *frame) error {
	lib := c.d.p.lib
	var errs []error
	if c.file != nil {
		errs = append(errs, c.file.Close())
		c.wg.Wait()
	}
	if c.at != 0 {
		errs = append(errs, asError(code(f.call(lib.destroyCQ, c.at))))
	}
	if c.channel != 0 {
		errs = append(errs, asError(code(f.call(lib.destroyCompChannel, c.channel))))
	}
	unmap(c.h)
	if err := errors.Join(errs...); err != nil {
		return c.d.failed("close completion queue", err)
	}
	return nil
}
