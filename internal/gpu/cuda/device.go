package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/railhop/railhop/internal/dl"
	"github.com/railhop/railhop/internal/gpu"
)

// device is the state that all who opened one bus id share.
type device struct {
	p               *Provider
	ordinal         int32 // CUdevice
	blocks          int   // of the gather kernel, at most
	multiprocessors int
	engineBytes     uint64   // from which on a run is for a copy engine
	write64         dl.Proc  // none if there are no stream memory operations
	info            gpu.Info // but for what opening disproves
	context         atomic.Uint64
	lost            atomic.Pointer[failure]
	hosts           hosts
	stats           stats

	allocs, imports, hostMaps, streams, events atomic.Int64

	noWrites, noKernel atomic.Bool // disproved when it was opened

	mu       sync.Mutex
	opens    int
	memory   map[uint64]*allocation // of Alloc, by address
	foreign  map[uint64]int         // of Import: how often
	module   uint64
	kernel   uint64 // CUfunction; 0 means copy engines only
	priority int32  // of new streams
	tables   []*table
	stagings []*staging
}

type allocation struct {
	size     uint64
	handle   gpu.Handle
	exported bool
}

// failure is an error in a word that can be swapped.
type failure struct{ err error }

func newDevice(p *Provider, ordinal int32) *device {
	return &device{p: p, ordinal: ordinal, memory: make(map[uint64]*allocation), foreign: make(map[uint64]int)}
}

// describe returns what is known of the device now.
func (d *device) describe() gpu.Info {
	info := d.info
	info.StreamMemOps = info.StreamMemOps && !d.noWrites.Load()
	info.BatchedCopy = info.BatchedCopy && !d.noKernel.Load()
	return info
}

// lose notes that the device's context is gone.
func (d *device) lose(err error) {
	f := &failure{err: fmt.Errorf("device %s: %w: %w", d.info.BusID, gpu.ErrFatal, err)}
	if d.lost.CompareAndSwap(nil, f) {
		d.p.log.Warn("GPU lost: nothing works on it any more in this process", "device", d.info.BusID, "cause", err)
	}
}

func (d *device) lostErr() error {
	if f := d.lost.Load(); f != nil {
		return f.err
	}
	return nil
}

// enter makes the device's context current on the calling thread, and its capture
// mode relaxed, until leave. Without the second, a capture in global mode on
// another thread would be broken by calls that may not be captured.
func (d *device) enter(f *frame) error {
	drv := d.p.drv
	f.lock()
	if code := f.callOut(drv.ctxGetCurrent); code != success {
		f.unlock()
		return d.check("cuCtxGetCurrent", code)
	}
	f.context = f.word
	if ctx := d.context.Load(); f.context != ctx {
		if code := f.call(drv.ctxSetCurrent, uintptr(ctx)); code != success {
			f.unlock()
			return d.check("cuCtxSetCurrent", code)
		}
	}
	f.mode = captureRelaxed
	if code := f.call(drv.exchangeCaptureMode, addr(&f.mode)); code != success {
		f.mode = captureRelaxed // nothing to restore
		d.leave(f)
		return d.check("cuThreadExchangeStreamCaptureMode", code)
	}
	return nil
}

// leave restores what enter has changed. A thread that is about to have its old
// context back cannot be told of an error.
func (d *device) leave(f *frame) {
	drv := d.p.drv
	if f.mode != captureRelaxed {
		f.call(drv.exchangeCaptureMode, addr(&f.mode))
	}
	if f.context != d.context.Load() {
		f.call(drv.ctxSetCurrent, uintptr(f.context))
	}
	f.unlock()
}

// do runs calls in the device's context.
func (d *device) do(calls func(f *frame) error) error {
	if err := d.lostErr(); err != nil {
		return err
	}
	f, err := d.p.frames.get()
	if err != nil {
		return err
	}
	defer d.p.frames.put(f)
	if err := d.enter(f); err != nil {
		return err
	}
	defer d.leave(f)
	return calls(f)
}

