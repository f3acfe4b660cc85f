package softnic

import (
	"fmt"
	"sync"

	"github.com/railhop/railhop/internal/nic"
)

// cq is a completion queue. It grows when need be, so it loses nothing; the
// queue pairs on it bound it, since a request's place is free again only when
// its completion was polled.
type cq struct {
	d    *Device
	wake func()

	mu     sync.Mutex
	ring   []entry // length is a power of two
	head   uint64
	tail   uint64
	armed  bool
	closed bool
	qps    int
}

type entry struct {
	done  nic.Completion
	qp    *qp
	index uint64 // of the request in its queue pair
}

func newCQ(d *Device, depth int, wake func()) *cq {
	size := 16
	for size < depth {
		size *= 2
	}
	return &cq{d: d, wake: wake, ring: make([]entry, size)}
}

// add appends under mu; the caller calls wake after unlocking if add says so.
func (c *cq) add(e entry) (wake bool) {
	if c.tail-c.head == uint64(len(c.ring)) {
		bigger := make([]entry, 2*len(c.ring))
		for i := c.head; i != c.tail; i++ {
			bigger[i&uint64(len(bigger)-1)] = c.ring[i&uint64(len(c.ring)-1)]
		}
		c.ring = bigger
	}
	c.ring[c.tail&uint64(len(c.ring)-1)] = e
	c.tail++
	wake = c.armed && c.wake != nil
	c.armed = false
	return wake
}

// Poll implements [nic.CQ].
func (c *cq) Poll(done []nic.Completion) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, fmt.Errorf("softnic: poll on %s: %w", c.d.cfg.Name, nic.ErrClosed)
	}
	n := 0
	for n < len(done) && c.head != c.tail {
		e := &c.ring[c.head&uint64(len(c.ring)-1)]
		done[n] = e.done
		e.qp.freed.Store(e.index + 1)
		e.qp = nil
		c.head++
		n++
	}
	return n, nil
}

// Arm implements [nic.CQ].
func (c *cq) Arm() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return fmt.Errorf("softnic: arm on %s: %w", c.d.cfg.Name, nic.ErrClosed)
	}
	now := c.head != c.tail && c.wake != nil
	c.armed = !now
	c.mu.Unlock()
	if now {
		c.wake()
	}
	return nil
}

// purge drops what q has left in the queue.
func (c *cq) purge(q *qp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mask := uint64(len(c.ring) - 1)
	to := c.head
	for i := c.head; i != c.tail; i++ {
		if e := c.ring[i&mask]; e.qp != q {
			c.ring[to&mask] = e
			to++
		}
	}
	for i := to; i != c.tail; i++ {
		c.ring[i&mask] = entry{}
	}
	c.tail = to
}

// use counts a queue pair more or less. It fails if the queue is closed.
func (c *cq) use(delta int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed && delta > 0 {
		return nic.ErrClosed
	}
	c.qps += delta
	return nil
}

// Close implements [nic.CQ]. It fails if queue pairs still use the queue.
func (c *cq) Close() error {
	c.mu.Lock()
	left, closed := c.qps, c.closed
	c.closed = closed || left == 0
	c.mu.Unlock()
	if closed {
		return nil
	}
	if left > 0 {
		return fmt.Errorf("softnic: close completion queue on %s: %d queue pairs are left", c.d.cfg.Name, left)
	}
	c.d.dropCQ(c)
	return nil
}

// shut makes the queue useless; its device is closed.
func (c *cq) shut() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
}
