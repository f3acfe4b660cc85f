package segment

import "slices"

// table is a snapshot of all published chunks, by address. Their bounds are apart, so
// that a search touches little memory, and the garbage collector less.
type table struct {
	starts, ends []uint64
	chunks       []*Chunk
	priorities   *priorities
}

// with returns a table that has bufs too.
func (t *table) with(bufs []*Buffer) *table {
	return t.splice(bufs, func(out *table, b *Buffer) (replaced int) {
		for i := range b.Chunks {
			c := &b.Chunks[i]
			out.starts = append(out.starts, c.Addr)
			out.ends = append(out.ends, c.Addr+c.Length)
			out.chunks = append(out.chunks, c)
		}
		return 0
	})
}

// without returns a table that lacks bufs, which t has.
func (t *table) without(bufs []*Buffer) *table {
	return t.splice(bufs, func(_ *table, b *Buffer) (replaced int) { return len(b.Chunks) })
}

// splice copies t, and at the place of each of bufs lets edit append to the copy and
// say how many chunks of t not to copy there.
func (t *table) splice(bufs []*Buffer, edit func(out *table, b *Buffer) (replaced int)) *table {
	n := len(t.chunks)
	for _, b := range bufs {
		n += len(b.Chunks)
	}
	out := &table{starts: make([]uint64, 0, n), ends: make([]uint64, 0, n), chunks: make([]*Chunk, 0, n), priorities: t.priorities}
	from := 0
	upTo := func(at int) {
		out.starts = append(out.starts, t.starts[from:at]...)
		out.ends = append(out.ends, t.ends[from:at]...)
		out.chunks = append(out.chunks, t.chunks[from:at]...)
	}
	for _, b := range slices.SortedFunc(slices.Values(bufs), byAddr) {
		at, _ := slices.BinarySearch(t.starts, b.Addr)
		upTo(at)
		from = at + edit(out, b)
	}
	upTo(len(t.starts))
	return out
}

// search returns the index of the chunk that holds addr, or else of the next one
// above it.
func (t *table) search(addr uint64) (i int, ok bool) {
	i, ok = slices.BinarySearch(t.starts, addr)
	if ok {
		return i, true
	}
	if i > 0 && addr < t.ends[i-1] {
		return i - 1, true
	}
	return i, false
}

// Cursor remembers a caller's last lookup, since the next is mostly near it. The
// zero value is ready for use; it belongs to one goroutine.
type Cursor struct {
	table *table
	at    int
}

func (c *Cursor) search(t *table, addr uint64) (int, bool) {
	if c.table == t && c.at < len(t.starts) && t.starts[c.at] <= addr && addr < t.ends[c.at] {
		return c.at, true
	}
	i, ok := t.search(addr)
	if ok {
		c.table, c.at = t, i
	}
	return i, ok
}

// Piece is a part of a range that lies in one chunk.
type Piece struct {
	Buffer       *Buffer
	Chunk        *Chunk
	Addr, Length uint64
}

// Cover appends to dst the pieces that make up the range, in order. The range may
// span buffers that touch. It fails with a [*NotCoveredError], and then appends
// nothing. A range of length 0 has no pieces.
func (l *Local) Cover(cur *Cursor, dst []Piece, addr, length uint64) ([]Piece, error) {
	end := addr + length
	if end < addr {
		return dst, badRange(addr, length)
	}
	t, had := l.table.Load(), len(dst)
	for at := addr; at < end; {
		i, ok := cur.search(t, at)
		if !ok {
			return dst[:had], t.notCovered(addr, length, at, i)
		}
		c, n := t.chunks[i], min(end, t.ends[i])-at
		dst = append(dst, Piece{Buffer: c.buffer, Chunk: c, Addr: at, Length: n})
		at += n
	}
	return dst, nil
}

// Find returns the one buffer that holds the whole range. It fails with a
// [*NotCoveredError] if none does, or the range is empty.
func (l *Local) Find(cur *Cursor, addr, length uint64) (*Buffer, error) {
	if addr+length < addr {
		return nil, badRange(addr, length)
	}
	t := l.table.Load()
	i, ok := cur.search(t, addr)
	if !ok || length == 0 {
		return nil, t.notCovered(addr, length, addr, i)
	}
	b := t.chunks[i].buffer
	if end := b.Addr + b.Length; addr+length > end {
		return nil, &NotCoveredError{Addr: addr, Length: length, Missing: end, Nearest: Range{b.Addr, end}}
	}
	return b, nil
}

func (t *table) notCovered(addr, length, missing uint64, above int) error {
	at := func(i int) Range {
		b := t.chunks[i].buffer
		return Range{b.Addr, b.Addr + b.Length}
	}
	return &NotCoveredError{Addr: addr, Length: length, Missing: missing, Nearest: nearest(len(t.chunks), at, above, missing)}
}

// Device chooses the local device for memory at addr in b: at first a preferred
// one, by rnd; at retry r the next in turn. It reports false if no device is
// active.
func (l *Local) Device(b *Buffer, addr uint64, retry int, rnd uint64) (device int, ok bool) {
	return l.candidates(b, addr).pick(retry, rnd)
}

// Candidates returns the active devices for memory at addr in b, best first, and
// how many of them are preferred. The slice is shared and must not be changed.
func (l *Local) Candidates(b *Buffer, addr uint64) (devices []uint16, preferred int) {
	d := l.candidates(b, addr)
	return d.all, d.preferred
}

func (l *Local) candidates(b *Buffer, addr uint64) devices {
	location := b.Location
	if n := len(b.regions); n > 0 {
		location = b.regions[region(n, addr-b.Addr, b.Length)]
	}
	return l.table.Load().priorities.at(location)
}
