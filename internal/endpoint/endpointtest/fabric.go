// Package endpointtest has network cards that exist in memory alone, for tests of
// queue pair handling. They move no bytes: they keep states, match queue pairs,
// and complete, hold back or fail work as a test wants.
//
// Package softnic is the card that moves bytes. All methods may be called by any
// goroutine.
package endpointtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/railhop/railhop/internal/nic"
)

// Fabric joins the devices of one test.
type Fabric struct {
	// Delay, if set, runs on every change of a queue pair's state.
	Delay func()
	// Fault, if set, decides how a request ends. It is called once for each, in the
	// order of posting, with the device's name, unless the queue pair is in ERR.
	Fault func(device string, wr nic.WR) nic.Status

	mu      sync.Mutex
	devices int
	qpn     uint32
	qps     map[uint32]*QP
	held    bool
	stuck   bool
}

// NewFabric returns a fabric without devices.
func NewFabric() *Fabric { return &Fabric{qps: make(map[uint32]*QP)} }

// Hold keeps work from completing until Release.
func (f *Fabric) Hold() { f.set(&f.held, true) }

// Stick makes queue pairs fail to close, as if no peer could be reached, and work
// in ERR stay unreported, until Release.
func (f *Fabric) Stick() { f.set(&f.stuck, true) }

// Release undoes Hold and Stick: what was held back completes now.
func (f *Fabric) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held, f.stuck = false, false
	for _, q := range f.qps {
		q.progress()
	}
}

func (f *Fabric) set(v *bool, to bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*v = to
}

// QPs returns how many queue pairs exist.
func (f *Fabric) QPs() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.qps)
}

// InState returns how many queue pairs are in a state.
func (f *Fabric) InState(s nic.QPState) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, q := range f.qps {
		if q.state == s {
			n++
		}
	}
	return n
}

// Find returns a queue pair by its number, or nil.
func (f *Fabric) Find(qpn uint32) *QP {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.qps[qpn]
}

// Device is a card.
type Device struct {
	fabric *Fabric
	attr   nic.Attr
	port   nic.Port
	events chan nic.Event
	once   sync.Once
	lost   atomic.Bool
}

// NewDevice returns a card that takes maxWR requests a queue pair.
func (f *Fabric) NewDevice(name string, maxWR int) *Device {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices++
	port := nic.Port{State: nic.PortActive, LID: uint16(f.devices), MTU: 4096}
	port.GID[15] = byte(f.devices)
	port.GID[14] = byte(f.devices >> 8)
	return &Device{
		fabric: f,
		attr:   nic.Attr{Name: name, NUMA: -1, MaxMR: 1 << 40, MaxQP: 1 << 20, MaxWR: maxWR},
		port:   port,
		events: make(chan nic.Event, 16),
	}
}

// Attr implements [nic.Device].
func (d *Device) Attr() nic.Attr { return d.attr }

// Port implements [nic.Device].
func (d *Device) Port() nic.Port {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	return d.port
}

// SetPort changes the port's state and sends the event.
func (d *Device) SetPort(s nic.PortState) {
	d.fabric.mu.Lock()
	d.port.State = s
	d.fabric.mu.Unlock()
	if s == nic.PortActive {
		d.events <- nic.Event{Type: nic.PortUp}
	} else {
		d.events <- nic.Event{Type: nic.PortLost}
	}
}

// LoseCQs makes the device's completion queues fail from now on.
func (d *Device) LoseCQs() { d.lost.Store(true) }

// Events implements [nic.Device].
func (d *Device) Events() <-chan nic.Event { return d.events }

// NewPD implements [nic.Device].
func (d *Device) NewPD() (nic.PD, error) { return &pd{d}, nil }

// NewCQ implements [nic.Device].
func (d *Device) NewCQ(depth int, wake func()) (nic.CQ, error) {
	return &cq{device: d, ring: make([]nic.Completion, depth), wake: wake}, nil
}

// Close implements [nic.Device].
func (d *Device) Close() error {
	d.once.Do(func() { close(d.events) })
	return nil
}

type pd struct{ d *Device }

func (p *pd) Register(addr, length uint64, access nic.Access) (nic.MR, error) {
	return nil, fmt.Errorf("endpointtest: %w", nic.ErrMemory)
}

func (p *pd) NewQP(opts nic.QPOptions) (nic.QP, error) {
	f := p.d.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	f.qpn++
	q := &QP{
		device: p.d, num: f.qpn, cq: opts.CQ.(*cq),
		work: make([]nic.WR, 0, opts.MaxWR),
	}
	f.qps[q.num] = q
	return q, nil
}

