package softgpu

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/railhop/railhop/internal/gpu"
)

// Stream is a queue of operations and a goroutine that runs them. Operations are
// checked when they are given: one with a bad address is refused, and so is all
// that follows on the stream. What was queued before still runs.
type Stream struct {
	d         *device
	handle    uint64 // of a caller's stream, else 0
	capturing atomic.Bool

	ran     atomic.Uint64 // operations that the goroutine is through with
	waiters atomic.Int32  // who want to hear of it
	refused atomic.Pointer[failure]
	broken  atomic.Pointer[breakage]

	mu      sync.Mutex
	wake    sync.Cond // the queue is no longer empty, or the stream is closing
	stepped sync.Cond // ran has grown
	queue   queue     // given and not yet taken
	given   uint64
	closing bool
	exited  chan struct{}

	work queue // taken: the goroutine's own
}

var _ gpu.Stream = (*Stream)(nil)

// breakage is the first operation that failed while it ran.
type breakage struct {
	position uint64
	err      error
}

// queue holds operations in order, with what they refer to in tables of their
// own, so that all are used again and nothing is allocated once they have grown.
type queue struct {
	ops   []op
	spans []gpu.Copy
	pins  []*region
}

type op struct {
	kind     opKind
	spans    int     // of a copy, the next in queue.spans
	pins     int     // the next in queue.pins
	addr     uint64  // of a write
	value    uint64  // of a write; of a wait, the position
	upstream *Stream // of a wait
}

type opKind uint8

const (
	opWait opKind = iota
	opCopy
	opWrite
	opRecord
)

func (q *queue) reset() {
	clear(q.ops)
	clear(q.pins)
	q.ops, q.spans, q.pins = q.ops[:0], q.spans[:0], q.pins[:0]
}

// unpin drops the pins from mark on.
func (q *queue) unpin(mark int) {
	for i, r := range q.pins[mark:] {
		r.unpin()
		q.pins[mark+i] = nil
	}
	q.pins = q.pins[:mark]
}

// NewStream returns a stream. It is a *[Stream].
func (h *Device) NewStream() (gpu.Stream, error) {
	if err := h.check("new stream"); err != nil {
		return nil, err
	}
	h.d.streams.Add(1)
	return h.d.start(0), nil
}

func (d *device) start(handle uint64) *Stream {
	s := &Stream{d: d, handle: handle, exited: make(chan struct{})}
	s.wake.L, s.stepped.L = &s.mu, &s.mu
	go s.run()
	return s
}

// usable returns why an operation cannot be given, or nil. The caller holds s.mu.
func (s *Stream) usable(step string) error {
	var err error
	if s.closing {
		err = gpu.ErrClosed
	} else if s.capturing.Load() {
		err = gpu.ErrCapturing
	} else {
		err = s.failed()
	}
	if err != nil {
		return fmt.Errorf("softgpu: %s: %w", step, err)
	}
	return nil
}

// failed returns the stream's first failure.
func (s *Stream) failed() error {
	if err := s.d.fatalErr(); err != nil {
		return err
	}
	if b := s.broken.Load(); b != nil {
		return b.err
	}
	if f := s.refused.Load(); f != nil {
		return f.err
	}
	return nil
}

// failedBy returns the failure of one of the first position operations.
func (s *Stream) failedBy(position uint64) error {
	if err := s.d.fatalErr(); err != nil {
		return err
	}
	if b := s.broken.Load(); b != nil && b.position <= position {
		return b.err
	}
	return nil
}

// refuse fails the stream by an operation that was not queued.
func (s *Stream) refuse(err error) error {
	s.refused.CompareAndSwap(nil, &failure{err: err})
	return err
}

// give queues o. The caller holds s.mu.
func (s *Stream) give(o op) {
	s.queue.ops = append(s.queue.ops, o)
	s.given++
	if len(s.queue.ops) == 1 {
		s.wake.Signal()
	}
}

