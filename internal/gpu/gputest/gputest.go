// Package gputest is the suite that every GPU provider passes: the contracts of
// package gpu, as tests.
//
// It knows the seam alone, and what a [Setup] says of a provider. A test binary
// that runs it calls [Child] first in its TestMain: memory is shared with a second
// process, which is the same binary started anew. It owns no provider and no
// device; whatever a test opens it closes, and a leak fails the test.
//
// Threads: each test runs on the goroutine that called it; some add one that
// watches a word.
package gputest

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

// patience is how long the suite waits for what must happen before it says that
// it did not.
const patience = 60 * time.Second

// Setup describes a provider under test. Only Provider must be given; tests that
// need what is nil are skipped.
type Setup struct {
	// Provider is under test. The child has its own, from [Child].
	Provider gpu.Provider
	// BusID is the device to use; "" means the first.
	BusID string
	// Caller returns a stream as a user of the engine has one, with its handle.
	// The suite closes it.
	Caller func(gpu.Device) (handle uint64, s gpu.Stream, err error)
	// Capturing returns the handle of a stream that is being captured, until end
	// is called.
	Capturing func(gpu.Device) (handle uint64, end func(), err error)
	// Live returns what lives on the device in this process, in words, and "" if
	// that is nothing.
	Live func(gpu.Device) string
}

// Run runs the suite.
func Run(t *testing.T, setup Setup) {
	for _, group := range []struct {
		name string
		test func(*testing.T, Setup)
	}{
		{"Devices", testDevices},
		{"Memory", testMemory},
		{"Classify", testClassify},
		{"Copy", testCopy},
		{"Write64", testWrite},
		{"Event", testEvent},
		{"Stream", testStream},
		{"Caller", testCaller},
		{"Peer", testPeer},
	} {
		t.Run(group.name, func(t *testing.T) { group.test(t, setup) })
	}
}

// rig is a device for one test, with helpers that fail the test and clean up.
type rig struct {
	testing.TB
	p gpu.Provider
	d gpu.Device
}

// open opens the device under test for one test.
func (s Setup) open(tb testing.TB) *rig {
	tb.Helper()
	d, err := s.Provider.Open(s.busID(tb))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if s.Live != nil {
			if live := s.Live(d); live != "" {
				tb.Errorf("left behind on the device: %s", live)
			}
		}
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &rig{TB: tb, p: s.Provider, d: d}
}

func (s Setup) busID(tb testing.TB) string {
	tb.Helper()
	if s.BusID != "" {
		return s.BusID
	}
	devices, err := s.Provider.Devices()
	if err != nil {
		tb.Fatal(err)
	}
	if len(devices) == 0 {
		tb.Fatal("no devices")
	}
	return devices[0].BusID
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) alloc(size uint64) uint64 {
	r.Helper()
	addr, err := r.d.Alloc(size)
	r.must(err)
	r.Cleanup(func() {
		if err := r.d.Free(addr); err != nil {
			r.Error(err)
		}
	})
	return addr
}

func (r *rig) stream() gpu.Stream {
	r.Helper()
	s, err := r.d.NewStream()
	r.must(err)
	r.Cleanup(func() {
		if err := s.Close(); err != nil {
			r.Error(err)
		}
	})
	return s
}

func (r *rig) event() gpu.Event {
	r.Helper()
	e, err := r.d.NewEvent()
	r.must(err)
	r.Cleanup(func() {
		if err := e.Close(); err != nil {
			r.Error(err)
		}
	})
	return e
}

// page returns a page of host memory, shared with the children that get its file,
// and the address at which streams reach it.
func (r *rig) page() (words []byte, addr uint64, file *os.File) {
	r.Helper()
	fd, err := unix.MemfdCreate("gputest", unix.MFD_CLOEXEC)
	r.must(err)
	file = os.NewFile(uintptr(fd), "gputest")
	r.Cleanup(func() { file.Close() })
	r.must(file.Truncate(int64(os.Getpagesize())))
	words, err = mapPage(file)
	r.must(err)
	r.Cleanup(func() { unix.Munmap(words) })
	offset, unmap, err := r.d.MapHost(words)
	r.must(err)
	r.Cleanup(func() {
		if err := unmap(); err != nil {
			r.Error(err)
		}
	})
	return words, addressOf(words) + offset, file
}

