package capi

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/xfer"
)

// Register makes memory known, all regions or none.
func (e *Engine) Register(regions []railhop.Region) error {
	err := e.register(regions)
	if err != nil {
		return e.fail("register memory", err, "regions", len(regions))
	}
	return nil
}

func (e *Engine) register(regions []railhop.Region) error {
	for i, r := range regions {
		if r.Length == 0 || r.Addr+r.Length < r.Addr {
			return fmt.Errorf("capi: region %d of %d: %d bytes at %#x: want a length that fits: %w", i, len(regions), r.Length, r.Addr, xfer.ErrInvalidArgument)
		}
	}
	e.mu.Lock()
	engine := e.engine
	if engine == nil && !e.closed {
		defer e.mu.Unlock()
		return e.registerEarly(regions)
	}
	e.mu.Unlock()
	if engine == nil {
		return railhop.ErrClosed
	}
	return engine.RegisterBatch(regions)
}

// registerEarly keeps regions for the transport that is not chosen yet.
func (e *Engine) registerEarly(regions []railhop.Region) error {
	all := append([]railhop.Region(nil), e.early...)
	for _, r := range regions {
		for _, known := range all {
			if r.Addr < known.Addr+known.Length && known.Addr < r.Addr+r.Length {
				return fmt.Errorf("capi: %d bytes at %#x overlap %d at %#x: %w", r.Length, r.Addr, known.Length, known.Addr, xfer.ErrAddressOverlapped)
			}
		}
		all = append(all, r)
	}
	e.early = all
	return nil
}

// Unregister makes memory unknown again, by the addresses that Register was given.
func (e *Engine) Unregister(addrs []uint64) error {
	e.mu.Lock()
	engine := e.engine
	var err error
	switch {
	case engine != nil:
	case e.closed:
		err = railhop.ErrClosed
	default:
		err = e.unregisterEarly(addrs)
	}
	e.mu.Unlock()
	if engine != nil {
		err = engine.UnregisterBatch(addrs)
	}
	if err != nil {
		return e.fail("unregister memory", err, "regions", len(addrs))
	}
	return nil
}

func (e *Engine) unregisterEarly(addrs []uint64) (err error) {
	for _, a := range addrs {
		found := false
		for i, r := range e.early {
			if r.Addr == a {
				e.early = append(e.early[:i:i], e.early[i+1:]...)
				found = true
				break
			}
		}
		if !found {
			err = errors.Join(err, fmt.Errorf("capi: no region starts at %#x: %w", a, xfer.ErrAddressNotFound))
		}
	}
	return err
}

const (
	minBlock = 8 << 10  // bytes
	slabSize = 64 << 20 // bytes; a power of two
)

var (
	minOrder  = bits.TrailingZeros(minBlock)
	slabOrder = bits.TrailingZeros(slabSize)
)

// managed are buffers that the engine allocates and registers: buddies, cut from slabs
// that are mapped when needed. What is larger than a slab gets a mapping of its own.
type managed struct {
	mu    sync.Mutex
	maps  map[uint64][]byte // by address
	slabs []uint64          // addresses
	spare [32][]uint64      // free blocks, by order
	live  map[uint64]int    // order of the blocks in use; -1 is a mapping of its own
}

// Allocate returns the address of a buffer that peers may read and write.
func (e *Engine) Allocate(length uint64) (uint64, error) {
	addr, err := e.allocate(length)
	if err != nil {
		return 0, e.fail("allocate managed buffer", err, "length", length)
	}
	return addr, nil
}

func (e *Engine) allocate(length uint64) (uint64, error) {
	if length == 0 || length > 1<<47 {
		return 0, fmt.Errorf("capi: %d bytes: want 1 to %d: %w", length, uint64(1)<<47, xfer.ErrInvalidArgument)
	}
	engine, err := e.use()
	if err != nil {
		return 0, err
	}
	m := &e.managed
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.live == nil {
		m.live, m.maps = make(map[uint64]int), make(map[uint64][]byte)
	}
	if length > slabSize {
		addr, err := m.grow(engine, length)
		if err == nil {
			m.live[addr] = -1
		}
		return addr, err
	}
	order := max(minOrder, bits.Len64(length-1))
	at := order
	for at <= slabOrder && len(m.spare[at]) == 0 {
		at++
	}
	if at > slabOrder {
		slab, err := m.grow(engine, slabSize)
		if err != nil {
			return 0, err
		}
		m.slabs = append(m.slabs, slab)
		at = slabOrder
		m.spare[at] = append(m.spare[at], slab)
	}
	n := len(m.spare[at]) - 1
	addr := m.spare[at][n]
	m.spare[at] = m.spare[at][:n]
	for at > order {
		at--
		m.spare[at] = append(m.spare[at], addr+1<<at)
	}
	m.live[addr] = order
	return addr, nil
}

// grow maps and registers memory.
func (m *managed) grow(engine *railhop.Engine, length uint64) (uint64, error) {
	b, err := unix.Mmap(-1, 0, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return 0, fmt.Errorf("capi: map %d bytes: %w: %w", length, xfer.ErrMemory, err)
	}
	addr, err := engine.RegisterBytes(b)
	if err != nil {
		return 0, errors.Join(err, unix.Munmap(b))
	}
	m.maps[addr] = b
	return addr, nil
}

// Free gives a managed buffer back. What is none, or none any more, is left alone.
func (e *Engine) Free(addr uint64) {
	m := &e.managed
	m.mu.Lock()
	defer m.mu.Unlock()
	order, ok := m.live[addr]
	if !ok {
		e.log.Warn("free managed buffer: there is none at this address", "addr", addr)
		return
	}
	delete(m.live, addr)
	if order < 0 {
		engine, err := e.use()
		if err == nil {
			err = engine.Unregister(addr)
		}
		if err == nil {
			err = unix.Munmap(m.maps[addr])
			delete(m.maps, addr)
		}
		if err != nil {
			e.log.Warn("managed buffer not freed", "addr", addr, "err", err)
		}
		return
	}
	m.join(addr, order)
}

// join makes a block free, together with its buddies as far as they are free.
func (m *managed) join(addr uint64, order int) {
	var slab uint64
	for _, s := range m.slabs {
		if addr >= s && addr < s+slabSize {
			slab = s
		}
	}
	for ; order < slabOrder; order++ {
		buddy := slab + ((addr - slab) ^ (1 << order))
		i := indexOf(m.spare[order], buddy)
		if i < 0 {
			break
		}
		last := len(m.spare[order]) - 1
		m.spare[order][i] = m.spare[order][last]
		m.spare[order] = m.spare[order][:last]
		addr = min(addr, buddy)
	}
	m.spare[order] = append(m.spare[order], addr)
}

func indexOf(list []uint64, v uint64) int {
	for i, x := range list {
		if x == v {
			return i
		}
	}
	return -1
}

// free unmaps everything. The engine is closed.
func (m *managed) free() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	for _, b := range m.maps {
		err = errors.Join(err, unix.Munmap(b))
	}
	m.maps, m.slabs, m.live = nil, nil, nil
	m.spare = [32][]uint64{}
	return err
}
