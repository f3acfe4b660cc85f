package cuda

import "github.com/railhop/railhop/internal/gpu"

// A CUDA stream runs one operation at a time, and a doorbell between two of them costs
// two microseconds: as much as a quarter of a copy of 8 MiB. A launch of the gather
// kernel, beside a model that fills the machine, waits for the model's kernel to end,
// and the next one for the end of another. So long operations that follow each other
// take turns on a few CUDA streams, and their doorbells are stored by one more, which
// waits for all and for which none waits:
//
//	streams[0]  copy 1              copy 4
//	streams[1]        copy 2              copy 5
//	streams[2]              copy 3
//	bell                     3             5
//
// Two long copies that touch the same bytes keep their order: before the second, the
// streams wait for each other. Launches are spread only for CopyWrite64, whose callers
// promise that they do not touch. Any other operation than a long one, a doorbell or a
// wait brings all back to the first stream.

const (
	// wideBytes is the length from which on a copy, or what a launch copies, is long.
	wideBytes = 2 << 20
	// defaultStreams is how many CUDA streams a stream has beside the bell's: enough
	// for 50 GB/s of launches that wait for products of 1.6 ms, as measured on an H200.
	defaultStreams = 6
	// copyStreams is how many of them long copies use: more do not make them faster.
	copyStreams = 4
	// wideRecent is after how many copies the streams wait for each other anyway.
	wideRecent = 32
	// wideBatch is how many copies of a batch are dealt out one by one.
	wideBatch = 16
)

// wide is a stream's CUDA streams, and how work is spread over them.
type wide struct {
	streams []uint64 // CUstreams: the stream's own, then those beside it
	tables  []*table // of each, for the kernel; none without one
	bell    uint64   // CUstream, if there is more than one of the others
	tails   []uint64 // events: of each of streams, then of bell

	on    bool
	last  bool   // the last operation was a long one
	loose bool   // a launch is underway of which it is not known what it touches
	turn  int    // whose turn it is
	used  uint32 // which streams have had something since the fork: a bit each
	due   uint32 // and since the last doorbell
	rung  bool   // bell has stored something since the fork

	// recent is the copies of each stream that the others do not wait for.
	recent [][]gpu.Copy
}

func (d *device) openWide(f *frame, n int) (w wide, err error) {
	for i := range n {
		spans := sideSpans
		if i == 0 {
			spans = tableSpans
		}
		s, err := d.newStream(f)
		if err != nil {
			return w, err
		}
		w.streams = append(w.streams, s)
		if d.kernel == 0 {
			continue
		}
		t, err := d.takeTable(f, s, spans)
		if err != nil {
			return w, err
		}
		w.tables = append(w.tables, t)
	}
	if n == 1 {
		return w, nil
	}
	if w.bell, err = d.newStream(f); err != nil {
		return w, err
	}
	for range n + 1 {
		if err := d.check("cuEventCreate", f.callOut(d.p.drv.eventCreate, eventDisableTiming)); err != nil {
			return w, err
		}
		w.tails = append(w.tails, f.word)
	}
	w.recent = make([][]gpu.Copy, n)
	for i := range w.recent {
		w.recent[i] = make([]gpu.Copy, 0, wideRecent)
	}
	return w, nil
}

// closeWide frees what openWide has got, also where that was not all.
func (d *device) closeWide(f *frame, w *wide) error {
	var err error
	for _, s := range w.streams {
		if e := d.check("cuStreamDestroy", f.call(d.p.drv.streamDestroy, uintptr(s))); err == nil {
			err = e
		}
	}
	if w.bell != 0 {
		f.call(d.p.drv.streamDestroy, uintptr(w.bell))
	}
	for _, e := range w.tails {
		f.call(d.p.drv.eventDestroy, uintptr(e))
	}
	for _, t := range w.tables {
		d.putTable(t)
	}
	*w = wide{}
	return err
}

// own is the stream that others know.
func (s *Stream) own() uint64 { return s.wide.streams[0] }

// busy returns the CUDA streams that may have something to do, and the bell's, or 0.
func (w *wide) busy() (streams []uint64, bell uint64) {
	if w.on {
		return w.streams, w.bell
	}
	return w.streams[:1], 0
}

// spread reports whether a batch of copies is for several streams: all are long.
func (s *Stream) spread(copies []gpu.Copy) bool {
	if len(s.wide.streams) == 1 || len(copies) > wideBatch {
		return false
	}
	for i := range copies {
		if copies[i].Length < wideBytes {
			return false
		}
	}
	return true
}

