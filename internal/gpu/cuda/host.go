package cuda

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
)

// hosts is the host memory that streams of a device may write to. Readers take a
// snapshot.
type hosts struct {
	mu       sync.Mutex
	snapshot atomic.Pointer[[]hostRange]
}

// hostRange is at the device's address of the memory.
type hostRange struct{ start, end uint64 }

func (h *hosts) change(change func([]hostRange) []hostRange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ranges []hostRange
	if old := h.snapshot.Load(); old != nil {
		ranges = slices.Clone(*old)
	}
	ranges = change(ranges)
	h.snapshot.Store(&ranges)
}

// word reports whether an aligned word at that address may be written.
func (h *hosts) word(at uint64) bool {
	ranges := h.snapshot.Load()
	if ranges == nil || at%8 != 0 {
		return false
	}
	for _, r := range *ranges {
		if at >= r.start && at < r.end {
			return true
		}
	}
	return false
}

// MapHost makes mem, which is mapped shared or pinned by nobody else, writable by
// this device's streams.
func (h *Device) MapHost(mem []byte) (offset uint64, unmap func() error, err error) {
	d, drv := h.d, h.d.p.drv
	at, page := addressOf(mem), uint64(os.Getpagesize())
	if len(mem) == 0 || at%page != 0 || uint64(len(mem))%page != 0 {
		return 0, nil, d.wrap("map host memory", fmt.Errorf("%d bytes at %#x: want whole pages of %d", len(mem), at, page))
	}
	var r hostRange
	err = h.do("map host memory", func(f *frame) error {
		if err := d.check("cuMemHostRegister", f.call(drv.memHostRegister, uintptr(at), uintptr(len(mem)), hostPortable|hostDeviceMap)); err != nil {
			return err
		}
		if err := d.check("cuMemHostGetDevicePointer", f.callOut(drv.memHostGetDevicePointer, uintptr(at), 0)); err != nil {
			f.call(drv.memHostUnregister, uintptr(at))
			return err
		}
		r = hostRange{f.word, f.word + uint64(len(mem))}
		return nil
	})
	if err != nil {
		return 0, nil, err
	}
	d.hosts.change(func(ranges []hostRange) []hostRange { return append(ranges, r) })
	d.hostMaps.Add(1)
	var unmapped atomic.Bool
	return r.start - at, func() error {
		if unmapped.Swap(true) {
			return d.wrap("unmap host memory", fmt.Errorf("%#x is not mapped any more", at))
		}
		d.hosts.change(func(ranges []hostRange) []hostRange {
			i := slices.Index(ranges, r)
			return slices.Delete(ranges, i, i+1)
		})
		d.hostMaps.Add(-1)
		return d.wrap("unmap host memory", d.free(func(f *frame) error {
			return d.check("cuMemHostUnregister", f.call(drv.memHostUnregister, uintptr(at)))
		}))
	}, nil
}

// staging is a pinned buffer and a stream to copy through it. Memory of Go's goes
// this way, since it is not the driver's to keep an address of, and since the
// driver's own way for it is by the legacy stream.
type staging struct {
	stream       uint64
	host, device uint64
	bytes        []byte
}

const (
	stagingBytes = 2 << 20
	stagingHalf  = stagingBytes / 2
	stagingKept  = 4
)

func (d *device) newStaging(f *frame) (*staging, error) {
	stream, err := d.newStream(f)
	if err != nil {
		return nil, err
	}
	s := &staging{stream: stream}
	if s.host, s.device, err = d.pinned(f, stagingBytes); err != nil {
		f.call(d.p.drv.streamDestroy, uintptr(stream))
		return nil, err
	}
	s.bytes = hostBytes(s.host, stagingBytes)
	return s, nil
}

func (d *device) freeStaging(f *frame, s *staging) error {
	return errors.Join(d.check("cuStreamDestroy", f.call(d.p.drv.streamDestroy, uintptr(s.stream))), d.unpin(f, s.host))
}

// stage runs copies with a staging buffer of their own.
func (h *Device) stage(step string, copies func(f *frame, s *staging) error) error {
	d := h.d
	return h.do(step, func(f *frame) error {
		d.mu.Lock()
		var s *staging
		if n := len(d.stagings); n > 0 {
			s = d.stagings[n-1]
			d.stagings = d.stagings[:n-1]
		}
		d.mu.Unlock()
		if s == nil {
			var err error
			if s, err = d.newStaging(f); err != nil {
				return err
			}
		}
		err := copies(f, s)
		d.mu.Lock()
		keep := len(d.stagings) < stagingKept
		if keep {
			d.stagings = append(d.stagings, s)
		}
		d.mu.Unlock()
		if !keep {
			err = errors.Join(err, d.freeStaging(f, s))
		}
		return err
	})
}

// move copies between the buffer and device memory, and does not wait.
func (d *device) move(f *frame, s *staging, dst, src uint64, n int) error {
	return d.check("cuMemcpyAsync", f.call(d.p.drv.memcpyAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(s.stream)))
}

func (d *device) wait(f *frame, s *staging) error {
	return d.check("cuStreamSynchronize", f.call(d.p.drv.streamSynchronize, uintptr(s.stream)))
}

// CopyIn copies to device memory, a half of the buffer being filled while the other
// is on its way.
func (h *Device) CopyIn(dst uint64, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	d := h.d
	return h.stage("copy in", func(f *frame, s *staging) error {
		for half := 0; len(src) > 0; half = stagingHalf - half {
			n := copy(s.bytes[half:half+stagingHalf], src)
			// The other half is free again only now: its copy ran beside that fill.
			if err := d.wait(f, s); err != nil {
				return err
			}
			if err := d.move(f, s, dst, s.device+uint64(half), n); err != nil {
				return err
			}
			dst, src = dst+uint64(n), src[n:]
		}
		return d.wait(f, s)
	})
}

// CopyOut copies from device memory, likewise.
func (h *Device) CopyOut(dst []byte, src uint64) error {
	if len(dst) == 0 {
		return nil
	}
	d := h.d
	return h.stage("copy out", func(f *frame, s *staging) error {
		ready, half := 0, 0 // bytes that have come into the other half
		for len(dst) > 0 {
			n := min(stagingHalf, len(dst)-ready)
			if n > 0 {
				if err := d.move(f, s, s.device+uint64(half), src, n); err != nil {
					return err
				}
				src += uint64(n)
			}
			other := stagingHalf - half
			copy(dst[:ready], s.bytes[other:])
			dst = dst[ready:]
			if err := d.wait(f, s); err != nil {
				return err
			}
			ready, half = n, other
		}
		return nil
	})
}
