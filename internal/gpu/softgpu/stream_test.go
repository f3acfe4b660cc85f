package softgpu

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

func TestCopyThenWriteThenRecord(t *testing.T) {
	_, d := open(t, Options{})
	src, dst := alloc(t, d, 1<<20), alloc(t, d, 1<<20)
	mem, word := words(t, d)
	s, e := stream(t, d), event(t, d)

	want := bytes.Repeat([]byte("railhop!"), 1<<17)
	must(t, d.CopyIn(src, want))
	must(t, s.Copy([]gpu.Copy{{Dst: dst, Src: src, Length: 1 << 20}}))
	must(t, s.Write64(word+8, 7))
	must(t, s.Record(e))
	must(t, wait(e))
	got := make([]byte, 1<<20)
	must(t, d.CopyOut(got, dst))
	if !bytes.Equal(got, want) {
		t.Error("copied bytes differ")
	}
	if mem[8] != 7 {
		t.Errorf("word = %d, want 7", mem[8])
	}
	if idle, err := s.Idle(); !idle || err != nil {
		t.Errorf("Idle = %v, %v, want true", idle, err)
	}
}

func TestBadAddressFailsTheStream(t *testing.T) {
	_, d := open(t, Options{})
	a := alloc(t, d, 8192)
	mem, word := words(t, d)
	freed, err := d.Alloc(4096)
	must(t, err)
	must(t, d.Free(freed))
	host := addressOf(mem)

	for _, tc := range []struct {
		name string
		do   func(*Stream) error
		want string
	}{
		{"destination in host memory", func(s *Stream) error { return s.Copy([]gpu.Copy{{Dst: host, Src: a, Length: 1}}) }, "destination"},
		{"source in host memory", func(s *Stream) error { return s.Copy([]gpu.Copy{{Dst: a, Src: host, Length: 1}}) }, "source"},
		{"beyond the end", func(s *Stream) error { return s.Copy([]gpu.Copy{{Dst: a, Src: a + 1, Length: 8192}}) }, "8192 bytes"},
		{"wraps", func(s *Stream) error { return s.Copy([]gpu.Copy{{Dst: a, Src: a, Length: ^uint64(0)}}) }, "destination"},
		{"freed", func(s *Stream) error { return s.Copy([]gpu.Copy{{Dst: a, Src: freed, Length: 1}}) }, "source"},
		{"null", func(s *Stream) error { return s.Copy([]gpu.Copy{{Dst: a, Src: 0, Length: 1}}) }, "source"},
		{"last of three", func(s *Stream) error {
			return s.Copy([]gpu.Copy{{Dst: a, Src: a, Length: 1}, {Dst: a, Src: a, Length: 1}, {Dst: a, Src: 8, Length: 1}})
		}, "copy 3 of 3"},
		{"write to device memory", func(s *Stream) error { return s.Write64(a, 1) }, "mapped host memory"},
		{"write across words", func(s *Stream) error { return s.Write64(word+4, 1) }, "aligned"},
		{"write past the mapping", func(s *Stream) error { return s.Write64(word+uint64(len(mem)), 1) }, "mapped host memory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, e := stream(t, d), event(t, d)
			must(t, s.Copy([]gpu.Copy{{Dst: a, Src: a + 4096, Length: 4096}}))
			must(t, s.Record(e))
			err := tc.do(s)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("err = %v, want one with %q", err, tc.want)
			}
			if err := wait(e); err != nil {
				t.Errorf("event before the failure: %v", err)
			}
			if _, got := s.Idle(); !errors.Is(got, err) {
				t.Errorf("Idle = %v, want %v", got, err)
			}
			if got := s.Record(e); !errors.Is(got, err) {
				t.Errorf("Record after the failure = %v, want %v", got, err)
			}
			for _, r := range []uint64{a, word} {
				if reg := d.d.p.memory.find(r, 1); reg != nil && reg.pins.Load() != 0 {
					t.Errorf("region %#x still has %d pins", r, reg.pins.Load())
				}
			}
		})
	}
}

