package sim

import (
	"fmt"

	"github.com/railhop/railhop/internal/nic"
)

// fabric joins the NICs of all processes.
type fabric struct {
	w     *world
	qps   map[uint32]*qp
	all   []*qp
	mrs   map[uint32]*mr
	keys  uint32
	cqs   int
	pds   int
	opens int
}

// nics implements [nic.Provider] for one process.
type nics struct {
	p    *proc
	devs []*device
}

// Name implements [nic.Provider].
func (n *nics) Name() string { return "sim" }

// Devices implements [nic.Provider].
func (n *nics) Devices() ([]string, error) {
	var names []string
	for _, d := range n.devs {
		names = append(names, d.name)
	}
	return names, nil
}

// Open implements [nic.Provider].
func (n *nics) Open(name string) (nic.Device, error) {
	for _, d := range n.devs {
		if d.name == name {
			w := n.p.w
			w.mu.Lock()
			defer w.mu.Unlock()
			w.fabric.opens++
			d.events = make(chan nic.Event, 16)
			d.closed = false
			return d, nil
		}
	}
	return nil, nic.ErrNoDevice
}

// device is a NIC of a process.
type device struct {
	p      *proc
	name   string
	rail   int
	gid    nic.GID
	down   bool
	events chan nic.Event
	closed bool
	serial int
}

// Attr implements [nic.Device].
func (d *device) Attr() nic.Attr {
	return nic.Attr{Name: d.name, NUMA: -1, MaxMR: 1 << 40, MaxQP: 1 << 16, MaxWR: 256, MaxRDAtom: 16, DeathCloses: d.p.w.plan.deathCloses}
}

// Port implements [nic.Device].
func (d *device) Port() nic.Port {
	d.p.w.mu.Lock()
	defer d.p.w.mu.Unlock()
	p := nic.Port{State: nic.PortActive, GID: d.gid, MTU: 4096}
	if d.down {
		p.State = nic.PortDown
	}
	return p
}

// Events implements [nic.Device].
func (d *device) Events() <-chan nic.Event { return d.events }

// NewPD implements [nic.Device].
func (d *device) NewPD() (nic.PD, error) {
	d.p.w.mu.Lock()
	defer d.p.w.mu.Unlock()
	d.p.w.fabric.pds++
	return &pd{d: d}, nil
}

// NewCQ implements [nic.Device].
func (d *device) NewCQ(depth int, wake func()) (nic.CQ, error) {
	d.p.w.mu.Lock()
	defer d.p.w.mu.Unlock()
	d.p.w.fabric.cqs++
	return &cq{d: d, depth: depth, wake: wake}, nil
}

// Close implements [nic.Device].
func (d *device) Close() error {
	w := d.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !d.closed {
		d.closed = true
		close(d.events)
		w.fabric.opens--
	}
	return nil
}

type pd struct {
	d        *device
	mrs, qps int
}

// Register implements [nic.PD].
func (p *pd) Register(addr, length uint64, access nic.Access) (nic.MR, error) {
	w := p.d.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hits(p.d.p, "register", 8) {
		return nil, fmt.Errorf("sim: register: %w", nic.ErrMemory)
	}
	if _, _, err := p.d.p.space.find(addr, length); err != nil {
		return nil, fmt.Errorf("%w: %w", nic.ErrMemory, err)
	}
	f := &w.fabric
	f.keys++
	m := &mr{pd: p, addr: addr, length: length, access: access, key: f.keys}
	f.mrs[m.key] = m
	p.mrs++
	return m, nil
}

// NewQP implements [nic.PD].
func (p *pd) NewQP(o nic.QPOptions) (nic.QP, error) {
	w := p.d.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hits(p.d.p, "queue pair", 3) {
		return nil, fmt.Errorf("sim: queue pair: %w", nic.ErrMemory)
	}
	p.d.serial++
	q := &qp{pd: p, d: p.d, num: uint32(p.d.p.number*2+p.d.rail+1)<<12 | uint32(p.d.serial), cq: o.CQ.(*cq), max: o.MaxWR}
	q.key = fmt.Sprintf("%s/%s#%d", p.d.p.name, p.d.name, q.num&4095)
	w.fabric.qps[q.num] = q
	w.fabric.all = append(w.fabric.all, q)
	p.qps++
	return q, nil
}