// long gives one long copy to whoever's turn it is. The first of a row goes the plain
// way: it may be the only one. With loose, what the copy touches is nobody else's.
func (s *Stream) long(c *gpu.Copy, loose bool) error {
	w := &s.wide
	if w.loose && !loose {
		if err := s.narrow(); err != nil {
			return err
		}
	}
	if !w.on {
		if !w.last {
			w.last = true
			return s.engineCopy(c, s.own())
		}
		if err := s.fork(); err != nil {
			return err
		}
		w.turn = 1
	}
	if w.turn >= copyStreams {
		w.turn = 0
	}
	me := w.turn
	if len(w.recent[me]) == wideRecent || w.touched(c) {
		if err := s.meet(); err != nil {
			return err
		}
	}
	w.recent[me] = append(w.recent[me], *c)
	return s.engineCopy(c, s.take(me))
}

// touched reports whether a copy must wait for one of another stream.
func (w *wide) touched(c *gpu.Copy) bool {
	for i, recent := range w.recent {
		if i != w.turn && touches(recent, c) {
			return true
		}
	}
	return false
}

// take notes that a stream gets something, and passes the turn on.
func (s *Stream) take(me int) (stream uint64) {
	w := &s.wide
	w.used |= 1 << me
	w.due |= 1 << me
	w.turn = (me + 1) % len(w.streams)
	return w.streams[me]
}

// place returns the stream for a launch that reads the table of that number, for which
// it was that one's turn. It brings all back to the first if the launch may not be
// spread.
func (s *Stream) place(table int, spread bool) (stream uint64, err error) {
	w := &s.wide
	switch {
	case !spread || 2*s.d.blocks > s.d.multiprocessors: // one launch fills the machine
		return s.own(), s.narrow()
	case !w.on && !w.last:
		w.last = true
		return s.own(), nil
	case !w.on:
		err = s.fork()
	case table == 0 && w.used&1 != 0:
		// The next round waits for all of this one. Else there would always be a launch
		// that waits for a multiprocessor, and the model would never have it back.
		err = s.meet()
	}
	if err != nil {
		return 0, err
	}
	w.loose = true
	return s.take(table), nil
}

// link has to wait for what from was given so far.
func (s *Stream) link(from, to, event uint64) error {
	if err := s.mark(event, from); err != nil {
		return err
	}
	return s.await(to, event)
}

// fork has all wait for what the stream was given so far.
func (s *Stream) fork() error {
	w := &s.wide
	w.on, w.turn, w.rung, w.loose, w.used, w.due = true, 0, false, false, 0, 0
	w.forget()
	if err := s.link(w.streams[0], w.bell, w.tails[0]); err != nil {
		return err
	}
	for _, side := range w.streams[1:] {
		if err := s.await(side, w.tails[0]); err != nil {
			return err
		}
	}
	return nil
}

func (w *wide) forget() {
	for i := range w.recent {
		w.recent[i] = w.recent[i][:0]
	}
}

// meet has the streams wait for each other.
func (s *Stream) meet() error {
	w := &s.wide
	w.forget()
	for i, side := range w.streams[1:] {
		if err := s.link(side, w.streams[0], w.tails[i+1]); err != nil {
			return err
		}
	}
	if err := s.mark(w.tails[0], w.streams[0]); err != nil {
		return err
	}
	for _, side := range w.streams[1:] {
		if err := s.await(side, w.tails[0]); err != nil {
			return err
		}
	}
	return nil
}

// narrow has the stream itself wait for the others, before anything but a long
// operation.
func (s *Stream) narrow() error {
	w := &s.wide
	w.last = false
	if !w.on {
		return nil
	}
	w.on, w.loose = false, false
	for i := 1; i < len(w.streams); i++ {
		if w.used&(1<<i) == 0 {
			continue
		}
		if err := s.link(w.streams[i], w.streams[0], w.tails[i]); err != nil {
			return err
		}
	}
	if !w.rung {
		return nil
	}
	return s.link(w.bell, w.streams[0], w.tails[len(w.streams)])
}

// bellStream returns the CUDA stream that stores a doorbell, which waits for all copies
// so far.
func (s *Stream) bellStream() (uint64, error) {
	w := &s.wide
	if !w.on {
		return w.streams[0], nil
	}
	for i, from := range w.streams {
		if w.due&(1<<i) == 0 {
			continue
		}
		if err := s.link(from, w.bell, w.tails[i]); err != nil {
			return 0, err
		}
	}
	w.due, w.rung = 0, true
	return w.bell, nil
}

// touches reports whether c writes what one of copies reads or writes, or reads what
// one writes.
func touches(copies []gpu.Copy, c *gpu.Copy) bool {
	for i := range copies {
		o := &copies[i]
		if overlap(c.Dst, o.Dst, c.Length, o.Length) || overlap(c.Dst, o.Src, c.Length, o.Length) || overlap(c.Src, o.Dst, c.Length, o.Length) {
			return true
		}
	}
	return false
}

// overlap is for ranges of a and b bytes that do not wrap.
func overlap(x, y, a, b uint64) bool { return x < y+b && y < x+a }
