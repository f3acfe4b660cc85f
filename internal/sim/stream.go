package sim

import (
	"fmt"
	"time"

	"github.com/railhop/railhop/internal/gpu"
)

func (g *gpus) newStream(caller bool) *stream {
	s := &stream{g: g, caller: caller, key: fmt.Sprintf("%s/stream%d", g.p.name, len(g.streams))}
	g.streams = append(g.streams, s)
	return s
}

// caller returns a stream of the application's.
func (g *gpus) caller(id uint64) *stream {
	if g.callers[id] == nil {
		g.callers[id] = g.newStream(true)
	}
	return g.callers[id]
}

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
	if s.g.p.w.hits(s.g.p, "GPU: copy refused", 3) {
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
