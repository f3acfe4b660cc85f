package cuda

import (
	"fmt"
	"slices"

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
	wide   wide
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
		if s.wide, err = d.openWide(f, d.p.opts.Streams); err == nil {
			s.f, err = d.p.frames.get()
		}
		if err != nil {
			d.closeWide(f, &s.wide)
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

// takeTable returns a table of so many spans for a stream.
func (d *device) takeTable(f *frame, stream uint64, spans int) (*table, error) {
	d.mu.Lock()
	for i, t := range d.tables {
		if len(t.spans) == spans {
			d.tables = slices.Delete(d.tables, i, i+1)
			d.mu.Unlock()
			return t, nil
		}
	}
	d.mu.Unlock()
	return d.newTable(f, stream, spans)
}

func (d *device) putTable(t *table) {
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
	streams, bell := s.wide.busy()
	for _, stream := range streams {
		if err = s.await(stream, ev.handle); err != nil {
			break
		}
	}
	if err == nil && bell != 0 {
		err = s.await(bell, ev.handle)
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
		err = s.mark(ev.handle, s.own())
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
	stream, err := s.bellStream()
	if err != nil {
		return err
	}
	return s.d.check("cuStreamWriteValue64", s.f.call(s.d.write64, uintptr(stream), uintptr(addr), uintptr(value), 0))
}

// Copy runs copies, whose addresses it believes: the driver cannot be asked for each,
// and a bad one costs the process its context.
func (s *Stream) Copy(copies []gpu.Copy) error {
	if err := s.begin("copy"); err != nil {
		return err
	}
	_, err := s.copy(copies, bell{}, false)
	return s.end("copy", err)
}

// CopyWrite64 is Copy and Write64 in one. With [KernelDoorbell] the word is stored by
// the kernel, if a launch is the last part of the batch; else a launch may run beside
// those of the calls before.
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
	rung, err := s.copy(copies, ring, ring.addr == 0)
	if err == nil && !rung {
		err = s.write(addr, value)
	}
	return s.end("copy", err)
}

// copy deals copies out. It reports whether the kernel will ring. With loose, they
// touch nothing of what other calls with loose touch that may still run.
func (s *Stream) copy(copies []gpu.Copy, ring bell, loose bool) (rung bool, err error) {
	d, b, w := s.d, &s.batch, &s.wide
	*b = filling{engine: b.engine[:0]}
	cut := cutBytes(d.blocks, copies)
	loose = loose && len(w.streams) > 1
	turn := 0
	if loose && w.on {
		turn = w.turn
		if w.tables != nil && len(w.tables[turn].room()) < max(len(copies), sideSpans/4) {
			turn, loose = 0, false // the stream's own table has room for more
		}
	}
	for whole := true; len(copies) > 0 || b.run.Length > 0; whole = false {
		var t *table
		var room []gpu.Copy
		if w.tables != nil {
			t = w.tables[turn]
			room = t.room()
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
			if err := s.engines(b.engine, b.spans > 0, loose); err != nil {
				return false, err
			}
		}
		if b.spans == 0 {
			continue
		}
		stream, err := s.place(turn, loose && whole && !rest && len(b.engine) == 0 && b.bytes >= wideBytes)
		if err != nil {
			return false, err
		}
		var last bell
		if !rest {
			last, rung = ring, ring.addr != 0
		}
		if err := d.launch(s.f, stream, t, t.next, b.spans, b.bytes, last); err != nil {
			return false, err
		}
		t.take(b.spans, t.launched)
		d.stats.launches.Add(1)
		d.stats.spans.Add(int64(b.spans))
	}
	return rung, nil
}

// engines gives copies to copy engines; others says that a launch follows.
func (s *Stream) engines(copies []gpu.Copy, others, loose bool) error {
	d, drv := s.d, s.d.p.drv
	if len(copies) == 0 {
		return nil
	}
	if !others && s.spread(copies) {
		d.stats.engineCopies.Add(int64(len(copies)))
		for i := range copies {
			if err := s.long(&copies[i], loose); err != nil {
				return err
			}
		}
		return nil
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
			if err := s.engineCopy(c, s.own()); err != nil {
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
		return s.d.check("cuMemcpyBatchAsync", f.call(drv.memcpyBatchAsyncV2, dst, src, length, n, attrs, first, 1, uintptr(s.own())))
	}
	return s.d.check("cuMemcpyBatchAsync", f.call(drv.memcpyBatchAsync, dst, src, length, n, attrs, first, 1, addr(&f.batchFailed), uintptr(s.own())))
}

// Idle reports whether everything given so far has run.
func (s *Stream) Idle() (bool, error) {
	if err := s.begin("idle"); err != nil {
		return false, err
	}
	code := int32(success)
	streams, bell := s.wide.busy()
	for _, stream := range streams {
		if code = s.f.call(s.d.p.drv.streamQuery, uintptr(stream)); code != success {
			break
		}
	}
	if code == success && bell != 0 {
		code = s.f.call(s.d.p.drv.streamQuery, uintptr(bell))
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
		streams, bell := s.wide.busy()
		for _, stream := range streams {
			f.call(d.p.drv.streamSynchronize, uintptr(stream))
		}
		if bell != 0 {
			f.call(d.p.drv.streamSynchronize, uintptr(bell))
		}
		return d.closeWide(f, &s.wide)
	})
	d.p.frames.put(s.f)
	d.streams.Add(-1)
	if d.lostErr() != nil {
		return nil
	}
	return d.wrap("close stream", err)
}
