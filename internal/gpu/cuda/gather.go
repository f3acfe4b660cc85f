package cuda

import (
	"errors"
	"sync/atomic"

	"github.com/railhop/railhop/internal/gpu"
)

const (
	// tableSpans is enough for 16 batches at their worst, 4096 spans of which many
	// are cut, or 32 of 4096 that are not.
	tableSpans = 1 << 17
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
	spans       []span
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
func (d *device) newTable(f *frame, stream uint64) (*table, error) {
	drv := d.p.drv
	host, device, err := d.pinned(f, tableHeader+tableSpans*spanBytes)
	if err != nil {
		return nil, err
	}
	t := &table{
		host: host, spans: hostSpans(host+tableHeader, tableSpans), deviceSpans: device + tableHeader,
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
func (t *table) room() []span {
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

// cutBytes is what spans are cut to for that many blocks, so that there are enough
// for all warps, and few are idle at the end.
func cutBytes(blocks int) uint64 {
	if blocks > 32 {
		return 2 << 10
	}
	return 4 << 10
}

// fill lays copies out in room, until one no longer fits, and sets those aside that
// are for a copy engine. It returns how many it has dealt with.
func (b *filling) fill(room []span, copies []gpu.Copy, cut, engineBytes uint64) (n int) {
	run := b.run
	b.run = gpu.Copy{}
	for ; n < len(copies); n++ {
		c := &copies[n]
		if run.Length != 0 && c.Src == run.Src+run.Length && c.Dst == run.Dst+run.Length {
			run.Length += c.Length
			continue
		}
		if !b.end(room, run, cut, engineBytes) {
			b.run = run
			return n
		}
		run = *c
	}
	if !b.end(room, run, cut, engineBytes) {
		b.run = run
	}
	return n
}

// end lays a whole run out, or sets it aside. It reports false if there is no room.
func (b *filling) end(room []span, run gpu.Copy, cut, engineBytes uint64) bool {
	switch {
	case run.Length == 0:
		return true
	case run.Length >= engineBytes:
		b.engine = append(b.engine, run)
		return true
	case run.Length <= cut:
		if b.spans >= len(room) {
			return false
		}
		room[b.spans] = span{dst: run.Dst, src: run.Src, length: run.Length}
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
		room[b.spans] = span{dst: run.Dst, src: run.Src, length: length}
		b.spans++
		run.Dst, run.Src, run.Length = run.Dst+length, run.Src+length, run.Length-length
	}
	return true
}