// Attach makes the device's context current on the calling OS thread, to which the
// goroutine is locked, and its capture mode relaxed, until detach is called there.
// Every call on that thread is then faster: it finds both as it needs them.
func (h *Device) Attach() (detach func() error, err error) {
	d := h.d
	f, err := d.p.frames.get()
	if err != nil {
		return nil, err
	}
	if h.closed.Load() {
		err = gpu.ErrClosed
	} else if err = d.lostErr(); err == nil {
		err = d.enter(f)
	}
	if err != nil {
		d.p.frames.put(f)
		return nil, d.wrap("attach", err)
	}
	return func() error {
		if f == nil {
			return d.wrap("detach", gpu.ErrClosed)
		}
		d.leave(f)
		d.p.frames.put(f)
		f = nil
		return nil
	}, nil
}

// free is do for what gives something back. With the context lost there is nothing
// left to give.
func (d *device) free(calls func(f *frame) error) error {
	if d.lostErr() != nil {
		return nil
	}
	return d.do(calls)
}

// Device is an opened device. Its methods may be called by any goroutine.
type Device struct {
	d      *device
	closed atomic.Bool
}

var (
	_ gpu.Device   = (*Device)(nil)
	_ gpu.Attacher = (*Device)(nil)
)

// do is the device's, while this is open.
func (h *Device) do(step string, calls func(f *frame) error) error {
	err := error(gpu.ErrClosed)
	if !h.closed.Load() {
		err = h.d.do(calls)
	}
	return h.d.wrap(step, err)
}

// wrap says what was being done, and on which device.
func (d *device) wrap(step string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cuda: %s on %s: %w", step, d.info.BusID, err)
}

// Info describes the device.
func (h *Device) Info() gpu.Info { return h.d.describe() }

// allocUnit is what allocations are rounded up to. The driver cuts smaller ones from
// blocks of this size, and a handle is for the whole block: a peer would see what
// else is there, and could import it when what was exported is gone.
const allocUnit = 2 << 20

// Alloc allocates device memory that can be exported, which memory of the driver's
// pools cannot.
func (h *Device) Alloc(size uint64) (at uint64, err error) {
	if size == 0 {
		return 0, fmt.Errorf("cuda: alloc on %s: 0 bytes: want at least 1", h.d.info.BusID)
	}
	rounded := (size + allocUnit - 1) / allocUnit * allocUnit
	err = h.do("alloc", func(f *frame) error {
		if err := h.d.check("cuMemAlloc", f.callOut(h.d.p.drv.memAlloc, uintptr(max(size, rounded)))); err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
		at = f.word
		return nil
	})
	if err != nil {
		return 0, err
	}
	h.d.mu.Lock()
	h.d.memory[at] = &allocation{size: size}
	h.d.mu.Unlock()
	h.d.allocs.Add(1)
	return at, nil
}

// within reports whether a range that the driver has found to be in one allocation is
// not in the rest of one that was rounded up.
func (d *device) within(start, end uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for at, a := range d.memory {
		if start < at+(a.size+allocUnit-1)/allocUnit*allocUnit && end > at+a.size && start >= at {
			return false
		}
	}
	return true
}

// Free frees what Alloc returned, and refuses any other address.
func (h *Device) Free(at uint64) error {
	d := h.d
	d.mu.Lock()
	a := d.memory[at]
	delete(d.memory, at)
	d.mu.Unlock()
	if a == nil {
		return d.wrap("free", fmt.Errorf("%#x is not the start of an allocation", at))
	}
	d.allocs.Add(-1)
	return d.wrap("free", d.free(func(f *frame) error {
		return d.check("cuMemFree", f.call(d.p.drv.memFree, uintptr(at)))
	}))
}

// Export returns a handle for what Alloc returned.
func (h *Device) Export(at uint64) (gpu.Handle, error) {
	d := h.d
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.memory[at]
	if a == nil {
		return gpu.Handle{}, d.wrap("export", fmt.Errorf("%#x is not the start of an allocation", at))
	}
	if a.exported {
		return a.handle, nil
	}
	err := h.do("export", func(f *frame) error {
		if err := d.check("cuIpcGetMemHandle", f.call(d.p.drv.ipcGetMemHandle, addr(&f.handle), uintptr(at))); err != nil {
			return err
		}
		a.handle, a.exported = f.handle, true
		return nil
	})
	return a.handle, err
}