func (p *pd) Close() error { return nil }

// QP is a queue pair.
type QP struct {
	device *Device
	num    uint32
	cq     *cq

	// Guarded by the fabric's mutex.
	state  nic.QPState
	remote uint32
	gid    nic.GID
	work   []nic.WR
	closed bool
}

// Num implements [nic.QP].
func (q *QP) Num() uint32 { return q.num }

// State implements [nic.QP].
func (q *QP) State() nic.QPState {
	q.device.fabric.mu.Lock()
	defer q.device.fabric.mu.Unlock()
	return q.state
}

// Modify implements [nic.QP].
func (q *QP) Modify(attr nic.QPAttr) error {
	f := q.device.fabric
	if f.Delay != nil {
		f.Delay()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.closed {
		return nic.ErrClosed
	}
	up := attr.State == q.state+1 && attr.State <= nic.RTS
	if !up && attr.State != nic.Reset && attr.State != nic.Err {
		return fmt.Errorf("endpointtest: %v to %v: %w", q.state, attr.State, nic.ErrState)
	}
	if attr.State == nic.RTR {
		q.remote, q.gid = attr.RemoteQPN, attr.RemoteGID
	}
	q.state = attr.State
	if q.state == nic.Reset {
		q.work = q.work[:0]
	}
	q.progress()
	return nil
}

// Post implements [nic.QP].
func (q *QP) Post(wrs []nic.WR) (int, error) {
	f := q.device.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.closed {
		return 0, nic.ErrClosed
	}
	if q.state != nic.RTS && q.state != nic.Err {
		return 0, nic.ErrState
	}
	n := min(len(wrs), cap(q.work)-len(q.work))
	q.work = append(q.work, wrs[:n]...)
	q.progress()
	return n, nil
}

// Close implements [nic.QP].
func (q *QP) Close(ctx context.Context) error {
	f := q.device.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	q.state = nic.Err
	if f.stuck {
		return errors.New("endpointtest: peer cannot be reached")
	}
	q.closed = true
	q.work = q.work[:0]
	delete(f.qps, q.num)
	return nil
}

// progress ends what can be ended. The fabric's mutex is held.
func (q *QP) progress() {
	f := q.device.fabric
	if f.stuck || len(q.work) == 0 {
		return
	}
	for _, wr := range q.work {
		status := nic.StatusFlushed
		if q.state != nic.Err {
			if f.held {
				return
			}
			status = q.status(wr)
			if status != nic.StatusSuccess {
				q.state = nic.Err
			}
		}
		if wr.Signaled || status != nic.StatusSuccess {
			q.cq.put(nic.Completion{ID: wr.ID, QPN: q.num, Status: status})
		}
	}
	q.work = q.work[:0]
}

func (q *QP) status(wr nic.WR) nic.Status {
	f := q.device.fabric
	if f.Fault != nil {
		if s := f.Fault(q.device.attr.Name, wr); s != nic.StatusSuccess {
			return s
		}
	}
	peer := f.qps[q.remote]
	if peer == nil || peer.device.port.GID != q.gid || peer.remote != q.num ||
		(peer.state != nic.RTR && peer.state != nic.RTS) {
		return nic.StatusRetryExceeded
	}
	return nic.StatusSuccess
}

// cq is a ring that drops nothing: a test that overruns it panics.
type cq struct {
	device *Device

	mu    sync.Mutex
	ring  []nic.Completion
	head  int
	n     int
	armed bool
	wake  func()
}

func (c *cq) put(x nic.Completion) {
	c.mu.Lock()
	if c.n == len(c.ring) {
		c.mu.Unlock()
		panic("endpointtest: completion queue overrun")
	}
	c.ring[(c.head+c.n)%len(c.ring)] = x
	c.n++
	ring := c.armed && c.wake != nil
	c.armed = false
	c.mu.Unlock()
	if ring {
		c.wake()
	}
}

func (c *cq) Poll(done []nic.Completion) (int, error) {
	if c.device.lost.Load() {
		return 0, errors.New("endpointtest: completion queue lost")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(done), c.n)
	for i := range n {
		done[i] = c.ring[(c.head+i)%len(c.ring)]
	}
	c.head = (c.head + n) % len(c.ring)
	c.n -= n
	return n, nil
}

func (c *cq) Arm() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = c.n == 0
	return nil
}

func (c *cq) Close() error { return nil }