// Close implements [nic.PD].
func (p *pd) Close() error {
	w := p.d.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fabric.pds--
	if !p.d.p.zombie() && (p.mrs > 0 || p.qps > 0) {
		return fmt.Errorf("sim: domain of %s has %d regions and %d queue pairs", p.d.name, p.mrs, p.qps)
	}
	return nil
}

type mr struct {
	pd     *pd
	addr   uint64
	length uint64
	access nic.Access
	key    uint32
	closed bool
}

// LKey implements [nic.MR].
func (m *mr) LKey() uint32 { return m.key }

// RKey implements [nic.MR].
func (m *mr) RKey() uint32 { return m.key }

// Close implements [nic.MR].
func (m *mr) Close() error {
	w := m.pd.d.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !m.closed {
		m.closed = true
		m.pd.mrs--
		delete(w.fabric.mrs, m.key)
	}
	return nil
}

// covers reports whether the region belongs to a device and allows an access.
func (m *mr) covers(d *device, addr, length uint64, access nic.Access) bool {
	return m != nil && m.pd.d == d && m.access&access == access && addr >= m.addr && addr-m.addr+length <= m.length
}

type cq struct {
	d     *device
	depth int
	wake  func()
	ring  []nic.Completion
	armed bool
}

// put adds a completion, and rings if that was asked for.
func (c *cq) put(x nic.Completion) {
	w := c.d.p.w
	w.mu.Lock()
	if len(c.ring) >= c.depth {
		w.mu.Unlock()
		w.violate("completion queue of %s/%s overran", c.d.p, c.d.name)
		return
	}
	c.ring = append(c.ring, x)
	ring := c.armed && c.wake != nil
	c.armed = false
	w.mu.Unlock()
	if ring {
		c.wake()
	}
}

// Poll implements [nic.CQ].
func (c *cq) Poll(done []nic.Completion) (int, error) {
	c.d.p.w.mu.Lock()
	defer c.d.p.w.mu.Unlock()
	n := copy(done, c.ring)
	c.ring = append(c.ring[:0], c.ring[n:]...)
	return n, nil
}

// Arm implements [nic.CQ].
func (c *cq) Arm() error {
	c.d.p.w.mu.Lock()
	defer c.d.p.w.mu.Unlock()
	c.armed = len(c.ring) == 0
	return nil
}

// Close implements [nic.CQ].
func (c *cq) Close() error {
	c.d.p.w.mu.Lock()
	defer c.d.p.w.mu.Unlock()
	c.d.p.w.fabric.cqs--
	return nil
}

// set takes the port down or up, and tells the process.
func (d *device) set(down bool) {
	w := d.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.down == down {
		return
	}
	d.down = down
	e := nic.Event{Type: nic.PortUp}
	if down {
		e.Type = nic.PortLost
	}
	d.tell(e)
}

// tell sends an event. The world's mutex is held.
func (d *device) tell(e nic.Event) {
	if d.events == nil || d.p.dead || d.closed {
		return
	}
	select {
	case d.events <- e:
	default:
	}
}

// fatal breaks a queue pair, and says so.
func (f *fabric) fatal() {
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(f.all) == 0 {
		return
	}
	q := f.all[w.rng.IntN(len(f.all))]
	if q.state == nic.RTS {
		w.fault("queue pair broken", q.key)
		q.fail()
		q.d.tell(nic.Event{Type: nic.QPFatal, QPN: q.num})
	}
}

// cut cuts a queue pair at random.
func (f *fabric) cut() {
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(f.all) == 0 {
		return
	}
	q := f.all[w.rng.IntN(len(f.all))]
	if q.state == nic.RTS {
		w.fault("queue pair cut", q.key)
		q.cut = true
	}
}
