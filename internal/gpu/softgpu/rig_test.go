package softgpu

import (
	"os"
	"sync"
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
	return sync.OnceFunc(func() { close(gate) })
}
