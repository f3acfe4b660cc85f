package cuda

import (
	"fmt"

	"github.com/railhop/railhop/internal/gpu"
)

// A caller's stream is a CUstream as an integer; 0 stands for the calling thread's
// own default stream, CU_STREAM_PER_THREAD. The legacy stream, which every other
// one may have to wait for, is used only when its handle, 1, is given.

// RecordCaller records e on a caller's stream, unless that is being captured: a
// record would become a part of the graph.
func (h *Device) RecordCaller(stream uint64, e gpu.Event) error {
	ev, err := ours("record caller", e)
	if err != nil {
		return err
	}
	d := h.d
	return h.do("record caller", func(f *frame) error {
		stream, err := d.caller(f, stream)
		if err != nil {
			return err
		}
		return d.check("cuEventRecord", f.call(d.p.drv.eventRecord, uintptr(ev.handle), uintptr(stream)))
	})
}

// SyncCaller waits until a caller's stream has nothing to do.
func (h *Device) SyncCaller(stream uint64) error {
	d := h.d
	return h.do("sync caller", func(f *frame) error {
		stream, err := d.caller(f, stream)
		if err != nil {
			return err
		}
		return d.check("cuStreamSynchronize", f.call(d.p.drv.streamSynchronize, uintptr(stream)))
	})
}

// caller returns the driver's handle of a caller's stream that is not capturing.
func (d *device) caller(f *frame, stream uint64) (uint64, error) {
	if stream == 0 {
		stream = streamPerThread
	}
	f.word = 0
	code := f.call(d.p.drv.streamIsCapturing, uintptr(stream), f.wordAddr())
	if err := d.check("cuStreamIsCapturing", code); err != nil {
		return 0, err
	}
	if uint32(f.word) != 0 {
		return 0, fmt.Errorf("stream %#x: %w", stream, gpu.ErrCapturing)
	}
	return stream, nil
}
