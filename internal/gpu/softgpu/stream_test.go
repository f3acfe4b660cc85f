package softgpu

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

// open returns a device of a new provider, whose counts must be back to zero
// when the test ends.
func open(t testing.TB, opts Options) (*Provider, *Device) {
	t.Helper()
	p, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return p, openOn(t, p, 0)
}

func openOn(t testing.TB, p *Provider, index int) *Device {
	t.Helper()
	d, err := p.Open(p.devices[index].info.BusID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d.(*Device)
}

func alloc(t testing.TB, d *Device, size uint64) uint64 {
	t.Helper()
	addr, err := d.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Free(addr) })
	return addr
}

func stream(t testing.TB, d *Device) *Stream {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.(*Stream)
}

func event(t testing.TB, d *Device) *Event {
	t.Helper()
	e, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e.(*Event)
}

// words returns a page of host memory that is mapped for d, and its address.
func words(t testing.TB, d *Device) ([]byte, uint64) {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	offset, unmap, err := d.MapHost(mem)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unmap()
		unix.Munmap(mem)
	})
	return mem, addressOf(mem) + offset
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wait returns the event's error once it is done.
func wait(e *Event) error {
	if s, position := e.last(); s != nil {
		s.await(position)
	}
	_, err := e.Done()
	return err
}

// hold makes the device's copies block until the function returned is called.
func hold(d *Device) (release func()) {
	gate := make(chan struct{})
	d.SetCopyHook(func([]gpu.Copy) { <-gate })
	var once atomic.Bool
	return func() {
		if !once.Swap(true) {
			close(gate)
		}
	}
}

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