func mapPage(file *os.File) ([]byte, error) {
	return unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// fill writes the pattern of seed to device memory.
func (r *rig) fill(addr, length, seed uint64) {
	r.Helper()
	r.must(fill(r.d, addr, length, seed))
}

// check compares device memory with the pattern of seed.
func (r *rig) check(addr, length, seed uint64) {
	r.Helper()
	if err := check(r.d, addr, length, seed); err != nil {
		r.Error(err)
	}
}

// copyNow runs copies on s and waits for them.
func (r *rig) copyNow(s gpu.Stream, copies ...gpu.Copy) {
	r.Helper()
	r.must(s.Copy(copies))
	r.drain(s)
}

// drain waits until s is idle.
func (r *rig) drain(s gpu.Stream) {
	r.Helper()
	r.must(eventually("stream is idle", s.Idle))
}

// done waits for e.
func (r *rig) done(e gpu.Event) {
	r.Helper()
	r.must(eventually("event is done", e.Done))
}

// eventually asks until the answer is yes or an error.
func eventually(what string, ask func() (bool, error)) error {
	deadline := time.Now().Add(patience)
	for n := 0; ; n++ {
		if yes, err := ask(); err != nil || yes {
			return err
		}
		if n > 1000 {
			time.Sleep(100 * time.Microsecond)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v", what, patience)
		}
	}
}

func testDevices(t *testing.T, setup Setup) {
	t.Run("list", func(t *testing.T) {
		devices, err := setup.Provider.Devices()
		if err != nil {
			t.Fatal(err)
		}
		shape := regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
		seen := make(map[string]bool)
		for i, info := range devices {
			if info.Index != i {
				t.Errorf("device %d has index %d", i, info.Index)
			}
			if !shape.MatchString(info.BusID) || seen[info.BusID] {
				t.Errorf("device %d has bus id %q: want one of its own, in lower case", i, info.BusID)
			}
			if info.NUMA < -1 {
				t.Errorf("device %d is on node %d", i, info.NUMA)
			}
			seen[info.BusID] = true
			d, err := setup.Provider.Open(info.BusID)
			if err != nil {
				t.Fatal(err)
			}
			if got := d.Info(); got != info {
				t.Errorf("Info = %+v, want %+v as listed", got, info)
			}
			if !d.PeerAtomics(info.BusID) {
				t.Errorf("PeerAtomics(%s) of the device itself is false", info.BusID)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		if len(devices) == 0 {
			t.Error("no devices")
		}
	})
	t.Run("unknown", func(t *testing.T) {
		for _, id := range []string{"", "ffff:ff:1f.7", "nonsense"} {
			if _, err := setup.Provider.Open(id); !errors.Is(err, gpu.ErrNoDevice) {
				t.Errorf("Open(%q): err = %v, want %v", id, err, gpu.ErrNoDevice)
			}
		}
	})
	t.Run("links", func(t *testing.T) {
		l, ok := setup.Provider.(gpu.Linker)
		if !ok {
			t.Skip("the provider does not know of links")
		}
		devices, err := setup.Provider.Devices()
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range devices {
			d, err := setup.Provider.Open(from.BusID)
			if err != nil {
				t.Fatal(err)
			}
			for _, to := range devices {
				link, err := l.Link(from.BusID, to.BusID)
				if err != nil || link.Atomics != d.PeerAtomics(to.BusID) || from == to && !link.Access {
					t.Errorf("Link(%s, %s) = %+v, %v; PeerAtomics %v", from.BusID, to.BusID, link, err, d.PeerAtomics(to.BusID))
				}
			}
			if _, err := l.Link(from.BusID, "ffff:ff:1f.7"); !errors.Is(err, gpu.ErrNoDevice) {
				t.Errorf("Link to a device that is not there: err = %v, want %v", err, gpu.ErrNoDevice)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("opened twice", func(t *testing.T) {
		a, b := setup.open(t), setup.open(t)
		addr := a.alloc(4096)
		b.fill(addr, 4096, 1)
		a.check(addr, 4096, 1)
	})
}
