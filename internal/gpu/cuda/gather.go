package cuda

import (
	"errors"
	"sync/atomic"

	"github.com/railhop/railhop/internal/gpu"
)

const (
	// tableSpans is enough for 16 batches at their worst, 4096 spans of which many
	// are cut, or 32 of 4096 that are not. Streams that take turns have fewer each.
	tableSpans = 1 << 17
	sideSpans  = 1 << 15
	// tableBatches is how many launches may be underway.
	tableBatches = 64
	spanBytes    = 24
	tableHeader  = 4096 // the word that the kernel stores
)

// table is a ring of spans in pinned host memory, which one stream's launches read.
// The host lays a launch's spans out once, and takes their place again when the
// kernel has stored the launch's number.
//
//	| done | spans: … free | launch 7 | launch 8 | free … |
type table struct {
	host        uint64 // of all
	spans       []gpu.Copy
	deviceSpans uint64
	done        *atomic.Uint64 // number of the last launch that has finished
	deviceDone  uint64
	arrived     uint64 // device memory; see gather.cu

	launched uint64 // number of the last launch
	next     int    // where the next spans go
	oldest   int    // where those of the oldest launch begin, or a little before
	wrapped  bool   // next has begun anew, and oldest has not
	batches  [tableBatches]batch
	first, n int // of batches: a ring
}

type batch struct {
	number uint64
	end    int // of its spans
}

// bell is a word to be stored after all else; none if addr is 0.
type bell struct{ addr, value uint64 }

// newTable allocates a table; stream zeroes the device's part.
func (d *device) newTable(f *frame, stream uint64, spans int) (*table, error) {
	drv := d.p.drv
	host, device, err := d.pinned(f, tableHeader+spans*spanBytes)
	if err != nil {
		return nil, err
	}
	t := &table{
		host: host, spans: hostSpans(host+tableHeader, spans), deviceSpans: device + tableHeader,
		done: hostWord(host), deviceDone: device,
	}
	t.done.Store(0)
	err = d.check("cuMemAlloc", f.callOut(drv.memAlloc, spanBytes))
	if err == nil {
		t.arrived = f.word
		err = d.check("cuMemsetD8Async", f.call(drv.memsetD8Async, uintptr(t.arrived), 0, spanBytes, uintptr(stream)))
	}
	if err == nil {
		err = d.check("cuStreamSynchronize", f.call(drv.streamSynchronize, uintptr(stream)))
	}
	if err != nil {
		return nil, errors.Join(err, d.freeTable(f, t))
	}
	return t, nil
}

func (d *device) freeTable(f *frame, t *table) error {
	var err error
	if t.arrived != 0 {
		err = d.check("cuMemFree", f.call(d.p.drv.memFree, uintptr(t.arrived)))
	}
	return errors.Join(err, d.unpin(f, t.host))
}

// room returns the free run that the next launch may fill: empty if too much is
// underway.
func (t *table) room() []gpu.Copy {
	done := t.done.Load()
	for t.n > 0 && t.batches[t.first].number <= done {
		end := t.batches[t.first].end
		t.wrapped = t.wrapped && end >= t.oldest
		t.oldest = end
		t.first = (t.first + 1) % tableBatches
		t.n--
	}
	if t.n == 0 {
		t.next, t.oldest, t.wrapped = 0, 0, false
		return t.spans
	}
	if t.n == tableBatches {
		return nil
	}
	if t.wrapped {
		return t.spans[t.next:t.oldest]
	}
	// Free at the end, or, if that is more, at the start.
	if len(t.spans)-t.next >= t.oldest {
		return t.spans[t.next:]
	}
	t.next, t.wrapped = 0, true
	return t.spans[:t.oldest]
}

// take notes that the launch of that number reads n spans from t.next on.
func (t *table) take(n int, number uint64) {
	t.next += n
	t.batches[(t.first+t.n)%tableBatches] = batch{number: number, end: t.next}
	t.n++
}

// filling is the state of a batch that is being laid out. What lies back to back at
// both ends is one run, however it was listed.
type filling struct {
	run    gpu.Copy // so far
	runs   int      // laid out in the table
	spans  int      // that they have become
	bytes  uint64   // in them
	engine []gpu.Copy
}

