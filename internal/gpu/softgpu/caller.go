package softgpu

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

// NewUserStream returns a stream as the caller of a transfer has one, and the
// handle by which RecordCaller knows it until it is closed.
func (h *Device) NewUserStream() (handle uint64, s *Stream, err error) {
	if err := h.check("new user stream"); err != nil {
		return 0, nil, err
	}
	d := h.d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handles++
	handle = 0x10000 + d.handles // clear of the driver's named streams, 1 and 2
	s = d.start(handle)
	d.callers[handle] = s
	d.streams.Add(1)
	return handle, s, nil
}

// DefaultStream returns the default stream of the calling OS thread, to which the
// goroutine should be locked. It lives until the device's last Close.
func (h *Device) DefaultStream() (*Stream, error) {
	if err := h.check("default stream"); err != nil {
		return nil, err
	}
	tid := unix.Gettid()
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	s := h.d.threads[tid]
	if s == nil {
		s = h.d.start(0)
		h.d.threads[tid] = s
	}
	return s, nil
}

// RecordCaller records e on the stream with that handle; with handle 0, on the
// default stream of the calling OS thread, which has nothing to wait for if
// DefaultStream was never called there.
func (h *Device) RecordCaller(stream uint64, e gpu.Event) error {
	if err := h.check("record caller"); err != nil {
		return err
	}
	ev, err := ours("record caller", e)
	if err != nil {
		return err
	}
	s, err := h.d.caller(stream)
	if err != nil {
		return err
	}
	if s == nil {
		ev.mark(nil, 0)
		return nil
	}
	return s.Record(ev)
}

// SyncCaller waits until all that the stream with that handle was given has run;
// with handle 0, the default stream of the calling OS thread. It returns the
// stream's first failure, after the wait.
func (h *Device) SyncCaller(stream uint64) error {
	if err := h.check("sync caller"); err != nil {
		return err
	}
	s, err := h.d.caller(stream)
	if err != nil || s == nil {
		return err
	}
	if s.capturing.Load() {
		return fmt.Errorf("softgpu: sync caller: %w", gpu.ErrCapturing)
	}
	s.mu.Lock()
	given := s.given
	s.mu.Unlock()
	s.await(given)
	if err := s.failed(); err != nil {
		return fmt.Errorf("softgpu: sync caller: %w", err)
	}
	return nil
}

func (d *device) caller(handle uint64) (*Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if handle <= 2 { // the driver's names for default streams: one a thread here
		if len(d.threads) == 0 {
			return nil, nil
		}
		return d.threads[unix.Gettid()], nil
	}
	if s := d.callers[handle]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("softgpu: record caller: %s has no stream %#x", d.info.BusID, handle)
}

// SetCapturing begins or ends a capture into a graph: meanwhile the stream
// takes nothing, and says [gpu.ErrCapturing].
func (s *Stream) SetCapturing(on bool) { s.capturing.Store(on) }

// forget drops a closed stream.
func (d *device) forget(s *Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for tid, t := range d.threads {
		if t == s {
			delete(d.threads, tid)
			return
		}
	}
	delete(d.callers, s.handle)
	d.streams.Add(-1)
}

// closeThreads closes the threads' default streams.
func (d *device) closeThreads() {
	for {
		var s *Stream
		d.mu.Lock()
		for _, s = range d.threads {
			break
		}
		d.mu.Unlock()
		if s == nil {
			return
		}
		s.Close()
	}
}
