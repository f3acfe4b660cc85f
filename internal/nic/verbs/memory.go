package verbs

import (
	"errors"
	"fmt"
	"sync"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/nic"
)

// pd is a protection domain.
type pd struct {
	d  *Device
	at uintptr

	mu     sync.Mutex
	mrs    int
	qps    int
	closed bool
}

// use counts a region or queue pair more. It fails if the domain is closed.
func (p *pd) use(n *int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nic.ErrClosed
	}
	*n++
	return nil
}

func (p *pd) drop(n *int) {
	p.mu.Lock()
	*n--
	p.mu.Unlock()
}

// Close implements [nic.PD].
func (p *pd) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	if p.mrs+p.qps > 0 {
		defer p.mu.Unlock()
		return p.d.failed("close protection domain", fmt.Errorf("%d memory regions and %d queue pairs are left", p.mrs, p.qps))
	}
	p.closed = true
	p.mu.Unlock()
	p.d.mu.Lock()
	delete(p.d.pds, p)
	p.d.mu.Unlock()
	f, err := p.d.p.frames.get()
	if err != nil {
		return err
	}
	defer p.d.p.frames.put(f)
	if e := code(f.call(p.d.p.lib.deallocPD, p.at)); e != 0 {
		return p.d.failed("close protection domain", e)
	}
	return nil
}

// mr is a memory region.
type mr struct {
	pd         *pd
	at         uintptr
	lkey, rkey uint32

	mu     sync.Mutex
	closed bool
}

func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }

// Register implements [nic.PD].
func (p *pd) Register(addr, length uint64, access nic.Access) (nic.MR, error) {
	const known = nic.LocalWrite | nic.RemoteWrite | nic.RemoteRead | nic.RelaxedOrdering
	d := p.d
	what := fmt.Sprintf("register %d bytes at %#x", length, addr)
	fail := func(why string, cause error) (nic.MR, error) {
		if cause == nil {
			return nil, fmt.Errorf("verbs: %s on %s: %s: %w", what, d.name, why, nic.ErrMemory)
		}
		return nil, fmt.Errorf("verbs: %s on %s: %s: %w: %w", what, d.name, why, nic.ErrMemory, cause)
	}
	switch {
	case addr == 0 || length == 0:
		return fail("address and length must not be 0", nil)
	case addr+length < addr:
		return fail("the range wraps around", nil)
	case length > d.attr.MaxMR:
		return fail(fmt.Sprintf("longer than the device's %d bytes", d.attr.MaxMR), nil)
	case access&^known != 0:
		return fail(fmt.Sprintf("unknown access flags %#x", uint32(access&^known)), nil)
	case access&nic.RemoteWrite != 0 && access&nic.LocalWrite == 0:
		return fail("remote write access needs local write access", nil)
	}
	lib := d.p.lib
	if access&nic.RelaxedOrdering != 0 && !lib.regMRIova2.Found() {
		if d.p.opts.NeedRelaxed {
			return fail("relaxed ordering was demanded (MC_IB_PCI_RELAXED_ORDERING=2) and this libibverbs does not have it", nil)
		}
		access &^= nic.RelaxedOrdering
	}
	f, done, err := d.begin(what)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := p.use(&p.mrs); err != nil {
		return nil, d.failed(what, err)
	}
	m := &mr{pd: p}
	if err := m.register(f, addr, length, access); err != nil {
		p.drop(&p.mrs)
		var c *memoryError
		if errors.As(err, &c) {
			return fail(c.why, c.err)
		}
		return fail(err.Error(), nil)
	}
	d.mu.Lock()
	d.mrs[m] = struct{}{}
	d.mu.Unlock()
	return m, nil
}

// register makes the region: GPU memory as the options say, and what else there is by
// its address.
func (m *mr) register(f *frame, addr, length uint64, access nic.Access) error {
	d := m.pd.d
	lib := d.p.lib
	c := cause{length: length, way: d.p.opts.GPUMemory}
	g := d.p.opts.GPU
	if g != nil {
		c.kind = g.Classify(addr, length).Kind
	}
	device := c.kind == gpu.DeviceMemory
	if device && c.way != ByPeermem {
		if c.dmabuf = m.registerDMABuf(f, addr, length, access); c.dmabuf == nil {
			d.told(ByDMABuf)
			return nil
		}
		if c.way == ByDMABuf {
			return d.p.explain(c)
		}
	}
	if lib.regMRIova2.Found() {
		m.at, c.errno = lib.pointer(f, lib.regMRIova2, m.pd.at, uintptr(addr), uintptr(length), uintptr(addr), uintptr(access))
	} else {
		m.at, c.errno = lib.pointer(f, lib.regMR, m.pd.at, uintptr(addr), uintptr(length), uintptr(access))
	}
	if m.at == 0 {
		return d.p.explain(c)
	}
	m.keys()
	if device {
		d.told(ByPeermem)
	}
	return nil
}

func (m *mr) keys() { m.lkey, m.rkey = at[uint32](m.at, mrLKey), at[uint32](m.at, mrRKey) }

// Close implements [nic.MR].
func (m *mr) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	d := m.pd.d
	f, err := d.p.frames.get()
	if err != nil {
		return err
	}
	defer d.p.frames.put(f)
	if e := code(f.call(d.p.lib.deregMR, m.at)); e != 0 {
		return d.failed("unregister memory", e)
	}
	m.closed = true
	d.mu.Lock()
	delete(d.mrs, m)
	d.mu.Unlock()
	m.pd.drop(&m.pd.mrs)
	return nil
}