// cutBytes is what runs are cut to, so that there is some for each warp of so many
// blocks, but no more than that: each cut costs time here and there. Of many copies
// none is long.
func cutBytes(blocks int, copies []gpu.Copy) uint64 {
	const few, half, least, most = 256, 4 << 20, 4 << 10, 16 << 10
	if len(copies) > few {
		return most
	}
	total := uint64(0)
	for i := range copies {
		total += copies[i].Length
	}
	cut := uint64(least)
	if total >= half {
		cut *= 2
	}
	for each := total / uint64(blocks*32); cut < most && 2*cut <= each; {
		cut *= 2
	}
	return cut
}

// engineBytes is the length from which on a copy engine is faster than so many blocks,
// by what was measured on an H200: a call costs about 4.5 microseconds however short
// the copy is, and a piece of 8 MiB takes the kernel about 6 microseconds and 180 for
// each block.
func engineBytes(blocks int) uint64 {
	const piece, most = 8 << 20, 4 << 20
	nanoseconds := 6000 + 180_000/blocks
	return min(most, uint64(piece*4500/nanoseconds))
}

// fill lays copies out in room, until one no longer fits, and sets those aside that
// are for a copy engine. It returns how many it has dealt with; the last run, if it
// did not fit, is in b.run.
func (b *filling) fill(room []gpu.Copy, copies []gpu.Copy, cut, engineBytes uint64) (n int) {
	run := b.run
	b.run = gpu.Copy{}
	short := min(cut, engineBytes-1)
	for n < len(copies) {
		if run.Length == 0 {
			// A paged cache is one such stretch; its last may yet grow.
			if m, bytes := plain(room[b.spans:], copies[n:], short); m > 1 {
				n += m - 1
				b.spans += m - 1
				b.runs += m - 1
				b.bytes += bytes - copies[n].Length
			}
			run = copies[n]
			n++
			continue
		}
		switch c := &copies[n]; {
		case c.Length == 0:
			n++
		case c.Src == run.Src+run.Length && c.Dst == run.Dst+run.Length:
			run.Length += c.Length
			n++
		case b.end(room, run, cut, engineBytes):
			run = gpu.Copy{}
		default:
			b.run = run
			return n
		}
	}
	if run.Length != 0 && !b.end(room, run, cut, engineBytes) {
		b.run = run
	}
	return n
}

// plain lays out the first copies, as long as they are short runs of their own, and
// returns how many there are, and their bytes.
func plain(room, copies []gpu.Copy, short uint64) (n int, bytes uint64) {
	n = min(len(room), len(copies))
	room, copies = room[:n], copies[:n]
	var end uint64 // of the last one's source
	for i := range copies {
		c, to := &copies[i], &room[i]
		dst, src, length := c.Dst, c.Src, c.Length
		if length-1 >= short || src == end && i > 0 && dst == copies[i-1].Dst+copies[i-1].Length {
			return i, bytes
		}
		to.Dst, to.Src, to.Length = dst, src, length
		end = src + length
		bytes += length
	}
	return n, bytes
}

// end lays a whole run out, or sets it aside. It reports false if there is no room.
func (b *filling) end(room []gpu.Copy, run gpu.Copy, cut, engineBytes uint64) bool {
	switch {
	case run.Length >= engineBytes:
		b.engine = append(b.engine, run)
		return true
	case run.Length <= cut:
		if b.spans >= len(room) {
			return false
		}
		room[b.spans] = run
		b.spans++
		b.runs++
		b.bytes += run.Length
		return true
	}
	// All but the first begin on a cache line.
	first := cut - run.Dst%128
	n := int((run.Length-first+cut-1)/cut) + 1
	if n > len(room)-b.spans {
		return false
	}
	b.runs++
	b.bytes += run.Length
	for length := first; run.Length > 0; length = min(cut, run.Length) {
		room[b.spans] = gpu.Copy{Dst: run.Dst, Src: run.Src, Length: length}
		b.spans++
		run.Dst, run.Src, run.Length = run.Dst+length, run.Src+length, run.Length-length
	}
	return true
}
