package cuda

import (
	"fmt"

	"github.com/railhop/railhop/internal/gpu"
)

// Stream is a CUDA stream of its own, which waits for no other and which the legacy
// stream does not wait for.
//
// A batch of copies is laid out once: what lies back to back becomes one run; long
// runs go to copy engines, a call each or one for all where the driver has that; the
// rest goes to the gather kernel, in one launch. Once an operation has failed, so do
// all that follow, since some of it may be missing.
type Stream struct {
	d      *device
	f      *frame
	handle uint64
	wide   wide
	table  *table // nil without a kernel
	batch  filling
	failed error
	closed bool
}

var (
	_ gpu.Stream = (*Stream)(nil)
	_ gpu.Ringer = (*Stream)(nil)
)

// NewStream returns a stream. It is a *[Stream].
func (h *Device) NewStream() (gpu.Stream, error) {
	d := h.d
	s := &Stream{d: d}
	err := h.do("new stream", func(f *frame) error {
		var err error
		if s.handle, err = d.newStream(f); err != nil {
			return err
		}
		if s.table, err = d.takeTable(f, s.handle); err == nil {
			err = d.openWide(f, &s.wide)
		}
		if err == nil {
			s.f, err = d.p.frames.get()
		}
		if err != nil {
			f.call(d.p.drv.streamDestroy, uintptr(s.handle))
			d.closeWide(f, &s.wide)
			d.putTable(s.table)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.f.setLaunch()
	d.streams.Add(1)
	return s, nil
}

func (d *device) newStream(f *frame) (uint64, error) {
	err := d.check("cuStreamCreateWithPriority", f.callOut(d.p.drv.streamCreate, streamNonBlocking, uintptr(d.priority)))
	return f.word, err
}

// takeTable returns a table for a stream, or nil if there is no kernel.
func (d *device) takeTable(f *frame, stream uint64) (*table, error) {
	if d.kernel == 0 {
		return nil, nil
	}
	d.mu.Lock()
	if n := len(d.tables); n > 0 {
		t := d.tables[n-1]
		d.tables = d.tables[:n-1]
		d.mu.Unlock()
		return t, nil
	}
	d.mu.Unlock()
	return d.newTable(f, stream)
}

func (d *device) putTable(t *table) {
	if t == nil {
		return
	}
	d.mu.Lock()
	d.tables = append(d.tables, t)
	d.mu.Unlock()
}

// begin says why an operation cannot be given, or enters the device's context.
func (s *Stream) begin(step string) error {
	err := s.failed
	switch {
	case s.closed:
		err = gpu.ErrClosed
	case err != nil:
	default:
		if err = s.d.lostErr(); err == nil {
			err = s.d.enter(s.f)
		}
	}
	return s.d.wrap(step, err)
}

// end leaves the context, and keeps what went wrong.
func (s *Stream) end(step string, err error) error {
	s.d.leave(s.f)
	if err != nil {
		s.failed = s.d.wrap(step, err)
		return s.failed
	}
	return nil
}

// Wait makes what follows wait for e's last record.
func (s *Stream) Wait(e gpu.Event) error {
	ev, err := ours("wait", e)
	if err != nil {
		return err
	}
	if err := s.begin("wait"); err != nil {
		return err
	}
	streams, n := s.wide.streams(s.handle)
	for _, stream := range streams[:n] {
		if err = s.await(stream, ev.handle); err != nil {
			break
		}
	}
	return s.end("wait", err)
}

// await makes a CUDA stream wait for an event, and mark records one.
func (s *Stream) await(stream, event uint64) error {
	return s.d.check("cuStreamWaitEvent", s.f.call(s.d.p.drv.streamWaitEvent, uintptr(stream), uintptr(event), 0))
}

func (s *Stream) mark(event, stream uint64) error {
	return s.d.check("cuEventRecord", s.f.call(s.d.p.drv.eventRecord, uintptr(event), uintptr(stream)))
}

// Record records e after what precedes.
func (s *Stream) Record(e gpu.Event) error {
	ev, err := ours("record", e)
	if err != nil {
		return err
	}
	if err := s.begin("record"); err != nil {
		return err
	}
	if err = s.narrow(); err == nil {
		err = s.mark(ev.handle, s.handle)
	}
	return s.end("record", err)
}

// Write64 stores value at addr after all that precedes. It fails, and with it the
// stream, if addr is not a multiple of 8 inside memory that MapHost has mapped.
func (s *Stream) Write64(addr, value uint64) error {
	if err := s.bellAt(addr); err != nil {
		return err
	}
	if err := s.begin("write"); err != nil {
		return err
	}
	return s.end("write", s.write(addr, value))
}

// bellAt says why a word cannot be written, or nil.
func (s *Stream) bellAt(addr uint64) error {
	if !s.d.write64.Found() || s.d.noWrites.Load() {
		return errNoMemOps
	}
	if !s.d.hosts.word(addr) && !s.closed {
		s.failed = s.d.wrap("write", fmt.Errorf("%#x is not an aligned word of mapped host memory", addr))
		return s.failed
	}
	return nil
}

func (s *Stream) write(addr, value uint64) error {
	stream := s.handle
	if s.wide.on {
		stream, s.wide.rung = s.wide.bell, true
	}
	return s.d.check("cuStreamWriteValue64", s.f.call(s.d.write64, uintptr(stream), uintptr(addr), uintptr(value), 0))
}

// Copy runs copies, whose addresses it believes: the driver cannot be asked for each,
// and a bad one costs the process its context.
func (s *Stream) Copy(copies []gpu.Copy) error {
	if err := s.begin("copy"); err != nil {
		return err
	}
	_, err := s.copy(copies, bell{})
	return s.end("copy", err)
}

// CopyWrite64 is Copy and Write64 in one. With [KernelDoorbell] the word is stored by
// the kernel, if a launch is the last part of the batch.
func (s *Stream) CopyWrite64(copies []gpu.Copy, addr, value uint64) error {
	if err := s.bellAt(addr); err != nil {
		return err
	}
	if err := s.begin("copy"); err != nil {
		return err
	}
	var ring bell
	if s.d.p.opts.Doorbell == KernelDoorbell {
		ring = bell{addr, value}
	}
	rung, err := s.copy(copies, ring)
	if err == nil && !rung {
		err = s.write(addr, value)
	}
	return s.end("copy", err)
}

// copy deals copies out. It reports whether the kernel will ring.
func (s *Stream) copy(copies []gpu.Copy, ring bell) (rung bool, err error) {
	d, b := s.d, &s.batch
	*b = filling{engine: b.engine[:0]}
	cut := cutBytes(d.blocks, copies)
	for len(copies) > 0 || b.run.Length > 0 {
		var room []gpu.Copy
		if s.table != nil {
			room = s.table.room()
		}
		b.runs, b.spans, b.bytes = 0, 0, 0
		copies = copies[b.fill(room, copies, cut, d.engineBytes):]
		rest := len(copies) > 0 || b.run.Length > 0
		if b.spans == 0 && rest {
			// There is no kernel, or too much is underway for the table. A stream may not
			// block, and what it waits for may wait for us.
			d.stats.tableFull.Add(1)
			b.engine = append(b.engine, b.run)
			b.engine = append(b.engine, copies...)
			b.run, copies, rest = gpu.Copy{}, nil, false
		}
		if b.runs == 1 {
			// One call either way, and this one takes no multiprocessor.
			first := room[0]
			b.engine = append(b.engine, gpu.Copy{Dst: first.Dst, Src: first.Src, Length: b.bytes})
			b.spans = 0
		}
		if !rest {
			if err := s.engines(b.engine, b.spans > 0); err != nil {
				return false, err
			}
		}
		if b.spans == 0 {
			continue
		}
		if err := s.narrow(); err != nil {
			return false, err
		}
		first := s.table.next
		var last bell
		if !rest {
			last, rung = ring, ring.addr != 0
		}
		if err := d.launch(s.f, s.handle, s.table, first, b.spans, b.bytes, last); err != nil {
			return false, err
		}
		s.table.take(b.spans, s.table.launched)
		d.stats.launches.Add(1)
		d.stats.spans.Add(int64(b.spans))
	}
	return rung, nil
}

// engines gives copies to copy engines; others says that a launch follows.
func (s *Stream) engines(copies []gpu.Copy, others bool) error {
	d, drv := s.d, s.d.p.drv
	if len(copies) == 0 {
		return nil
	}
	if len(copies) == 1 && !others && copies[0].Length >= wideBytes && !d.p.opts.OneStream {
		d.stats.engineCopies.Add(1)
		return s.long(copies[0])
	}
	if err := s.narrow(); err != nil {
		return err
	}
	batched := drv.memcpyBatchAsyncV2.Found() || drv.memcpyBatchAsync.Found()
	for len(copies) > 0 {
		n := min(len(copies), batchSpans)
		part := copies[:n]
		copies = copies[n:]
		d.stats.engineCopies.Add(int64(n))
		if n > 1 && batched {
			if err := s.engineBatch(part); err != nil {
				return err
			}
			continue
		}
		for i := range part {
			c := &part[i]
			if c.Length == 0 {
				continue
			}
			if err := s.engineCopy(c, s.handle); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Stream) engineCopy(c *gpu.Copy, stream uint64) error {
	return s.d.check("cuMemcpyAsync", s.f.call(s.d.p.drv.memcpyAsync, uintptr(c.Dst), uintptr(c.Src), uintptr(c.Length), uintptr(stream)))
}

// engineBatch gives up to batchSpans copies to the driver in one call, of which the
// driver of CUDA 13 has dropped a parameter.
func (s *Stream) engineBatch(copies []gpu.Copy) error {
	f, drv := s.f, s.d.p.drv
	n := uintptr(0)
	for i := range copies {
		if c := &copies[i]; c.Length > 0 {
			f.batchDst[n], f.batchSrc[n], f.batchLength[n] = c.Dst, c.Src, c.Length
			n++
		}
	}
	if n == 0 {
		return nil
	}
	f.batchAttrs = batchAttributes{sourceOrder: batchSourceStream}
	f.batchFirst = 0
	dst, src, length, attrs, first := addr(&f.batchDst), addr(&f.batchSrc), addr(&f.batchLength), addr(&f.batchAttrs), addr(&f.batchFirst)
	if drv.memcpyBatchAsyncV2.Found() {
		return s.d.check("cuMemcpyBatchAsync", f.call(drv.memcpyBatchAsyncV2, dst, src, length, n, attrs, first, 1, uintptr(s.handle)))
	}
	return s.d.check("cuMemcpyBatchAsync", f.call(drv.memcpyBatchAsync, dst, src, length, n, attrs, first, 1, addr(&f.batchFailed), uintptr(s.handle)))
}

// Idle reports whether everything given so far has run.
func (s *Stream) Idle() (bool, error) {
	if err := s.begin("idle"); err != nil {
		return false, err
	}
	code := int32(success)
	streams, n := s.wide.streams(s.handle)
	for _, stream := range streams[:n] {
		if code = s.f.call(s.d.p.drv.streamQuery, uintptr(stream)); code != success {
			break
		}
	}
	s.d.leave(s.f)
	if code == errNotReady {
		return false, nil
	}
	return code == success, s.d.wrap("idle", s.d.check("cuStreamQuery", code))
}

// Close waits for what is outstanding, then frees the stream. It does not report
// what failed.
func (s *Stream) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	d := s.d
	err := d.free(func(f *frame) error {
		drv := d.p.drv
		streams, n := s.wide.streams(s.handle)
		for _, stream := range streams[:n] {
			f.call(drv.streamSynchronize, uintptr(stream))
		}
		d.closeWide(f, &s.wide)
		return d.check("cuStreamDestroy", f.call(drv.streamDestroy, uintptr(s.handle)))
	})
	d.putTable(s.table)
	d.p.frames.put(s.f)
	d.streams.Add(-1)
	if d.lostErr() != nil {
		return nil
	}
	return d.wrap("close stream", err)
}
