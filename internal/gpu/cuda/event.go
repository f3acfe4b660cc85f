package cuda

import (
	"fmt"
	"sync/atomic"

	"github.com/railhop/railhop/internal/gpu"
)

// Event is a CUDA event that takes no time stamps.
type Event struct {
	d      *device
	handle uint64
	closed atomic.Bool
}

var _ gpu.Event = (*Event)(nil)

// NewEvent returns an event. It is an *[Event].
func (h *Device) NewEvent() (gpu.Event, error) {
	d := h.d
	e := &Event{d: d}
	err := h.do("new event", func(f *frame) error {
		err := d.check("cuEventCreate", f.callOut(d.p.drv.eventCreate, eventDisableTiming))
		e.handle = f.word
		return err
	})
	if err != nil {
		return nil, err
	}
	d.events.Add(1)
	return e, nil
}

// ours returns an event of this package that is open.
func ours(step string, e gpu.Event) (*Event, error) {
	ev, ok := e.(*Event)
	if !ok {
		return nil, fmt.Errorf("cuda: %s: a %T is no CUDA event", step, e)
	}
	if ev.closed.Load() {
		return nil, fmt.Errorf("cuda: %s: event: %w", step, gpu.ErrClosed)
	}
	return ev, nil
}

// Done reports whether the point last recorded has been reached.
func (e *Event) Done() (bool, error) {
	if e.closed.Load() {
		return false, fmt.Errorf("cuda: event: %w", gpu.ErrClosed)
	}
	d := e.d
	if err := d.lostErr(); err != nil {
		return false, d.wrap("event", err)
	}
	f, err := d.p.frames.get()
	if err != nil {
		return false, err
	}
	defer d.p.frames.put(f)
	if err := d.enter(f); err != nil {
		return false, d.wrap("event", err)
	}
	code := f.call(d.p.drv.eventQuery, uintptr(e.handle))
	d.leave(f)
	if code == errNotReady {
		return false, nil
	}
	return code == success, d.wrap("event", d.check("cuEventQuery", code))
}

// Close frees the event. What waits for it waits on.
func (e *Event) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	d := e.d
	d.events.Add(-1)
	return d.wrap("close event", d.free(func(f *frame) error {
		return d.check("cuEventDestroy", f.call(d.p.drv.eventDestroy, uintptr(e.handle)))
	}))
}