// Import maps a peer process's allocation for this device, wherever it lies, so that
// no context appears on the owner's.
func (h *Device) Import(handle gpu.Handle, size uint64) (at uint64, err error) {
	d := h.d
	err = h.do("import", func(f *frame) error {
		f.handle = handle
		f.word = 0
		if code := openHandle(f, d.p.drv.ipcOpenMemHandle, ipcLazyPeerAccess); code != success {
			// Here "invalid context" says that the handle is of this process.
			if fatalCodes[code] && code != errInvalidContext {
				return d.check("cuIpcOpenMemHandle", code)
			}
			return fmt.Errorf("%w: %w", gpu.ErrHandle, benign{d.p.check("cuIpcOpenMemHandle", code)})
		}
		at = f.word
		err := d.check("cuMemGetAddressRange", f.call(d.p.drv.memGetAddressRange, addr(&f.pair[0]), addr(&f.pair[1]), uintptr(at)))
		if have := f.pair[0] + f.pair[1] - at; err == nil && have < size {
			err = fmt.Errorf("%w: it has %d bytes, want %d", gpu.ErrHandle, have, size)
		}
		if err != nil {
			f.call(d.p.drv.ipcCloseMemHandle, uintptr(at))
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	d.foreign[at]++
	d.mu.Unlock()
	d.imports.Add(1)
	return at, nil
}

// benign hides that an error's code would be fatal elsewhere.
type benign struct{ err error }

func (b benign) Error() string { return b.err.Error() }

// CloseImport unmaps what Import returned, and refuses any other address.
func (h *Device) CloseImport(at uint64) error {
	d := h.d
	d.mu.Lock()
	n := d.foreign[at]
	if d.foreign[at] = n - 1; n <= 1 {
		delete(d.foreign, at)
	}
	d.mu.Unlock()
	if n == 0 {
		return d.wrap("close import", fmt.Errorf("%#x is not an import", at))
	}
	d.imports.Add(-1)
	return d.wrap("close import", d.free(func(f *frame) error {
		return d.check("cuIpcCloseMemHandle", f.call(d.p.drv.ipcCloseMemHandle, uintptr(at)))
	}))
}

// PeerAtomics reports whether busID is this device, or another that the driver says
// this one has native atomics to: over NVLink. A device that the process does not
// see is none.
func (h *Device) PeerAtomics(busID string) bool {
	l, err := h.d.p.Link(h.d.info.BusID, busID)
	return err == nil && l.Atomics
}

// Counts is what lives on a device, in this process.
type Counts struct {
	Allocs, Imports, HostMaps int
	Streams, Events           int
}

// Counts returns what lives on the device now, whoever opened it.
func (h *Device) Counts() Counts {
	d := h.d
	return Counts{
		Allocs: int(d.allocs.Load()), Imports: int(d.imports.Load()), HostMaps: int(d.hostMaps.Load()),
		Streams: int(d.streams.Load()), Events: int(d.events.Load()),
	}
}

// Close gives the device back. The last to do so learns in the error what still
// lives on it, which stays as it is, context and all: a peer or a NIC may be using it.
func (h *Device) Close() error {
	if h.closed.Swap(true) {
		return nil
	}
	d := h.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opens--; d.opens > 0 {
		return nil
	}
	if c := h.Counts(); c != (Counts{}) {
		return d.wrap("close", fmt.Errorf("still open: %d allocations, %d imports, %d host mappings, %d streams, %d events",
			c.Allocs, c.Imports, c.HostMaps, c.Streams, c.Events))
	}
	return d.wrap("close", d.stop())
}

// errNoMemOps is what Write64 fails with where it does not work.
var errNoMemOps = fmt.Errorf("cuda: write: the device has no stream memory operations: %w", errors.ErrUnsupported)
