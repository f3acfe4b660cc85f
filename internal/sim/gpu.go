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
	case g.p.w.hits("GPU: "+what, 4):
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

func (g *gpus) newStream(caller bool) *stream {
	s := &stream{g: g, caller: caller, key: fmt.Sprintf("%s/stream%d", g.p.name, len(g.streams))}
	g.streams = append(g.streams, s)
	return s
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

// caller returns a stream of the application's.
func (g *gpus) caller(id uint64) *stream {
	if g.callers[id] == nil {
		g.callers[id] = g.newStream(true)
	}
	return g.callers[id]
}

// CopyIn implements [gpu.Device].
func (c *card) CopyIn(uint64, []byte) error { return errors.ErrUnsupported }

// CopyOut implements [gpu.Device].
func (c *card) CopyOut([]byte, uint64) error { return errors.ErrUnsupported }

// Close implements [gpu.Device].
func (c *card) Close() error { c.g.open--; return nil }

// moment implements [gpu.Event].
type moment struct {
	g       *gpus
	records int // the last one counts
	done    bool
	past    map[int]bool // records that were reached: a wait is for the one that was last when it began
	err     error
	waiters []*stream
	closed  bool
}

// Done implements [gpu.Event].
func (e *moment) Done() (bool, error) {
	w := e.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.g.lost && !e.done {
		return true, gpu.ErrFatal
	}
	if w.opts.Bug == EarlyEvent {
		return true, nil
	}
	return e.done || e.g.p.zombie(), e.err
}

// Close implements [gpu.Event].
func (e *moment) Close() error {
	w := e.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !e.closed {
		e.closed = true
		e.g.events--
	}
	return nil
}

type opKind uint8

const (
	opWait opKind = iota
	opCopy
	opWrite
	opRecord
	opKernel
)

type streamOp struct {
	kind   opKind
	e      *moment
	record int
	copies []gpu.Copy
	next   int // of copies
	addr   uint64
	value  uint64
	kernel func()
}

// stream implements [gpu.Stream].
type stream struct {
	g       *gpus
	key     string
	caller  bool
	ops     []streamOp
	running bool
	err     error
	closed  bool
	dropped bool
}

func (s *stream) uses(addr uint64) bool {
	r, _, err := s.g.p.space.find(addr, 1)
	if err != nil {
		return false
	}
	for _, op := range s.ops {
		for _, c := range op.copies[min(op.next, len(op.copies)):] {
			if c.Dst >= r.addr && c.Dst < r.addr+uint64(len(r.mem)) {
				return true
			}
		}
	}
	return false
}

// push adds an operation. The world's mutex is held.
func (s *stream) push(op streamOp) error {
	switch {
	case s.g.lost:
		return gpu.ErrFatal
	case s.err != nil:
		return s.err
	case s.dropped:
		return nil
	}
	s.ops = append(s.ops, op)
	s.kick()
	return nil
}

// kick lets the first operation run, in a while. The world's mutex is held.
func (s *stream) kick() {
	if s.running || len(s.ops) == 0 || s.dropped {
		return
	}
	w := s.g.p.w
	op := &s.ops[0]
	hi := 3 * time.Microsecond
	switch op.kind {
	case opWait:
		if !op.e.reached(op.record) {
			op.e.waiters = append(op.e.waiters, s)
			return
		}
	case opCopy:
		hi = w.plan.copyDelay
	case opKernel:
		hi = w.plan.kernelDelay
	}
	s.running = true
	w.incoming = append(w.incoming, &event{hi: hi, key: s.key, what: "gpu", fire: s.run})
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// run runs the first operation, or a part of it.
func (s *stream) run() {
	w := s.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	s.running = false
	if len(s.ops) == 0 || s.dropped {
		return
	}
	op := &s.ops[0]
	switch op.kind {
	case opCopy:
		if !w.quiet && w.chance(w.plan.copyErrors, 2000) {
			w.fault("copy failed", s.key)
			s.fail(fmt.Errorf("sim: copy: %w", gpu.ErrMemory))
			return
		}
		n := len(op.copies)
		if op.next < n && w.chance(1, 3) {
			n = op.next + 1 + w.rng.IntN(n-op.next)
		}
		for ; op.next < n; op.next++ {
			s.copy(op.copies[op.next])
		}
		if op.next < len(op.copies) {
			s.kick()
			return
		}
	case opWrite:
		if b, ok := w.bells[op.addr]; ok && !b.e.cut {
			b.word.Store(op.value)
		}
	case opRecord:
		s.fire(op.e, op.record, nil)
	case opKernel:
		op.kernel()
	}
	s.ops = s.ops[1:]
	s.kick()
}

// reached reports whether a record was. The last one has a word of its own.
func (e *moment) reached(record int) bool {
	return record == 0 || e.past[record] || record == e.records && e.done
}

func (s *stream) fire(e *moment, record int, err error) {
	if e.past == nil {
		e.past = make(map[int]bool)
	}
	e.past[record] = true
	if e.records == record {
		e.done, e.err = true, err
	}
	waiters := e.waiters
	e.waiters = nil
	for _, o := range waiters {
		o.kick()
	}
}

func (s *stream) fail(err error) {
	s.err = err
	ops := s.ops
	s.ops = nil
	for _, op := range ops {
		if op.kind == opRecord {
			s.fire(op.e, op.record, err)
		}
	}
}

func (s *stream) copy(c gpu.Copy) {
	w := s.g.p.w
	from, fo, err := s.g.p.space.find(c.Src, c.Length)
	to, tto, err2 := s.g.p.space.find(c.Dst, c.Length)
	if err != nil || err2 != nil {
		w.violateLocked("%s copies memory that is not there: %v, %v", s.key, err, err2)
		return
	}
	if w.opts.Bug == WrongSlot && w.ids%5 == 0 && tto+c.Length+262144 <= uint64(len(to.mem)) {
		tto += 262144
	}
	w.move(from, fo, to, tto, c.Length, s.key)
}

// Wait implements [gpu.Stream].
func (s *stream) Wait(e gpu.Event) error {
	s.g.p.w.mu.Lock()
	defer s.g.p.w.mu.Unlock()
	return s.push(streamOp{kind: opWait, e: e.(*moment), record: e.(*moment).records})
}

// Copy implements [gpu.Stream].
func (s *stream) Copy(copies []gpu.Copy) error {
	s.g.p.w.mu.Lock()
	defer s.g.p.w.mu.Unlock()
	if s.g.p.w.hits("GPU: copy refused", 3) {
		return fmt.Errorf("sim: copy: %w", gpu.ErrMemory)
	}
	return s.push(streamOp{kind: opCopy, copies: append([]gpu.Copy(nil), copies...)})
}

// Write64 implements [gpu.Stream].
func (s *stream) Write64(addr, value uint64) error {
	w := s.g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := w.bells[addr]
	if !ok {
		return fmt.Errorf("sim: no doorbell at %#x", addr)
	}
	if w.opts.Bug == EarlyBell && value > 0 && !b.e.cut {
		b.word.Store(value)
		return nil
	}
	return s.push(streamOp{kind: opWrite, addr: addr, value: value})
}

// Record implements [gpu.Stream].
func (s *stream) Record(e gpu.Event) error {
	s.g.p.w.mu.Lock()
	defer s.g.p.w.mu.Unlock()
	return s.record(e.(*moment))
}

func (s *stream) record(e *moment) error {
	e.records++
	e.done, e.err = false, nil
	if err := s.push(streamOp{kind: opRecord, e: e, record: e.records}); err != nil {
		e.done = true
		return err
	}
	if s.dropped {
		e.done = true
	}
	return nil
}

// Idle implements [gpu.Stream].
func (s *stream) Idle() (bool, error) {
	s.g.p.w.mu.Lock()
	defer s.g.p.w.mu.Unlock()
	if s.g.lost {
		return true, gpu.ErrFatal
	}
	return len(s.ops) == 0, s.err
}

// Close implements [gpu.Stream].
func (s *stream) Close() error {
	w := s.g.p.w
	for {
		w.mu.Lock()
		if len(s.ops) == 0 || s.g.lost || s.g.p.zombie() {
			s.closed = true
			w.mu.Unlock()
			return s.err
		}
		w.mu.Unlock()
		time.Sleep(50 * time.Microsecond)
	}
}
