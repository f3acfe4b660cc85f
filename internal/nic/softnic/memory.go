package softnic

import (
	"errors"
	"fmt"
	"sync"

	"github.com/railhop/railhop/internal/nic"
)

// pd is a protection domain.
type pd struct {
	d *Device

	mu     sync.Mutex
	mrs    int
	qps    int
	closed bool
}

// Register implements [nic.PD]. It cannot find out whether the memory exists;
// an address that does not fails the operation that uses it.
func (p *pd) Register(addr, length uint64, access nic.Access) (nic.MR, error) {
	const known = nic.LocalWrite | nic.RemoteWrite | nic.RemoteRead | nic.RelaxedOrdering
	fail := func(why string) (nic.MR, error) {
		return nil, fmt.Errorf("softnic: register %d bytes at %#x on %s: %s: %w", length, addr, p.d.cfg.Name, why, nic.ErrMemory)
	}
	switch {
	case addr == 0 || length == 0:
		return fail("address and length must not be 0")
	case addr+length < addr:
		return fail("the range wraps around")
	case length > p.d.cfg.MaxMR:
		return fail(fmt.Sprintf("longer than the device's %d bytes", p.d.cfg.MaxMR))
	case access&^known != 0:
		return fail(fmt.Sprintf("unknown access flags %#x", uint32(access&^known)))
	case access&nic.RemoteWrite != 0 && access&nic.LocalWrite == 0:
		return fail("remote write access needs local write access")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("softnic: register on %s: %w", p.d.cfg.Name, nic.ErrClosed)
	}
	m := &mr{pd: p, addr: addr, length: length, access: access}
	if err := p.d.far.add(m); err != nil {
		return fail(err.Error())
	}
	if err := p.d.keys.add(m); err != nil {
		p.d.far.remove(m)
		return nil, fmt.Errorf("softnic: register on %s: %w", p.d.cfg.Name, err)
	}
	p.mrs++
	return m, nil
}

// NewQP implements [nic.PD].
func (p *pd) NewQP(opts nic.QPOptions) (nic.QP, error) {
	c, ok := opts.CQ.(*cq)
	if !ok || c.d != p.d {
		return nil, fmt.Errorf("softnic: new queue pair on %s: the completion queue is not of this device", p.d.cfg.Name)
	}
	if opts.MaxWR == 0 {
		opts.MaxWR = defaultWR
	}
	if opts.MaxWR < 1 || opts.MaxWR > maxWR {
		return nil, fmt.Errorf("softnic: new queue pair on %s: %d work requests: want 1..%d", p.d.cfg.Name, opts.MaxWR, maxWR)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("softnic: new queue pair on %s: %w", p.d.cfg.Name, nic.ErrClosed)
	}
	q := newQP(p, c, opts.MaxWR)
	if err := p.d.addQP(q); err != nil {
		return nil, err
	}
	p.qps++
	return q, nil
}

// Close implements [nic.PD].
func (p *pd) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.mrs+p.qps > 0 {
		return fmt.Errorf("softnic: close protection domain on %s: %d memory regions and %d queue pairs are left", p.d.cfg.Name, p.mrs, p.qps)
	}
	p.closed = true
	p.d.dropPD(p)
	return nil
}

// mr is a memory region.
type mr struct {
	pd     *pd
	addr   uint64
	length uint64
	access nic.Access
	lkey   uint32
	rkey   uint32
}

func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }

// Close implements [nic.MR]. An operation that is just moving bytes from or to the
// region is interrupted and fails.
func (m *mr) Close() error {
	if !m.pd.d.keys.remove(m) {
		return nil
	}
	for _, h := range m.pd.d.holders() {
		h.revoke(m)
	}
	m.pd.d.far.remove(m)
	m.pd.mu.Lock()
	m.pd.mrs--
	m.pd.mu.Unlock()
	return nil
}

// covers reports whether the run lies within the region.
func (m *mr) covers(addr uint64, length uint32) bool {
	return addr >= m.addr && uint64(length) <= m.length && addr-m.addr <= m.length-uint64(length)
}

// keys finds regions by key. A key is a counter behind a bijection with a
// secret: it looks random and comes again only after four billion others, so a stale one
// finds nothing.
type keys struct {
	secret uint32

	mu      sync.RWMutex
	counter uint32
	local   map[uint32]*mr
	remote  map[uint32]*mr
}

var errNoKeys = errors.New("no free key")

// mix is the finalizer of MurmurHash3, which maps 32 bits one to one.
func mix(x uint32) uint32 {
	x ^= x >> 16
	x *= 0x85ebca6b
	x ^= x >> 13
	x *= 0xc2b2ae35
	return x ^ x>>16
}

func (k *keys) next() (uint32, error) {
	for range 1 << 20 {
		k.counter++
		key := mix(k.counter ^ k.secret)
		if key != 0 && k.local[key] == nil && k.remote[key] == nil {
			return key, nil
		}
	}
	return 0, errNoKeys
}

func (k *keys) add(m *mr) (err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m.lkey, err = k.next(); err != nil {
		return err
	}
	k.local[m.lkey] = m
	if m.rkey, err = k.next(); err != nil {
		delete(k.local, m.lkey)
		return err
	}
	k.remote[m.rkey] = m
	return nil
}

// remove reports whether m was there.
func (k *keys) remove(m *mr) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.local[m.lkey] != m {
		return false
	}
	delete(k.local, m.lkey)
	delete(k.remote, m.rkey)
	return true
}

func (k *keys) all() []*mr {
	k.mu.RLock()
	defer k.mu.RUnlock()
	mrs := make([]*mr, 0, len(k.local))
	for _, m := range k.local {
		mrs = append(mrs, m)
	}
	return mrs
}

// shut makes the domain useless; its device is closed.
func (p *pd) shut() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
}
