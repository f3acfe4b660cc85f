package softgpu

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

// device is the state that all who opened one bus id share.
type device struct {
	p        *Provider
	id       busID
	info     gpu.Info
	peer     bool
	maxBytes uint64

	opens atomic.Int64
	fatal atomic.Pointer[failure]
	hosts table // of MapHost

	allocs, imports, hostMaps, streams, events atomic.Int64

	copyHook  atomic.Pointer[func([]gpu.Copy)]
	writeHook atomic.Pointer[func(addr, value uint64)]

	mu      sync.Mutex
	used    uint64             // bytes allocated
	callers map[uint64]*Stream // caller streams, by handle
	threads map[int]*Stream    // default streams, by OS thread
	handles uint64             // given out so far
}

// failure is an error in a word that can be swapped.
type failure struct{ err error }

func newDevice(p *Provider, index int, id busID, c DeviceConfig) *device {
	return &device{
		p: p, id: id, peer: c.PeerAtomics, maxBytes: c.MaxBytes,
		info: gpu.Info{
			Index: index, BusID: c.BusID, HostIndex: c.Index, Name: "soft GPU", NUMA: c.NUMA,
			StreamMemOps: c.StreamMemOps, BatchedCopy: c.BatchedCopy, IPC: true, DirectRDMA: true,
		},
		callers: make(map[uint64]*Stream),
		threads: make(map[int]*Stream),
	}
}

func (d *device) fatalErr() error {
	if f := d.fatal.Load(); f != nil {
		return f.err
	}
	return nil
}

// Device is an opened device. Its methods may be called by any goroutine.
type Device struct {
	d      *device
	closed atomic.Bool
}

var _ gpu.Device = (*Device)(nil)

// check returns why nothing can be done on the device any more, or nil.
func (h *Device) check(step string) error {
	if h.closed.Load() {
		return fmt.Errorf("softgpu: %s on %s: %w", step, h.d.info.BusID, gpu.ErrClosed)
	}
	if err := h.d.fatalErr(); err != nil {
		return fmt.Errorf("softgpu: %s: %w", step, err)
	}
	return nil
}

// Info describes the device.
func (h *Device) Info() gpu.Info { return h.d.info }

// PeerAtomics reports whether busID is this device, or any other while the
// configuration says so.
func (h *Device) PeerAtomics(busID string) bool {
	if busID == h.d.info.BusID {
		return true
	}
	_, err := parseBusID(busID)
	return err == nil && h.d.peer
}

// MapHost makes mem a target of Write64. The offset is 0. It fails if mem is not
// whole pages or is mapped for this device already. unmap waits for the writes
// that are underway.
func (h *Device) MapHost(mem []byte) (offset uint64, unmap func() error, err error) {
	if err := h.check("map host memory"); err != nil {
		return 0, nil, err
	}
	page := uint64(unix.Getpagesize())
	r := newRegion(h.d, mem, uint64(len(mem)), "", -1)
	if len(mem) == 0 || r.base%page != 0 || r.size%page != 0 {
		return 0, nil, fmt.Errorf("softgpu: map host memory: %d bytes at %#x: want whole pages of %d", r.size, r.base, page)
	}
	if !h.d.hosts.add(r) {
		return 0, nil, fmt.Errorf("softgpu: map host memory: some of %d bytes at %#x is mapped already", r.size, r.base)
	}
	h.d.hostMaps.Add(1)
	unmap = func() error {
		if h.d.hosts.remove(r.base, func(found *region) bool { return found == r }) == nil {
			return fmt.Errorf("softgpu: unmap host memory at %#x: %w", r.base, gpu.ErrClosed)
		}
		r.drain()
		r.mem = nil // not ours to look at any more
		h.d.hostMaps.Add(-1)
		return nil
	}
	return 0, unmap, nil
}

// Fail loses the device, as a fault in a kernel would: from now on its
// operations fail with [gpu.ErrFatal] and err. What is to be freed is freed all the
// same. Only the first call counts.
func (h *Device) Fail(err error) {
	f := &failure{err: fmt.Errorf("%s: %w: %w", h.d.info.BusID, gpu.ErrFatal, err)}
	if h.d.fatal.CompareAndSwap(nil, f) {
		h.d.p.log.Warn("softgpu: device lost", "device", h.d.info.BusID, "cause", err)
	}
}

// SetCopyHook has every stream of the device call hook before a batch of
// copies, in the background, with the batch, which it must not keep. While it blocks, the copies are in
// progress. Nil means none.
func (h *Device) SetCopyHook(hook func([]gpu.Copy)) {
	if hook == nil {
		h.d.copyHook.Store(nil)
		return
	}
	h.d.copyHook.Store(&hook)
}

// SetWriteHook is SetCopyHook for Write64.
func (h *Device) SetWriteHook(hook func(addr, value uint64)) {
	if hook == nil {
		h.d.writeHook.Store(nil)
		return
	}
	h.d.writeHook.Store(&hook)
}

// Counts is what lives on a device, in this process.
type Counts struct {
	Allocs, Imports, HostMaps int
	Streams, Events           int // without the threads' default streams
}

// Counts returns what lives on the device now, whoever opened it.
func (h *Device) Counts() Counts { return h.d.counts() }

func (d *device) counts() Counts {
	return Counts{
		Allocs: int(d.allocs.Load()), Imports: int(d.imports.Load()), HostMaps: int(d.hostMaps.Load()),
		Streams: int(d.streams.Load()), Events: int(d.events.Load()),
	}
}

// Close gives the device back. The last to do so learns in the error what still
// lives on it, which stays as it is: a peer or a NIC may be using it.
func (h *Device) Close() error {
	if h.closed.Swap(true) || h.d.opens.Add(-1) > 0 {
		return nil
	}
	h.d.closeThreads()
	if c := h.d.counts(); c != (Counts{}) {
		return fmt.Errorf("softgpu: close %s: still open: %d allocations, %d imports, %d host mappings, %d streams, %d events",
			h.d.info.BusID, c.Allocs, c.Imports, c.HostMaps, c.Streams, c.Events)
	}
	return nil
}