// Wait means the record there was when it was called, whatever is recorded since.
func TestWaitTakesTheLastRecord(t *testing.T) {
	_, d := open(t, Options{})
	a := alloc(t, d, 4096)
	slow, fast, waiter := stream(t, d), stream(t, d), stream(t, d)
	e := event(t, d)

	must(t, fast.Record(e))
	must(t, wait(e))
	early := event(t, d)
	must(t, waiter.Wait(e)) // of the record on fast
	must(t, waiter.Record(early))

	release := hold(d)
	defer release()
	must(t, slow.Copy([]gpu.Copy{{Dst: a, Src: a + 8, Length: 8}}))
	must(t, slow.Record(e))
	if done, err := e.Done(); done || err != nil {
		t.Errorf("Done behind a copy that is held = %v, %v, want false", done, err)
	}
	must(t, wait(early))

	late, again := event(t, d), event(t, d)
	must(t, waiter.Wait(e)) // of the record on slow
	must(t, waiter.Record(late))
	must(t, fast.Record(e)) // moves e, and changes nothing for waiter
	must(t, wait(e))
	must(t, fast.Record(again))
	must(t, wait(again))
	if done, err := late.Done(); done || err != nil {
		t.Errorf("Done of what waits for the held copy = %v, %v, want false", done, err)
	}
	if idle, err := slow.Idle(); idle || err != nil {
		t.Errorf("Idle of the held stream = %v, %v, want false", idle, err)
	}
	release()
	must(t, wait(late))
}

func TestFreeWaitsForACopy(t *testing.T) {
	_, d := open(t, Options{})
	mem, word := words(t, d)
	dst := alloc(t, d, 4096)
	src, err := d.Alloc(4096)
	must(t, err)
	must(t, d.CopyIn(src, []byte("kept")))
	s := stream(t, d)
	release := hold(d)
	must(t, s.Copy([]gpu.Copy{{Dst: dst, Src: src, Length: 4096}}))
	must(t, s.Write64(word, 1))

	region := d.d.p.memory.find(src, 1)
	freed := make(chan error)
	go func() { freed <- d.Free(src) }()
	for region.pins.Load() > 0 { // until Free has begun
		runtime.Gosched()
	}
	select {
	case err := <-freed:
		t.Fatalf("Free returned (%v) under a copy", err)
	default:
	}
	if other := stream(t, d); other.Copy([]gpu.Copy{{Dst: dst, Src: src, Length: 8}}) == nil {
		t.Error("Copy from memory that is being freed: want an error")
	}
	release()
	must(t, <-freed)
	got := make([]byte, 4)
	must(t, d.CopyOut(got, dst))
	if string(got) != "kept" {
		t.Errorf("copied %q, want kept", got)
	}
	s.Close()
	if mem[0] != 1 {
		t.Errorf("word = %d, want 1", mem[0])
	}
}

func TestCloseDrainsAHeldStream(t *testing.T) {
	_, d := open(t, Options{})
	a := alloc(t, d, 4096)
	must(t, d.CopyIn(a, []byte("x")))
	s := stream(t, d)
	started, gate := make(chan struct{}), make(chan struct{})
	d.SetCopyHook(func(copies []gpu.Copy) {
		if len(copies) != 1 || copies[0].Length != 1 {
			t.Errorf("hook got %v", copies)
		}
		close(started)
		<-gate
	})
	must(t, s.Copy([]gpu.Copy{{Dst: a + 1, Src: a, Length: 1}}))
	<-started
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	select {
	case <-closed:
		t.Fatal("Close returned under a copy")
	default:
	}
	close(gate)
	must(t, <-closed)
	got := make([]byte, 2)
	must(t, d.CopyOut(got, a))
	if string(got) != "xx" {
		t.Errorf("memory = %q, want xx", got)
	}
}

