// Package gpu is the seam at which GPUs are plugged in: device memory, streams,
// events and sharing between processes, as the CUDA driver knows them, but
// batch-shaped and without C.
//
// It holds contracts and no code that moves bytes. Package cuda drives real
// GPUs, softgpu plays them in host memory; both pass gputest.
package gpu

import (
	"errors"
	"fmt"
)

// Sentinels for causes on which a caller acts.
var (
	// ErrNoDevice is returned when no device has the identity asked for.
	ErrNoDevice = errors.New("gpu: no such device")
	// ErrMemory is returned when memory cannot be allocated.
	ErrMemory = errors.New("gpu: out of memory")
	// ErrCapturing is returned when a stream is being captured into a graph.
	ErrCapturing = errors.New("gpu: stream is capturing")
	// ErrFatal is returned when the device or its context is lost: nothing works
	// on it any more in this process.
	ErrFatal = errors.New("gpu: device lost")
	// ErrClosed is returned when the object was closed.
	ErrClosed = errors.New("gpu: closed")
	// ErrHandle is returned when a handle cannot be imported: malformed, of
	// another kind, or its owner is gone.
	ErrHandle = errors.New("gpu: handle cannot be imported")
)

// HandleSize is the length of a memory handle in bytes.
const HandleSize = 64

// Handle lets another process of this host import an allocation. It is opaque.
type Handle [HandleSize]byte

// Kind is what sort of memory an address range is.
type Kind uint8

const (
	// UnknownMemory: not memory the driver knows, or of several sorts.
	UnknownMemory Kind = iota
	// HostMemory: host memory, also when the driver has pinned it.
	HostMemory
	// Device: memory of one device, the whole range.
	DeviceMemory
	// ManagedMemory: memory that migrates.
	ManagedMemory
)

