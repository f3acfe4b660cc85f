package softgpu

import (
	"fmt"
	"runtime/debug"

	"github.com/railhop/railhop/internal/gpu"
)

// chunk bounds how long one copy keeps its processor from the Go scheduler.
const chunk = 1 << 20

// run is the stream's goroutine: it takes all that is queued, runs it, and parks
// when there is nothing more.
func (s *Stream) run() {
	defer close(s.exited)
	// A host page may go away under a write: a peer can truncate the file that
	// it maps. That fails the stream and not the process.
	debug.SetPanicOnFault(true)
	for s.take() {
		spans, pins := s.work.spans, s.work.pins
		position := s.ran.Load()
		for i := range s.work.ops {
			o := &s.work.ops[i]
			position++
			if s.failedBy(position) == nil {
				if err := s.do(o, spans[:o.spans]); err != nil {
					s.broken.Store(&breakage{position: position, err: err})
				}
			}
			for _, r := range pins[:o.pins] {
				r.unpin()
			}
			spans, pins = spans[o.spans:], pins[o.pins:]
			s.step(position)
		}
	}
}

// take blocks until there are operations, and reports false once there will be
// none.
func (s *Stream) take() bool {
	s.work.reset()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue.ops) == 0 {
		if s.closing {
			return false
		}
		s.wake.Wait()
	}
	s.queue, s.work = s.work, s.queue
	return true
}

func (s *Stream) step(position uint64) {
	s.ran.Store(position)
	if s.waiters.Load() > 0 {
		s.mu.Lock()
		s.stepped.Broadcast()
		s.mu.Unlock()
	}
}

// await blocks until position operations have run. There is no cycle of streams
// that wait for each other: a wait is for what was given before it.
func (s *Stream) await(position uint64) {
	if s.ran.Load() >= position {
		return
	}
	s.waiters.Add(1)
	defer s.waiters.Add(-1)
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.ran.Load() < position {
		s.stepped.Wait()
	}
}

// do runs one operation.
func (s *Stream) do(o *op, spans []gpu.Copy) (err error) {
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("softgpu: fault at %#x: %v", fault.Addr(), r)
		}
	}()
	switch o.kind {
	case opWait:
		o.upstream.await(o.value)
		if err := o.upstream.failedBy(o.value); err != nil {
			return fmt.Errorf("softgpu: the stream waited for has failed: %w", err)
		}
	case opCopy:
		if hook := s.d.copyHook.Load(); hook != nil {
			(*hook)(spans)
		}
		for i := range spans {
			if err := s.d.fatalErr(); err != nil {
				return err
			}
			if spans[i].Length > 0 { // an empty one's addresses were not checked
				move(spans[i])
			}
		}
	case opWrite:
		if hook := s.d.writeHook.Load(); hook != nil {
			(*hook)(o.addr, o.value)
		}
		if err := s.d.fatalErr(); err != nil {
			return err
		}
		storeWord(o.addr, o.value)
	case opRecord:
	}
	return nil
}

func move(c gpu.Copy) {
	for c.Length > chunk {
		copy(bytesAt(c.Dst, chunk), bytesAt(c.Src, chunk))
		c.Dst, c.Src, c.Length = c.Dst+chunk, c.Src+chunk, c.Length-chunk
	}
	copy(bytesAt(c.Dst, c.Length), bytesAt(c.Src, c.Length))
}
