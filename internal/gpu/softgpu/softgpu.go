// Package softgpu plays GPUs in host memory: the provider "soft" of package gpu.
//
// It owns device memory (memfds, mapped shared), the table of what lies where,
// the handles by which another process maps an allocation, and streams and
// events with the order and the failures of the CUDA driver's. It owns no
// policy, reads no environment, and never guesses: an address outside the
// table is refused, not touched.
//
//	Provider -- table of regions (allocations and imports of all devices)
//	   |-- device, one a bus id: limits, host mappings, caller streams, fatal state
//	          |-- Device, one an Open
//	                 |-- Stream: queue -> goroutine -> memory
//
// Threads: one goroutine a stream, parked while the stream has nothing to do.
// The table is read without a lock; whoever uses a region pins it, and Free,
// CloseImport and unmap wait until it is no longer pinned.
package softgpu

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

// MaxDevices is how many devices a provider has at most.
const MaxDevices = 32

// DeviceConfig describes one device.
type DeviceConfig struct {
	BusID string // PCI bus id, such as "0000:a0:00.0"
	NUMA  int    // node, -1 if unknown
	Index int    // ordinal on the host that is played, -1 if unknown
	// StreamMemOps says whether [Stream.Write64] works.
	StreamMemOps bool
	// PeerAtomics says whether streams of this device may ring words that are
	// ordered after copies to other devices (NVLink).
	PeerAtomics bool
	// BatchedCopy says whether the device claims to run a batch of copies as one
	// operation. It runs them all the same.
	BatchedCopy bool
	// MaxBytes limits what this process allocates on the device. Zero means the
	// host's memory.
	MaxBytes uint64
}

// Uniform returns the configuration of n devices that can all there is to do:
// bus ids "0000:a0:00.0", "0000:a1:00.0" and so on, on unknown NUMA nodes.
func Uniform(n int) []DeviceConfig {
	devices := make([]DeviceConfig, n)
	for i := range devices {
		devices[i] = defaultConfig(fmt.Sprintf("0000:%02x:00.0", 0xa0+i))
	}
	return devices
}

func defaultConfig(busID string) DeviceConfig {
	return DeviceConfig{BusID: busID, NUMA: -1, Index: -1, StreamMemOps: true, PeerAtomics: true, BatchedCopy: true}
}

// Options configures a [Provider]. The zero value is one device, current.
type Options struct {
	// Devices are those that the process sees, by ordinal. Nil means Uniform(1).
	Devices []DeviceConfig
	// Current is the ordinal of the current device; -1 means that there is none.
	Current int
	// Logger takes life-cycle messages. Nil means none.
	Logger *slog.Logger
}

// Provider is a set of devices. Its methods may be called by any goroutine.
type Provider struct {
	log     *slog.Logger
	self    process
	devices []*device
	current atomic.Int32

	memory table
}

var (
	_ gpu.Provider = (*Provider)(nil)
	_ gpu.Linker   = (*Provider)(nil)
)

// New returns a provider of opts.Devices. It fails if the options are not valid.
func New(opts Options) (*Provider, error) {
	if opts.Devices == nil {
		opts.Devices = Uniform(1)
	}
	if n := len(opts.Devices); n > MaxDevices {
		return nil, fmt.Errorf("softgpu: %d devices: want at most %d", n, MaxDevices)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	self, err := lookup(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("softgpu: own process: %w", err)
	}
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return nil, fmt.Errorf("softgpu: sysinfo: %w", err)
	}
	p := &Provider{log: opts.Logger, self: self}
	for i, c := range opts.Devices {
		id, err := parseBusID(c.BusID)
		if err != nil {
			return nil, err
		}
		for _, d := range p.devices {
			if d.id == id {
				return nil, fmt.Errorf("softgpu: device %s is listed twice", id)
			}
		}
		if c.MaxBytes == 0 {
			c.MaxBytes = uint64(host.Totalram) * uint64(host.Unit)
		}
		c.BusID = id.String()
		p.devices = append(p.devices, newDevice(p, i, id, c))
	}
	if err := p.SetCurrent(opts.Current); err != nil && len(p.devices) > 0 {
		return nil, err
	}
	return p, nil
}

// Name returns "soft".
func (p *Provider) Name() string { return "soft" }

// Devices lists the devices.
func (p *Provider) Devices() ([]gpu.Info, error) {
	infos := make([]gpu.Info, len(p.devices))
	for i, d := range p.devices {
		infos[i] = d.info
	}
	return infos, nil
}

// Open opens a device. The result is a *[Device]; all that are opened with one
// bus id share that device's state.
func (p *Provider) Open(busID string) (gpu.Device, error) {
	d := p.find(busID)
	if d == nil {
		return nil, fmt.Errorf("softgpu: open %q: %w", busID, gpu.ErrNoDevice)
	}
	d.opens.Add(1)
	return &Device{d: d}, nil
}

// Link says what a device can do with another: reach it always, ring there if it was
// configured so.
func (p *Provider) Link(from, to string) (gpu.Link, error) {
	src := p.find(from)
	if src == nil || p.find(to) == nil {
		return gpu.Link{}, fmt.Errorf("softgpu: link from %q to %q: %w", from, to, gpu.ErrNoDevice)
	}
	return gpu.Link{Access: true, Atomics: from == to || src.peer}, nil
}

func (p *Provider) find(busID string) *device {
	for _, d := range p.devices {
		if d.info.BusID == busID {
			return d
		}
	}
	return nil
}

// Current returns what SetCurrent set last, on whatever thread it is called.
func (p *Provider) Current() (busID string, ok bool) {
	i := int(p.current.Load())
	if i < 0 || i >= len(p.devices) {
		return "", false
	}
	return p.devices[i].info.BusID, true
}

// SetCurrent makes the device with that ordinal current, or none if it is -1.
func (p *Provider) SetCurrent(index int) error {
	if index < -1 || index >= len(p.devices) {
		return fmt.Errorf("softgpu: current device %d: want -1..%d", index, len(p.devices)-1)
	}
	p.current.Store(int32(index))
	return nil
}

// Classify says what the whole of [addr, addr+length) is: device memory if it
// lies in one allocation or import, else host memory if all of it is mapped and
// none of it a device's. An empty range is unknown.
func (p *Provider) Classify(addr, length uint64) gpu.Range {
	if length == 0 || addr+length < addr {
		return gpu.Range{}
	}
	if r := p.memory.find(addr, length); r != nil {
		return gpu.Range{Kind: gpu.DeviceMemory, BusID: r.busID}
	}
	if p.memory.overlaps(addr, length) || !mapped(addr, length) {
		return gpu.Range{}
	}
	return gpu.Range{Kind: gpu.HostMemory}
}

// table is a sorted set of disjoint regions. Readers take a snapshot; writers
// replace it.
type table struct {
	mu       sync.Mutex
	snapshot atomic.Pointer[[]*region]
}
