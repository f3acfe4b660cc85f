package gputest

import (
	"fmt"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
)

func testCopy(t *testing.T, setup Setup) {
	for _, size := range []uint64{1, 2, 3, 7, 8, 15, 16, 17, 255, 4096, 65_537, 1 << 20, 8<<20 - 1, 8 << 20} {
		for _, shift := range []uint64{0, 1, 13} { // of the source; the destination gets another
			t.Run(fmt.Sprintf("%d bytes off by %d", size, shift), func(t *testing.T) {
				testOneCopy(t, setup, size, shift)
			})
		}
	}
	t.Run("all alignments", func(t *testing.T) { testAlignments(t, setup) })
	t.Run("4096 spans", func(t *testing.T) { testSpans(t, setup, 2048) })
	t.Run("4096 odd spans", func(t *testing.T) { testSpans(t, setup, 2047) })
	t.Run("4096 single bytes", func(t *testing.T) { testSpans(t, setup, 1) })
	t.Run("spans of many allocations", func(t *testing.T) { testScattered(t, setup) })
	t.Run("large and small spans", func(t *testing.T) { testMixed(t, setup) })
	t.Run("the slice is the caller's again", func(t *testing.T) {
		r := setup.open(t)
		s := r.stream()
		const n, length = 64, 16 << 10
		src, dst := r.alloc(n*length), r.alloc(n*length)
		r.fill(src, n*length, 1)
		copies := make([]gpu.Copy, 1)
		for i := range uint64(n) {
			copies[0] = gpu.Copy{Dst: dst + i*length, Src: src + i*length, Length: length}
			r.must(s.Copy(copies))
			copies[0] = gpu.Copy{Dst: dst, Src: src + length, Length: length}
		}
		r.drain(s)
		r.check(dst, n*length, 1)
	})
	t.Run("empty", func(t *testing.T) {
		r := setup.open(t)
		s := r.stream()
		r.must(s.Copy(nil))
		r.drain(s)
	})
}

// testOneCopy copies size bytes between odd places, and sees that what lies
// around them stays as it was.
func testOneCopy(t *testing.T, setup Setup, size, shift uint64) {
	r := setup.open(t)
	s := r.stream()
	const margin = 64
	src, dst := r.alloc(size+margin), r.alloc(size+2*margin)
	r.fill(src, size+margin, 1)
	r.fill(dst, size+2*margin, 2)
	to := margin + (shift*7)%16
	r.copyNow(s, gpu.Copy{Dst: dst + to, Src: src + shift, Length: size})

	want := pattern(size+2*margin, 2)
	copy(want[to:to+size], pattern(size+margin, 1)[shift:])
	got := make([]byte, len(want))
	r.must(r.d.CopyOut(got, dst))
	r.must(compare(got, want))
}

// testAlignments copies from and to each place in 16, at lengths around the width
// of a vector, in one batch.
func testAlignments(t *testing.T, setup Setup) {
	r := setup.open(t)
	s := r.stream()
	const cell = 64
	lengths := []uint64{1, 5, 16, 31, 33}
	cells := uint64(16 * 16 * len(lengths))
	src, dst := r.alloc(cells*cell), r.alloc(cells*cell)
	r.fill(src, cells*cell, 1)
	r.fill(dst, cells*cell, 2)
	from, want := pattern(cells*cell, 1), pattern(cells*cell, 2)
	var copies []gpu.Copy
	at := uint64(0)
	for _, length := range lengths {
		for a := range uint64(16) {
			for b := range uint64(16) {
				copies = append(copies, gpu.Copy{Dst: dst + at + b, Src: src + at + a, Length: length})
				copy(want[at+b:at+b+length], from[at+a:])
				at += cell
			}
		}
	}
	r.copyNow(s, copies...)
	got := make([]byte, len(want))
	r.must(r.d.CopyOut(got, dst))
	r.must(compare(got, want))
}

// testSpans gathers 4096 spans, as of a paged cache, back to back.
func testSpans(t *testing.T, setup Setup, length uint64) {
	r := setup.open(t)
	s := r.stream()
	const spans, stride = 4096, 4096
	src, dst := r.alloc(spans*stride), r.alloc(spans*length+8)
	r.fill(src, spans*stride, 1)
	r.fill(dst, spans*length+8, 2)
	from, want := pattern(spans*stride, 1), pattern(spans*length+8, 2)
	copies := make([]gpu.Copy, spans)
	for i := range uint64(spans) {
		page := (i * 1237) % spans // each page once, in no order
		copies[i] = gpu.Copy{Dst: dst + i*length, Src: src + page*stride + i%7, Length: length}
		copy(want[i*length:(i+1)*length], from[page*stride+i%7:])
	}
	r.copyNow(s, copies...)
	got := make([]byte, len(want))
	r.must(r.d.CopyOut(got, dst))
	r.must(compare(got, want))
}

// testScattered copies from many allocations in turn: the layers of a model.
func testScattered(t *testing.T, setup Setup) {
	r := setup.open(t)
	s := r.stream()
	const layers, rounds, length = 64, 16, 1024
	dst := r.alloc(layers * rounds * length)
	var src [layers]uint64
	var want []byte
	for i := range src {
		src[i] = r.alloc(rounds * length)
		r.fill(src[i], rounds*length, uint64(i))
	}
	var copies []gpu.Copy
	for round := range uint64(rounds) {
		for layer := range uint64(layers) {
			copies = append(copies, gpu.Copy{
				Dst: dst + uint64(len(copies))*length, Src: src[layer] + round*length, Length: length,
			})
			want = append(want, pattern(rounds*length, layer)[round*length:(round+1)*length]...)
		}
	}
	r.copyNow(s, copies...)
	got := make([]byte, len(want))
	r.must(r.d.CopyOut(got, dst))
	r.must(compare(got, want))
}

// testMixed has spans of all sizes in one batch: a provider may take different
// ways for large and for small ones, and what follows waits for both.
func testMixed(t *testing.T, setup Setup) {
	r := setup.open(t)
	s := r.stream()
	const total = 8 << 20
	src, dst, again := r.alloc(total), r.alloc(total), r.alloc(total)
	r.fill(src, total, 1)
	var copies []gpu.Copy
	for at, length := uint64(0), uint64(1); at < total; at += length {
		length = min(length*3%(1<<20)+1, total-at)
		copies = append(copies, gpu.Copy{Dst: dst + at, Src: src + at, Length: length})
	}
	r.must(s.Copy(copies))
	r.copyNow(s, gpu.Copy{Dst: again, Src: dst, Length: total})
	r.check(again, total, 1)
}
