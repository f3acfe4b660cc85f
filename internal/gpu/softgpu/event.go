package softgpu

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/railhop/railhop/internal/gpu"
)

// Event marks a point in a stream: that stream and how many of its operations
// come before. It belongs to one goroutine, but for Done.
type Event struct {
	d      *device
	closed atomic.Bool

	// version is odd while the two words below change, so that Done sees both
	// of one record without a lock.
	version  atomic.Uint64
	stream   atomic.Pointer[Stream] // nil if there is nothing to wait for
	position atomic.Uint64
}

var _ gpu.Event = (*Event)(nil)

// NewEvent returns an event that was never recorded.
func (h *Device) NewEvent() (gpu.Event, error) {
	if err := h.check("new event"); err != nil {
		return nil, err
	}
	h.d.events.Add(1)
	return &Event{d: h.d}, nil
}

// ours returns e as an open event of this package.
func ours(step string, e gpu.Event) (*Event, error) {
	ev, ok := e.(*Event)
	if !ok {
		return nil, fmt.Errorf("softgpu: %s: event of type %T is another provider's", step, e)
	}
	if ev.closed.Load() {
		return nil, fmt.Errorf("softgpu: %s: event: %w", step, gpu.ErrClosed)
	}
	return ev, nil
}

func (e *Event) mark(s *Stream, position uint64) {
	e.version.Add(1)
	e.stream.Store(s)
	e.position.Store(position)
	e.version.Add(1)
}

func (e *Event) last() (s *Stream, position uint64) {
	for {
		v := e.version.Load()
		s, position = e.stream.Load(), e.position.Load()
		if v&1 == 0 && e.version.Load() == v {
			return s, position
		}
		runtime.Gosched()
	}
}

// Done reports whether the point last recorded has been reached. It may return
// true with an error: work before the point failed, and nothing of it is
// underway any more.
func (e *Event) Done() (bool, error) {
	if e.closed.Load() {
		return false, fmt.Errorf("softgpu: event: %w", gpu.ErrClosed)
	}
	s, position := e.last()
	if s == nil {
		return true, e.d.fatalErr()
	}
	if s.ran.Load() < position {
		return false, nil
	}
	return true, s.failedBy(position)
}

// Close frees the event. Streams that were made to wait for it still do.
func (e *Event) Close() error {
	if !e.closed.Swap(true) {
		e.d.events.Add(-1)
	}
	return nil
}
