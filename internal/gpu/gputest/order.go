package gputest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
)

func testWrite(t *testing.T, setup Setup) {
	r := setup.open(t)
	if !r.d.Info().StreamMemOps {
		t.Run("unsupported", func(t *testing.T) { testNoMemOps(t, setup) })
		return
	}
	t.Run("all bits", func(t *testing.T) {
		r := setup.open(t)
		words, addr, _ := r.page()
		s := r.stream()
		last := len(words)/8 - 1
		for _, value := range []uint64{1, 1 << 63, 0x0123456789abcdef, ^uint64(0), 0} {
			r.must(s.Write64(addr+8*uint64(last), value))
			r.drain(s)
			if got := word(words, last).Load(); got != value {
				t.Errorf("word = %#x, want %#x", got, value)
			}
			if got := word(words, last-1).Load(); got != 0 {
				t.Errorf("the word before it = %#x, want 0", got)
			}
		}
	})
	for _, size := range []uint64{8, 4096, 1 << 20} {
		t.Run(fmt.Sprintf("after %d bytes", size), func(t *testing.T) { testDoorbell(t, setup, size) })
	}
	t.Run("after 4096 spans", func(t *testing.T) { testGatherDoorbell(t, setup) })
}

func testNoMemOps(t *testing.T, setup Setup) {
	r := setup.open(t)
	words, addr, _ := r.page()
	s, e := r.stream(), r.event()
	src, dst := r.alloc(4096), r.alloc(4096)
	r.fill(src, 4096, 1)
	r.must(s.Copy([]gpu.Copy{{Dst: dst, Src: src, Length: 4096}}))
	if err := s.Write64(addr, 1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Write64: err = %v, want %v", err, errors.ErrUnsupported)
	}
	r.must(s.Record(e)) // the stream is as good as before
	r.done(e)
	r.check(dst, 4096, 1)
	if got := word(words, 0).Load(); got != 0 {
		t.Errorf("word = %d, want 0", got)
	}
}

// testDoorbell queues copies, each with its number behind it, into slots of one
// arena. A watcher sees the numbers rise to the last, and at each the bytes of
// all up to it.
func testDoorbell(t *testing.T, setup Setup, size uint64) {
	const slots, laps = 18, 5
	r := setup.open(t)
	words, addr, _ := r.page()
	s := r.stream()
	src, arena := r.alloc(slots*size), r.alloc(slots*size)

	for lap := range uint64(laps) {
		for i := range uint64(slots) {
			r.fill(src+i*size, size, lap*slots+i+1)
		}
		var watched atomic.Bool
		result := make(chan error, 1)
		go func() {
			result <- watch(r.d, words, arena, size, lap*slots+1, slots, func() { watched.Store(true) })
		}()
		r.must(eventually("watcher runs", func() (bool, error) { return watched.Load(), nil }))
		for i := range uint64(slots) {
			r.must(s.Copy([]gpu.Copy{{Dst: arena + i*size, Src: src + i*size, Length: size}}))
			r.must(s.Write64(addr, lap*slots+i+1))
		}
		r.must(<-result)
	}
	r.drain(s)
}

// watch waits for the doorbell, the first of words, to rise from first to the last of
// n numbers, and compares the slots of a number with its pattern as soon as it is
// reached.
func watch(d gpu.Device, words []byte, arena, size, first, n uint64, ready func()) error {
	seen := uint64(0)
	ready()
	for next := first; next < first+n; {
		var rung uint64
		err := eventually(fmt.Sprintf("doorbell reaches %d", next), func() (bool, error) {
			rung = word(words, 0).Load()
			return rung >= next, nil
		})
		if err != nil {
			return err
		}
		if rung < seen || rung >= first+n {
			return fmt.Errorf("doorbell %d after %d: want it to rise, to %d at most", rung, seen, first+n-1)
		}
		for seen = rung; next <= rung; next++ {
			if err := check(d, arena+(next-first)*size, size, next); err != nil {
				return fmt.Errorf("doorbell %d, slot of %d: %w", rung, next, err)
			}
		}
	}
	return nil
}

// testGatherDoorbell rings after a batch of many spans, of which the last must be
// there as well as the first.
func testGatherDoorbell(t *testing.T, setup Setup) {
	const spans, length = 4096, 512
	r := setup.open(t)
	words, addr, _ := r.page()
	s := r.stream()
	src, dst := r.alloc(spans*length), r.alloc(spans*length)
	copies := make([]gpu.Copy, spans)
	for i := range copies {
		at := uint64(i * length)
		copies[i] = gpu.Copy{Dst: dst + at, Src: src + (at*1237)%(spans*length), Length: length}
	}
	for n := uint64(1); n <= 10; n++ {
		from := pattern(spans*length, n)
		r.must(r.d.CopyIn(src, from))
		r.must(s.Copy(copies))
		r.must(s.Write64(addr, n))
		r.must(eventually("doorbell rings", func() (bool, error) { return word(words, 0).Load() == n, nil }))
		got := make([]byte, spans*length)
		r.must(r.d.CopyOut(got, dst))
		for _, c := range copies {
			a, b := got[c.Dst-dst:][:length], from[c.Src-src:][:length]
			if binary.LittleEndian.Uint64(a) != binary.LittleEndian.Uint64(b) || a[length-1] != b[length-1] {
				t.Fatalf("round %d: the span at %#x is not there when the doorbell is", n, c.Dst-dst)
			}
		}
	}
}