// Wait makes what follows wait for e's last record, wherever that was. If what
// precedes the record failed, so does this stream.
func (s *Stream) Wait(e gpu.Event) error {
	ev, err := ours("wait", e)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable("wait"); err != nil {
		return err
	}
	if up, position := ev.last(); up != nil && up != s {
		s.give(op{kind: opWait, upstream: up, value: position})
	}
	return nil
}

// Copy runs copies from and to device memory. It fails, and with it the stream, if
// any end of any is not wholly inside one allocation or import.
func (s *Stream) Copy(copies []gpu.Copy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable("copy"); err != nil || len(copies) == 0 {
		return err
	}
	mark := len(s.queue.pins)
	regions := s.d.p.memory.regions()
	var dst, src finder
	for i := range copies {
		c := &copies[i]
		if c.Length == 0 {
			continue
		}
		if !dst.hit(c.Dst, c.Length) && !dst.pin(regions, &s.queue, c.Dst, c.Length) {
			s.queue.unpin(mark)
			return s.refuse(badCopy(copies, i, "destination", c.Dst))
		}
		if !src.hit(c.Src, c.Length) && !src.pin(regions, &s.queue, c.Src, c.Length) {
			s.queue.unpin(mark)
			return s.refuse(badCopy(copies, i, "source", c.Src))
		}
	}
	s.queue.spans = append(s.queue.spans, copies...)
	s.give(op{kind: opCopy, spans: len(copies), pins: len(s.queue.pins) - mark})
	return nil
}

func badCopy(copies []gpu.Copy, i int, end string, addr uint64) error {
	return fmt.Errorf("softgpu: copy %d of %d: %s: %d bytes at %#x are not in device memory",
		i+1, len(copies), end, copies[i].Length, addr)
}

// finder looks up addresses that lie in few regions, such as a batch's, and
// remembers the last two.
type finder struct {
	base, size   uint64 // of last
	last, before *region
}

// hit reports whether the range is in the last region. It is inlined.
func (f *finder) hit(addr, length uint64) bool {
	off := addr - f.base
	return off < f.size && length <= f.size-off
}

// pin finds the region of a range that is no hit and, if it is new to the
// finder, pins it and notes that in q.
func (f *finder) pin(regions []*region, q *queue, addr, length uint64) bool {
	r := f.before
	if r == nil || !r.contains(addr, length) {
		r = findIn(regions, addr, length)
		if r == nil || !r.pin() {
			return false
		}
		q.pins = append(q.pins, r)
	}
	f.before, f.last = f.last, r
	f.base, f.size = r.base, r.size
	return true
}

// Write64 stores value at addr. It fails, and with it the stream, if addr is not a
// multiple of 8 inside memory that MapHost has mapped for the device.
func (s *Stream) Write64(addr, value uint64) error {
	if !s.d.info.StreamMemOps {
		return errNoMemOps
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable("write"); err != nil {
		return err
	}
	r := s.d.hosts.find(addr, 8)
	if r == nil || addr%8 != 0 || !r.pin() {
		return s.refuse(fmt.Errorf("softgpu: write: %#x is not an aligned word of mapped host memory", addr))
	}
	s.queue.pins = append(s.queue.pins, r)
	s.give(op{kind: opWrite, addr: addr, value: value, pins: 1})
	return nil
}

var errNoMemOps = fmt.Errorf("softgpu: write: the device has no stream memory operations: %w", errors.ErrUnsupported)

// Record records e after what precedes.
func (s *Stream) Record(e gpu.Event) error {
	ev, err := ours("record", e)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable("record"); err != nil {
		return err
	}
	s.give(op{kind: opRecord})
	ev.mark(s, s.given)
	return nil
}

// Idle reports whether nothing is queued or running. It returns the stream's
// first failure.
func (s *Stream) Idle() (bool, error) {
	s.mu.Lock()
	given := s.given
	s.mu.Unlock()
	return s.ran.Load() >= given, s.failed()
}

// Close waits for what is outstanding, then frees the stream. It does not report
// what failed.
func (s *Stream) Close() error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	s.wake.Signal()
	s.mu.Unlock()
	<-s.exited
	if first {
		s.d.forget(s)
	}
	return nil
}
