// Package cuda drives NVIDIA GPUs through the CUDA driver's own library, loaded
// when it is first asked for: the provider "cuda" of package gpu.
//
// It owns the driver's functions, error numbers and structs, none of which leave
// it; the gather kernel (gather.cu, carried as PTX); and pinned memory for both. It
// owns no policy and reads no environment.
//
//	Provider -- the library, the devices that it shows
//	   |-- device, one a bus id: primary context, kernel, what is allocated
//	          |-- Device, one an Open
//	                 |-- Stream: copy engines for long runs, the kernel for short ones
//
// The model comes first. A process that uses this package runs a model on the same
// device and in the same context, so each call leaves the calling thread's current
// context as it was, works in relaxed capture mode (or a graph capture on another
// thread would fail), and never names the legacy stream, which waits for all others.
//
// Threads: the package starts none. A call is made on the caller's OS thread, to
// which the goroutine is locked meanwhile.
package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/railhop/railhop/internal/dl"
	"github.com/railhop/railhop/internal/gpu"
)

// Doorbell is who stores the word of a [gpu.Ringer].
type Doorbell uint8

const (
	// StreamDoorbell: a stream memory operation, behind the copies.
	StreamDoorbell Doorbell = iota
	// KernelDoorbell: the gather kernel itself, where a batch ends with it; about
	// two microseconds less.
	KernelDoorbell
)

// Options configures a [Provider]. The zero value is ready for use.
type Options struct {
	// Library is the driver's library; "" means libcuda.so.1.
	Library string
	// GatherBlocks is how many blocks a launch of the gather kernel has at most, each of
	// which takes a multiprocessor while it runs. Zero means 4; more than the device has
	// means all.
	GatherBlocks int
	// EngineBytes is the length from which on a contiguous run goes to a copy engine.
	// Zero means where that is as fast as one launch of the kernel: about 700 KiB with
	// 4 blocks.
	EngineBytes uint64
	// Streams is how many CUDA streams long operations that follow each other take
	// turns on, 32 at most. Zero means 6. Launches of the gather kernel are such
	// operations too, each of GatherBlocks blocks.
	Streams int
	// NoKernel leaves all copies to the copy engines.
	NoKernel bool
	// Doorbell is who rings for a stream's CopyWrite64.
	Doorbell Doorbell
	// LowPriority gives streams the device's least priority, which is what a model's have
	// if it does not say, not the greatest. The driver shares a few queues among all
	// streams of one priority: a launch may then wait for all that the model has queued.
	LowPriority bool
	// Sysfs is where sysfs is mounted; "" means /sys.
	Sysfs string
	// Logger takes life-cycle messages. Nil means none.
	Logger *slog.Logger
}

const defaultBlocks = 4

