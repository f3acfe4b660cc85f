package softgpu

import (
	"testing"

	"github.com/railhop/railhop/internal/gpu"
)

func benchCopies(b *testing.B, spans int, length uint64) {
	_, d := open(b, Options{})
	const stride = 4096
	size := uint64(spans) * max(length, stride)
	src, dst := alloc(b, d, size), alloc(b, d, uint64(spans)*length)
	_, word := words(b, d)
	s, e := stream(b, d), event(b, d)
	copies := make([]gpu.Copy, spans)
	for i := range copies {
		at := uint64(i * 1237 % spans)
		copies[i] = gpu.Copy{Dst: dst + uint64(i)*length, Src: src + at*max(length, stride), Length: length}
	}
	b.SetBytes(int64(spans) * int64(length))
	b.ReportAllocs()
	for n := uint64(1); b.Loop(); n++ {
		if s.Copy(copies) != nil || s.Write64(word, n) != nil || s.Record(e) != nil {
			b.Fatal(s.Idle())
		}
		if err := wait(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkContiguous8MiB(b *testing.B) { benchCopies(b, 1, 8<<20) }
func BenchmarkSpans4096x2KiB(b *testing.B) { benchCopies(b, 4096, 2<<10) }
func BenchmarkOneByte(b *testing.B)        { benchCopies(b, 1, 1) }

// BenchmarkGive4096 is what the caller pays for a batch: the check of its spans
// and a copy of the list. Nobody runs the stream.
func BenchmarkGive4096(b *testing.B) {
	_, d := open(b, Options{})
	a := alloc(b, d, 8<<20)
	s := &Stream{d: d.d}
	s.wake.L = &s.mu
	copies := make([]gpu.Copy, 4096)
	for i := range copies {
		copies[i] = gpu.Copy{Dst: a + uint64(i)*16, Src: a + 4<<20 + uint64(i)*16, Length: 1}
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Copy(copies); err != nil {
			b.Fatal(err)
		}
		s.queue.unpin(0)
		s.queue.reset()
	}
}