func testEvent(t *testing.T, setup Setup) {
	t.Run("never recorded", func(t *testing.T) {
		r := setup.open(t)
		e := r.event()
		if done, err := e.Done(); !done || err != nil {
			t.Errorf("Done = %v, %v, want true", done, err)
		}
		s := r.stream()
		r.must(s.Wait(e))
		r.drain(s)
	})
	t.Run("done means copied", func(t *testing.T) {
		r := setup.open(t)
		s, e := r.stream(), r.event()
		const size = 2 << 20
		src, dst := r.alloc(size), r.alloc(size)
		for seed := range uint64(10) {
			r.fill(src, size, seed)
			r.must(s.Copy([]gpu.Copy{{Dst: dst, Src: src, Length: size}}))
			r.must(s.Record(e)) // moves the mark
			r.done(e)
			r.check(dst, size, seed)
		}
	})
	t.Run("asked by another goroutine", func(t *testing.T) {
		r := setup.open(t)
		a, b, e := r.stream(), r.stream(), r.event()
		const size = 64 << 10
		src, dst := r.alloc(size), r.alloc(size)
		stop, result := make(chan struct{}), make(chan error, 1)
		go func() {
			for {
				select {
				case <-stop:
					result <- eventually("event is done", e.Done)
					return
				default:
				}
				if _, err := e.Done(); err != nil {
					result <- err
					return
				}
			}
		}()
		for i := range 200 {
			s := a
			if i%2 == 1 {
				s = b
			}
			r.must(s.Copy([]gpu.Copy{{Dst: dst, Src: src, Length: size}}))
			r.must(s.Record(e))
		}
		close(stop)
		r.must(<-result)
		r.drain(a)
		r.drain(b)
	})
	t.Run("one stream waits for another", func(t *testing.T) {
		r := setup.open(t)
		a, b := r.stream(), r.stream()
		ab, ba := r.event(), r.event()
		const size, laps = 1 << 20, 20
		first, second, third := r.alloc(size), r.alloc(size), r.alloc(laps*size)
		var src [laps]uint64
		for i := range src {
			src[i] = r.alloc(size)
			r.fill(src[i], size, uint64(i))
		}
		// a brings each pattern into the middle, b takes it away, and neither runs
		// over the other.
		for i := range uint64(laps) {
			r.must(a.Wait(ba))
			r.must(a.Copy([]gpu.Copy{{Dst: first, Src: src[i], Length: size}}))
			r.must(a.Copy([]gpu.Copy{{Dst: second, Src: first, Length: size}}))
			r.must(a.Record(ab))
			r.must(b.Wait(ab))
			r.must(b.Copy([]gpu.Copy{{Dst: third + i*size, Src: second, Length: size}}))
			r.must(b.Record(ba))
		}
		r.done(ba)
		for i := range uint64(laps) {
			r.check(third+i*size, size, i)
		}
	})
	t.Run("closed", func(t *testing.T) {
		r := setup.open(t)
		e, err := r.d.NewEvent()
		r.must(err)
		r.must(e.Close())
		if err := r.stream().Record(e); !errors.Is(err, gpu.ErrClosed) {
			t.Errorf("Record: err = %v, want %v", err, gpu.ErrClosed)
		}
	})
}

func testStream(t *testing.T, setup Setup) {
	t.Run("idle", func(t *testing.T) {
		r := setup.open(t)
		s := r.stream()
		if idle, err := s.Idle(); !idle || err != nil {
			t.Errorf("Idle of a new stream = %v, %v, want true", idle, err)
		}
		const size = 8 << 20
		src, dst := r.alloc(size), r.alloc(size)
		for seed := range uint64(3) {
			r.fill(src, size, seed)
			r.copyNow(s, gpu.Copy{Dst: dst, Src: src, Length: size})
			r.check(dst, size, seed)
		}
	})
	t.Run("close drains", func(t *testing.T) {
		r := setup.open(t)
		s, err := r.d.NewStream()
		r.must(err)
		const size, n = 8 << 20, 8
		src, dst := r.alloc(size), r.alloc(n*size)
		r.fill(src, size, 1)
		for i := range uint64(n) {
			r.must(s.Copy([]gpu.Copy{{Dst: dst + i*size, Src: src, Length: size}}))
		}
		r.must(s.Close())
		r.check(dst+(n-1)*size, size, 1)
		r.must(s.Close()) // again is no harm
		for what, err := range map[string]error{
			"Copy":   s.Copy([]gpu.Copy{{Dst: dst, Src: src, Length: 1}}),
			"Record": s.Record(r.event()),
			"Wait":   s.Wait(r.event()),
		} {
			if !errors.Is(err, gpu.ErrClosed) {
				t.Errorf("%s on a closed stream: err = %v, want %v", what, err, gpu.ErrClosed)
			}
		}
	})
	t.Run("many", func(t *testing.T) {
		r := setup.open(t)
		const n, size = 16, 128 << 10
		src, dst := r.alloc(size), r.alloc(n*size)
		r.fill(src, size, 1)
		var streams [n]gpu.Stream
		for i := range streams {
			streams[i] = r.stream()
			r.must(streams[i].Copy([]gpu.Copy{{Dst: dst + uint64(i)*size, Src: src, Length: size}}))
		}
		for i, s := range streams {
			r.drain(s)
			r.check(dst+uint64(i)*size, size, 1)
		}
	})
}
