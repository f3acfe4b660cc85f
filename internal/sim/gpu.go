package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/gpu"
)

// bell is a doorbell of a lane, which streams ring by its address.
type bell struct {
	word *atomic.Uint64
	e    *entry
}

// gpus implements [gpu.Provider] for one process, with one GPU of its own.
type gpus struct {
	p       *proc
	infos   []gpu.Info
	own     string // bus id; "" for none
	streams []*stream
	callers map[uint64]*stream // the application's
	lost    bool

	allocs, imports, events, open int
}

// Name implements [gpu.Provider].
func (g *gpus) Name() string { return "sim" }

// Devices implements [gpu.Provider].
func (g *gpus) Devices() ([]gpu.Info, error) { return g.infos, nil }

// Current implements [gpu.Provider].
func (g *gpus) Current() (string, bool) { return g.own, g.own != "" }

// Classify implements [gpu.Provider].
func (g *gpus) Classify(addr, length uint64) gpu.Range {
	w := g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	r, _, err := g.p.space.find(addr, length)
	if err != nil {
		return gpu.Range{Kind: gpu.HostMemory}
	}
	return gpu.Range{Kind: r.kind, BusID: r.bus}
}

// Open implements [gpu.Provider].
func (g *gpus) Open(bus string) (gpu.Device, error) {
	for _, i := range g.infos {
		if i.BusID == bus {
			g.open++
			return &card{g, i}, nil
		}
	}
	return nil, gpu.ErrNoDevice
}

// drop ends all that streams have still to do.
func (g *gpus) drop() {
	for _, s := range g.streams {
		s.ops, s.dropped = nil, true
	}
}

// card implements [gpu.Device].
type card struct {
	g    *gpus
	info gpu.Info
}

// Info implements [gpu.Device].
func (c *card) Info() gpu.Info { return c.info }

func (c *card) fails(what string) error {
	g := c.g
	switch {
	case g.lost:
		return gpu.ErrFatal
	case g.p.w.hits(g.p, "GPU: "+what, 4):
		return fmt.Errorf("sim: %s: %w", what, gpu.ErrMemory)
	}
	return nil
}

// Alloc implements [gpu.Device].
func (c *card) Alloc(size uint64) (uint64, error) {
	w := c.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := c.fails("alloc"); err != nil {
		return 0, err
	}
	mem := w.pool.arena(int(size))
	w.used.arenas = append(w.used.arenas, mem)
	r := c.g.p.space.add(&region{proc: c.g.p, mem: mem, kind: gpu.DeviceMemory, bus: c.info.BusID, name: "arena"})
	c.g.allocs++
	return r.addr, nil
}

// Free implements [gpu.Device].
func (c *card) Free(addr uint64) error {
	w := c.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.g.p.space.remove(addr) == nil {
		return gpu.ErrMemory
	}
	c.g.allocs--
	return nil
}

// Export implements [gpu.Device].
func (c *card) Export(addr uint64) (h gpu.Handle, err error) {
	w := c.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := c.fails("export"); err != nil {
		return h, err
	}
	binary.LittleEndian.PutUint64(h[:], addr)
	binary.LittleEndian.PutUint64(h[8:], uint64(c.g.p.number))
	return h, nil
}

// Import implements [gpu.Device].
func (c *card) Import(h gpu.Handle, size uint64) (addr uint64, err error) {
	p := c.g.p
	w := p.w
	err = w.call(p, 20*time.Microsecond, 3*time.Millisecond, "import "+p.name, "import", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if err := c.fails("import"); err != nil {
			return fmt.Errorf("%w: %w", gpu.ErrHandle, err)
		}
		n := binary.LittleEndian.Uint64(h[8:])
		if n >= uint64(len(w.procs)) || w.procs[n].gone {
			return gpu.ErrHandle
		}
		r, _, err := w.procs[n].space.find(binary.LittleEndian.Uint64(h[:]), size)
		if err != nil {
			return gpu.ErrHandle
		}
		addr = p.space.add(&region{proc: p, mem: r.mem, kind: gpu.DeviceMemory, bus: r.bus, name: "import of " + r.String()}).addr
		c.g.imports++
		return nil
	})
	return addr, err
}

// CloseImport implements [gpu.Device].
func (c *card) CloseImport(addr uint64) error {
	w := c.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range c.g.streams {
		if !s.closed && len(s.ops) > 0 && s.uses(addr) && !c.g.p.zombie() {
			w.violateLocked("%s closed an import that a stream still uses", c.g.p)
		}
	}
	if c.g.p.space.remove(addr) == nil {
		return gpu.ErrMemory
	}
	c.g.imports--
	return nil
}

// PeerAtomics implements [gpu.Device].
func (c *card) PeerAtomics(bus string) bool { return c.g.p.w.plan.nvlink || bus == c.info.BusID }

// MapHost implements [gpu.Device].
func (c *card) MapHost([]byte) (uint64, func() error, error) {
	w := c.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := c.fails("map"); err != nil {
		return 0, nil, err
	}
	c.g.open++
	return 0, func() error { c.g.open--; return nil }, nil
}

// NewStream implements [gpu.Device].
func (c *card) NewStream() (gpu.Stream, error) {
	w := c.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := c.fails("stream"); err != nil {
		return nil, err
	}
	return c.g.newStream(false), nil
}

// NewEvent implements [gpu.Device].
func (c *card) NewEvent() (gpu.Event, error) {
	w := c.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := c.fails("event"); err != nil {
		return nil, err
	}
	c.g.events++
	return &moment{g: c.g, done: true}, nil
}

// RecordCaller implements [gpu.Device].
func (c *card) RecordCaller(id uint64, e gpu.Event) error {
	w := c.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := c.fails("record"); err != nil {
		return err
	}
	return c.g.caller(id).record(e.(*moment))
}

// SyncCaller implements [gpu.Device].
func (c *card) SyncCaller(id uint64) error {
	w := c.g.p.w
	w.mu.Lock()
	s := c.g.caller(id)
	w.mu.Unlock()
	for {
		w.mu.Lock()
		idle, lost := len(s.ops) == 0 || c.g.p.zombie(), c.g.lost
		w.mu.Unlock()
		if lost {
			return gpu.ErrFatal
		}
		if idle {
			return nil
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// CopyIn implements [gpu.Device].
func (c *card) CopyIn(uint64, []byte) error { return errors.ErrUnsupported }

// CopyOut implements [gpu.Device].
func (c *card) CopyOut([]byte, uint64) error { return errors.ErrUnsupported }

// Close implements [gpu.Device].
func (c *card) Close() error { c.g.open--; return nil }
