package cuda

import "github.com/railhop/railhop/internal/gpu"

// A CUDA stream runs one copy at a time, and a doorbell between two of them costs two
// microseconds: as much as a quarter of a copy of 8 MiB. So long copies that follow
// each other, each a batch of its own, take turns on two CUDA streams, and their
// doorbells are stored by a third, which waits for both and for which neither waits:
//
//	handle  copy 1        copy 3        copy 5
//	side           copy 2        copy 4
//	bell                 2             4
//
// Two copies that touch the same bytes keep their order: before the second, both
// streams wait for each other. Any other operation than a long copy, a doorbell or a
// wait brings all back to the first stream.

// wideBytes is the length from which on a copy is long.
const wideBytes = 2 << 20

// wide is the state of a stream's spreading.
type wide struct {
	on   bool
	last bool // the last copy was a long one
	turn int  // whose turn it is: 0 is the stream's own

	side, bell uint64    // CUstreams
	tails      [3]uint64 // events: of the stream itself, side, bell
	rung       bool      // bell has stored something since the fork

	// recent is the copies of each stream that the other does not wait for.
	recent [2][]gpu.Copy
}

// wideRecent is after how many copies the streams wait for each other anyway.
const wideRecent = 32

func (d *device) openWide(f *frame, w *wide) error {
	if d.p.opts.OneStream {
		return nil
	}
	var err error
	if w.side, err = d.newStream(f); err != nil {
		return err
	}
	if w.bell, err = d.newStream(f); err != nil {
		return err
	}
	for i := range w.tails {
		if err := d.check("cuEventCreate", f.callOut(d.p.drv.eventCreate, eventDisableTiming)); err != nil {
			return err
		}
		w.tails[i] = f.word
	}
	for i := range w.recent {
		w.recent[i] = make([]gpu.Copy, 0, wideRecent)
	}
	return nil
}

func (d *device) closeWide(f *frame, w *wide) {
	for _, s := range [2]uint64{w.side, w.bell} {
		if s != 0 {
			f.call(d.p.drv.streamDestroy, uintptr(s))
		}
	}
	for _, e := range w.tails {
		if e != 0 {
			f.call(d.p.drv.eventDestroy, uintptr(e))
		}
	}
	w.side, w.bell, w.tails = 0, 0, [3]uint64{}
}

// streams returns those that may have something to do, and how many they are. The
// first is own.
func (w *wide) streams(own uint64) (all [3]uint64, n int) {
	all = [3]uint64{own, w.side, w.bell}
	if w.on {
		return all, 3
	}
	return all, 1
}

// long gives one long copy to whoever's turn it is. The first of a row goes the plain
// way: it may be the only one.
func (s *Stream) long(c gpu.Copy) error {
	w := &s.wide
	if !w.on {
		if !w.last {
			w.last = true
			return s.engineCopy(&c, s.handle)
		}
		if err := s.fork(); err != nil {
			return err
		}
	}
	streams := [2]uint64{s.handle, w.side}
	me, other := w.turn, 1-w.turn
	if len(w.recent[me]) == wideRecent || touches(w.recent[other], &c) {
		if err := s.meet(); err != nil {
			return err
		}
	}
	w.recent[me] = append(w.recent[me], c)
	w.turn = other
	if err := s.engineCopy(&c, streams[me]); err != nil {
		return err
	}
	// At once, and not when a doorbell is due: that it waits for two streams then
	// costs the device 3 microseconds, and this nothing that can be seen.
	return s.link(streams[me], w.bell, w.tails[me])
}

// link has to wait for what from was given so far.
func (s *Stream) link(from, to, event uint64) error {
	if err := s.mark(event, from); err != nil {
		return err
	}
	return s.await(to, event)
}

// fork has side and bell wait for all that the stream was given so far.
func (s *Stream) fork() error {
	w := &s.wide
	w.on, w.turn, w.rung = true, 1, false
	w.recent[0], w.recent[1] = w.recent[0][:0], w.recent[1][:0]
	if err := s.link(s.handle, w.side, w.tails[0]); err != nil {
		return err
	}
	return s.await(w.bell, w.tails[0])
}

// meet has the two streams wait for each other.
func (s *Stream) meet() error {
	w := &s.wide
	w.recent[0], w.recent[1] = w.recent[0][:0], w.recent[1][:0]
	if err := s.link(w.side, s.handle, w.tails[1]); err != nil {
		return err
	}
	return s.link(s.handle, w.side, w.tails[0])
}

// narrow has the stream itself wait for the others, before anything but a long copy.
func (s *Stream) narrow() error {
	w := &s.wide
	w.last = false
	if !w.on {
		return nil
	}
	w.on = false
	if err := s.link(w.side, s.handle, w.tails[1]); err != nil || !w.rung {
		return err
	}
	return s.link(w.bell, s.handle, w.tails[2])
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