func (o Options) withDefaults() Options {
	if o.Library == "" {
		o.Library = "libcuda.so.1"
	}
	if o.GatherBlocks <= 0 {
		o.GatherBlocks = defaultBlocks
	}
	if o.Streams = min(o.Streams, 32); o.Streams <= 0 {
		o.Streams = defaultStreams
	}
	if o.Sysfs == "" {
		o.Sysfs = "/sys"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Provider is the devices that the driver shows this process. Its methods may be
// called by any goroutine.
type Provider struct {
	opts    Options
	log     *slog.Logger
	drv     *driver
	frames  frames
	devices []*device
}

var (
	_ gpu.Provider = (*Provider)(nil)
	_ gpu.Linker   = (*Provider)(nil)
)

// Open loads the driver and lists its devices. It creates no context. Where there
// is no driver, or none of its devices is visible, the error wraps
// [errors.ErrUnsupported].
func Open(opts Options) (*Provider, error) {
	opts = opts.withDefaults()
	lib, err := dl.Open(opts.Library)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	p := &Provider{opts: opts, log: opts.Logger}
	f, err := p.frames.get()
	if err != nil {
		return nil, err
	}
	defer p.frames.put(f)
	if p.drv, err = load(lib, f); err != nil {
		return nil, err
	}
	if err := p.list(f); err != nil {
		return nil, err
	}
	p.log.Info("CUDA driver loaded", "version", p.drv.version, "devices", len(p.devices))
	return p, nil
}

// list fills in the devices.
func (p *Provider) list(f *frame) error {
	n, err := p.out32(f, "cuDeviceGetCount", p.drv.deviceGetCount)
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("cuda: the driver shows no device: %w", errors.ErrUnsupported)
	}
	for i := range int(n) {
		d, err := p.describe(f, i)
		if err != nil {
			return fmt.Errorf("cuda: device %d: %w", i, err)
		}
		p.devices = append(p.devices, d)
	}
	return nil
}

// describe asks what can be known of a device without a context.
func (p *Provider) describe(f *frame, index int) (*device, error) {
	drv := p.drv
	ordinal, err := p.out32(f, "cuDeviceGet", drv.deviceGet, uintptr(index))
	if err != nil {
		return nil, err
	}
	d := newDevice(p, ordinal)
	d.info = gpu.Info{Index: index}
	if err := p.check("cuDeviceGetName", f.call(drv.deviceGetName, f.textAddr(), textBytes, uintptr(ordinal))); err != nil {
		return nil, err
	}
	d.info.Name = f.string()
	if err := p.check("cuDeviceGetPCIBusId", f.call(drv.deviceGetPCIBusID, f.textAddr(), textBytes, uintptr(ordinal))); err != nil {
		return nil, err
	}
	d.info.BusID = strings.ToLower(f.string())
	d.info.NUMA = numaNode(p.opts.Sysfs, d.info.BusID)
	d.info.HostIndex = hostIndex(p.opts.Sysfs, d.info.BusID)

	var attrs [9]int32
	for i, a := range []uintptr{
		attrMultiprocessors, attrMajor, attrMinor, attrStreamWrite64, attrStreamWrite64V1,
		attrUnifiedAddressing, attrIPC, attrDirectRDMA, attrDMABuf,
	} {
		// A driver that does not know an attribute does not have the feature.
		if v, err := p.out32(f, "cuDeviceGetAttribute", drv.deviceGetAttribute, a, uintptr(ordinal)); err == nil {
			attrs[i] = v
		}
	}
	d.info.IPC = attrs[6] == 1 || drv.version < ipcDriver && attrs[5] == 1
	d.info.DirectRDMA, d.info.DMABuf = attrs[7] == 1, attrs[8] == 1
	d.multiprocessors = max(1, int(attrs[0]))
	d.blocks = min(p.opts.GatherBlocks, d.multiprocessors)
	if d.engineBytes = p.opts.EngineBytes; d.engineBytes == 0 {
		d.engineBytes = engineBytes(d.blocks)
	}
	switch {
	case attrs[3] == 1 && drv.streamWriteValue64V2.Found():
		d.write64 = drv.streamWriteValue64V2
	case attrs[4] == 1 && drv.streamWriteValue64.Found():
		d.write64 = drv.streamWriteValue64
	}
	// Both are proved when the device is opened.
	d.info.StreamMemOps = d.write64.Found()
	d.info.BatchedCopy = !p.opts.NoKernel && drv.version >= kernelDriver && int(attrs[1])*10+int(attrs[2]) >= kernelTarget
	return d, nil
}

// out32 makes a call whose first argument is where it puts an int.
func (p *Provider) out32(f *frame, name string, proc dl.Proc, args ...uintptr) (int32, error) {
	f.word = 0
	code := f.callOut(proc, args...)
	return int32(uint32(f.word)), p.check(name, code)
}

// Name returns "cuda".
func (p *Provider) Name() string { return "cuda" }

// Driver returns the driver's version, such as 13000.
func (p *Provider) Driver() int { return p.drv.version }

// Devices lists the devices.
func (p *Provider) Devices() ([]gpu.Info, error) {
	infos := make([]gpu.Info, len(p.devices))
	for i, d := range p.devices {
		infos[i] = d.describe()
	}
	return infos, nil
}

// Open opens a device: its primary context, which the CUDA runtime uses too. The
// result is a *[Device]; all that are opened with one bus id share that context.
func (p *Provider) Open(busID string) (gpu.Device, error) {
	d := p.find(busID)
	if d == nil {
		return nil, fmt.Errorf("cuda: open %q: %w", busID, gpu.ErrNoDevice)
	}
	if err := d.open(); err != nil {
		return nil, fmt.Errorf("cuda: open %s: %w", busID, err)
	}
	return &Device{d: d}, nil
}

func (p *Provider) find(busID string) *device {
	for _, d := range p.devices {
		if d.info.BusID == busID {
			return d
		}
	}
	return nil
}

func (p *Provider) byOrdinal(ordinal int32) *device {
	for _, d := range p.devices {
		if d.ordinal == ordinal {
			return d
		}
	}
	return nil
}

// Current returns the bus id of the device whose context is current on the calling
// OS thread, whoever made that context.
func (p *Provider) Current() (busID string, ok bool) {
	f, err := p.frames.get()
	if err != nil {
		return "", false
	}
	defer p.frames.put(f)
	f.lock()
	defer f.unlock()
	if f.callOut(p.drv.ctxGetCurrent) != success || f.word == 0 {
		return "", false
	}
	ordinal, err := p.out32(f, "cuCtxGetDevice", p.drv.ctxGetDevice)
	if err != nil {
		return "", false
	}
	d := p.byOrdinal(ordinal)
	if d == nil {
		return "", false
	}
	return d.info.BusID, true
}

// Link asks the driver what a device can do with another's memory: over NVLink with
// native atomics, over PCIe without. It needs no context.
func (p *Provider) Link(from, to string) (gpu.Link, error) {
	src, dst := p.find(from), p.find(to)
	switch {
	case src == nil || dst == nil:
		return gpu.Link{}, fmt.Errorf("cuda: link from %q to %q: %w", from, to, gpu.ErrNoDevice)
	case src == dst:
		return gpu.Link{Access: true, Atomics: true}, nil
	}
	f, err := p.frames.get()
	if err != nil {
		return gpu.Link{}, err
	}
	defer p.frames.put(f)
	f.lock()
	defer f.unlock()
	var values [2]int32
	for i, a := range []uintptr{p2pAccess, p2pNativeAtomics} {
		values[i], err = p.out32(f, "cuDeviceGetP2PAttribute", p.drv.deviceGetP2PAttribute, a, uintptr(src.ordinal), uintptr(dst.ordinal))
		if err != nil {
			return gpu.Link{}, fmt.Errorf("cuda: link from %s to %s: %w", from, to, err)
		}
	}
	return gpu.Link{Access: values[0] == 1, Atomics: values[1] == 1}, nil
}