func (k Kind) String() string {
	switch k {
	case UnknownMemory:
		return "unknown"
	case HostMemory:
		return "host"
	case DeviceMemory:
		return "device"
	case ManagedMemory:
		return "managed"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Range is what the driver says of an address range.
type Range struct {
	Kind  Kind
	BusID string // of the device, if Kind is DeviceMemory
}

// Info describes a device.
type Info struct {
	Index int `json:"index"` // ordinal among those visible to this process
	// HostIndex is the ordinal among all of the host, visible or not, by bus id; -1
	// if unknown.
	HostIndex int    `json:"host_index"`
	BusID     string `json:"bus_id"` // PCI bus id, lower case, such as "0000:1b:00.0": the identity
	Name      string `json:"name"`
	NUMA      int    `json:"numa"` // node, -1 if unknown
	// StreamMemOps says that [Stream.Write64] works.
	StreamMemOps bool `json:"stream_mem_ops"`
	// BatchedCopy says that a batch of copies is one operation and not many.
	BatchedCopy bool `json:"batched_copy"`
	// IPC says that memory can be shared with other processes.
	IPC bool `json:"ipc"`
	// DirectRDMA says that NICs may reach the device's memory, given a kernel module
	// or DMABuf.
	DirectRDMA bool `json:"direct_rdma"`
	// DMABuf says that the driver exports memory as a dma-buf.
	DMABuf bool `json:"dma_buf"`
}

// Link is what one device is to another.
type Link struct {
	Access  bool `json:"access"`  // its streams reach the other's memory
	Atomics bool `json:"atomics"` // and may ring there: see [Device.PeerAtomics]
}

// Linker is a [Provider] that knows how the devices visible to it reach each other,
// without opening them.
type Linker interface {
	// Link says what the device from can do with the device to, the same one included.
	// It fails with [ErrNoDevice] if one of them is not visible.
	Link(from, to string) (Link, error)
}

// Exporter is a [Provider] that exports device memory as dma-bufs, by which NICs and
// other devices reach it.
type Exporter interface {
	// DMABuf exports the range as a file and says where in that file it starts. The
	// caller closes fd; what was made of it meanwhile stays good. It fails with an error
	// that wraps [errors.ErrUnsupported] where the driver or the device cannot.
	DMABuf(addr, length uint64) (fd int, offset uint64, err error)
}

// Provider finds and opens devices.
type Provider interface {
	// Name is "cuda" or "soft".
	Name() string
	// Devices lists what is visible to this process, by ordinal.
	Devices() ([]Info, error)
	// Open opens a device by bus id. It fails with [ErrNoDevice] if it is not
	// visible.
	Open(busID string) (Device, error)
	// Current returns the bus id of the device that is current on the calling OS
	// thread, and false if there is none.
	Current() (busID string, ok bool)
	// Classify says what the whole of [addr, addr+length) is.
	Classify(addr, length uint64) Range
}

// Device is an opened GPU. All methods may be called by any goroutine, and leave
// the calling thread's current context as it was.
type Device interface {
	Info() Info
	// Alloc allocates size bytes of device memory, aligned to 256 at least. It
	// fails with [ErrMemory].
	Alloc(size uint64) (addr uint64, err error)
	Free(addr uint64) error
	// Export returns a handle for the whole allocation that starts at addr.
	Export(addr uint64) (Handle, error)
	// Import maps a peer process's allocation of size bytes for this device. It
	// fails with [ErrHandle]. Whoever imports says on which device the memory
	// lies.
	Import(h Handle, size uint64) (addr uint64, err error)
	// CloseImport unmaps what Import mapped. No stream may still use it.
	CloseImport(addr uint64) error
	// PeerAtomics reports whether a stream of this device may ring words for, and
	// order them after copies to, the device busID: the same device, or NVLink.
	PeerAtomics(busID string) bool
	// MapHost makes host memory writable by this device's streams, until
	// unmap is called. mem begins and ends on a page. The addresses a stream uses
	// are those of mem plus the returned offset.
	MapHost(mem []byte) (offset uint64, unmap func() error, err error)
	// NewStream returns a stream of its own, ordered with no other.
	NewStream() (Stream, error)
	NewEvent() (Event, error)
	// RecordCaller records e on a stream of the caller's: a driver handle, or 0
	// for the calling OS thread's default stream. It fails with
	// [ErrCapturing] and then records nothing.
	RecordCaller(stream uint64, e Event) error
	// SyncCaller waits until all that the caller's stream was given so far has
	// run. It blocks; the stream is as for RecordCaller.
	SyncCaller(stream uint64) error
	// CopyIn and CopyOut copy between host memory and device memory and wait for
	// it. They are for set-up, staging and tests.
	CopyIn(dst uint64, src []byte) error
	CopyOut(dst []byte, src uint64) error
	Close() error
}

// Attacher is a [Device] that works faster on a thread that was prepared for it.
type Attacher interface {
	// Attach prepares the calling OS thread, to which the goroutine is locked, until
	// detach is called there.
	Attach() (detach func() error, err error)
}

// Copy is one contiguous run, device memory at either end.
type Copy struct {
	Dst    uint64
	Src    uint64
	Length uint64
}

// Stream runs operations in the background, in the order they were given. It
// belongs to one goroutine. No method blocks, but Close.
type Stream interface {
	// Wait makes what follows wait for the event's last record.
	Wait(e Event) error
	// Copy runs copies. There is no order among them; what follows waits for
	// all. It does not keep the slice.
	Copy(copies []Copy) error
	// Write64 stores value at addr, an address in mapped host memory, as one
	// aligned 64-bit store after all that precedes, with those effects visible
	// to whoever reads the value. It fails with an error that wraps
	// [errors.ErrUnsupported] where the device has no stream memory operations.
	Write64(addr, value uint64) error
	// Record records e after what precedes.
	Record(e Event) error
	// Idle reports whether everything given so far has run. An error means that
	// some of it failed.
	Idle() (bool, error)
	// Close waits for what is outstanding, then frees the stream.
	Close() error
}

// Ringer is a [Stream] that can ring as a part of copying, at less cost than by two
// operations.
type Ringer interface {
	// CopyWrite64 is Copy and then Write64, but that copies may run beside those of
	// other calls of CopyWrite64 directly before, and must not touch their bytes.
	// Words are stored in the order of the calls. Where it fails, the word is not
	// stored.
	CopyWrite64(copies []Copy, addr, value uint64) error
}

// Event marks a point in a stream. It belongs to one goroutine, but for
// Done, which any may call.
type Event interface {
	// Done reports whether the point last recorded has been reached; true if it
	// was never recorded. An error means that work before it failed.
	Done() (bool, error)
	Close() error
}