func TestFailureSpreadsByWait(t *testing.T) {
	_, d := open(t, Options{})
	mem, word := words(t, d)
	first, second := stream(t, d), stream(t, d)
	e, after := event(t, d), event(t, d)
	truncated := truncatedPage(t, d)
	a := alloc(t, d, 4096)
	release := hold(d)
	must(t, first.Copy([]gpu.Copy{{Dst: a + 1, Src: a, Length: 1}}))
	must(t, first.Write64(truncated, 1)) // fails while it runs
	must(t, first.Record(e))
	must(t, second.Wait(e))
	release()
	second.Write64(word, 1)
	second.Record(after)
	second.Close()
	for name, err := range map[string]error{"event": wait(e), "second stream": second.failed()} {
		if err == nil || !strings.Contains(err.Error(), "fault") {
			t.Errorf("%s: err = %v, want a fault", name, err)
		}
	}
	if mem[0] != 0 {
		t.Error("the second stream went on")
	}
	if err := first.Write64(word, 1); err == nil {
		t.Error("write on a broken stream: want an error")
	}
}

// truncatedPage returns the address of a mapped page whose file has become empty.
func truncatedPage(t *testing.T, d *Device) uint64 {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "block"))
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(int64(os.Getpagesize())))
	mem, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	offset, unmap, err := d.MapHost(mem)
	must(t, err)
	t.Cleanup(func() {
		unmap()
		unix.Munmap(mem)
	})
	must(t, f.Truncate(0))
	return addressOf(mem) + offset
}

func TestNothingIsAllocated(t *testing.T) {
	_, d := open(t, Options{})
	const spans = 64
	src, dst := alloc(t, d, spans*64), alloc(t, d, spans*64)
	_, word := words(t, d)
	s, e := stream(t, d), event(t, d)
	other := stream(t, d)
	copies := make([]gpu.Copy, spans)
	for i := range copies {
		copies[i] = gpu.Copy{Dst: dst + uint64(i)*64, Src: src + uint64(spans-1-i)*64, Length: 64}
	}
	value := uint64(0)
	round := func() {
		value++
		err := errors.Join(s.Copy(copies), s.Write64(word, value), s.Record(e), other.Wait(e), other.Record(e))
		if err == nil {
			err = d.RecordCaller(0, e)
		}
		if err != nil {
			t.Fatal(err)
		}
		for {
			a, errA := s.Idle()
			b, errB := other.Idle()
			done, errC := e.Done()
			if err := errors.Join(errA, errB, errC); err != nil {
				t.Fatal(err)
			}
			if a && b && done {
				return
			}
			runtime.Gosched()
		}
	}
	for range 10 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations a round, want 0", n)
	}
}

func TestEmptySpans(t *testing.T) {
	_, d := open(t, Options{})
	a := alloc(t, d, 4096)
	must(t, d.CopyIn(a, []byte("xy")))
	s := stream(t, d)
	must(t, s.Copy([]gpu.Copy{{}, {Dst: a + 2, Src: a, Length: 2}, {Dst: 3, Src: ^uint64(0)}}))
	s.Close()
	must(t, s.failed())
	got := make([]byte, 4)
	must(t, d.CopyOut(got, a))
	if string(got) != "xyxy" {
		t.Errorf("memory = %q, want xyxy", got)
	}
}

// A queue that is held grows, and loses nothing.
func TestQueueGrows(t *testing.T) {
	_, d := open(t, Options{})
	mem, word := words(t, d)
	a := alloc(t, d, 8192)
	s := stream(t, d)
	release := hold(d)
	must(t, d.CopyIn(a, bytes.Repeat([]byte{1}, 1)))
	const n = 4000
	for i := range uint64(n) {
		must(t, s.Copy([]gpu.Copy{{Dst: a + i + 1, Src: a + i, Length: 1}}))
		must(t, s.Write64(word, i+1))
	}
	release()
	s.Close()
	got := make([]byte, n+1)
	must(t, d.CopyOut(got, a))
	if !bytes.Equal(got, bytes.Repeat([]byte{1}, n+1)) {
		t.Error("the byte did not reach the end")
	}
	if v := uint64(mem[0]) | uint64(mem[1])<<8; v != n {
		t.Errorf("word = %d, want %d", v, n)
	}
}
