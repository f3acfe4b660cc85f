package tcp

import (
	"fmt"
	"testing"

	"github.com/railhop/railhop/internal/xfer"
)

// BenchmarkBatch moves batches between two ends in this process.
func BenchmarkBatch(b *testing.B) {
	for _, bb := range []struct {
		n, size int
		op      xfer.Opcode
	}{
		{1, 4 << 10, xfer.Write},
		{1, 4 << 10, xfer.Read},
		{1024, 4 << 10, xfer.Write},
		{512, 16 << 10, xfer.Write},
		{512, 16 << 10, xfer.Read},
		{1, 1 << 20, xfer.Write},
		{1, 64 << 20, xfer.Write},
		{1, 64 << 20, xfer.Read},
	} {
		b.Run(fmt.Sprintf("%v/%dx%d", bb.op, bb.n, bb.size), func(b *testing.B) {
			var m registered
			near, far := heap(bb.n*bb.size), m.buffer(bb.n*bb.size)
			_, to := serve(b, &m)
			r := newRig(b, Options{})
			works := make([]Work, bb.n)
			for i := range works {
				at := uint64(i * bb.size)
				works[i] = Work{Op: bb.op, Local: addressOf(near) + at, Remote: addressOf(far) + at, Length: uint64(bb.size), Target: to}
			}
			r.mustRun(works...)
			b.SetBytes(int64(bb.n * bb.size))
			b.ReportAllocs()
			for b.Loop() {
				r.run(works...)
			}
		})
	}
}
