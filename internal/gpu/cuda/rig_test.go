package cuda

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

func alloc(t testing.TB, d *Device, size uint64) uint64 {
	t.Helper()
	at, err := d.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Free(at); err != nil {
			t.Error(err)
		}
	})
	return at
}

func newStream(t testing.TB, d *Device) *Stream {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.(*Stream)
}

func newEvent(t testing.TB, d *Device) gpu.Event {
	t.Helper()
	e, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// mapPage returns a page of host memory and the address at which streams reach it.
func mapPage(t testing.TB, d *Device) (words []byte, at uint64, unmap func()) {
	t.Helper()
	words, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	offset, undo, err := d.MapHost(words)
	if err != nil {
		t.Fatal(err)
	}
	return words, addressOf(words) + offset, func() {
		if err := undo(); err != nil {
			t.Error(err)
		}
		unix.Munmap(words)
	}
}
