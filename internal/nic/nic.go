// Package nic is the seam at which network cards are plugged in: devices,
// protection domains, memory regions, queue pairs and completion queues, as
// RDMA verbs know them, but batch-shaped and without C.
//
// It holds contracts and no code that moves bytes. Package verbs drives real
// cards, softnic does the same in software; both pass nictest.
//
// Only reliable connections are used, and only one-sided operations. Addresses
// are plain numbers, since they may be of device memory: whoever passes one
// keeps the memory alive and in place until the operation has completed or
// the queue pair is closed.
package nic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Sentinels for causes on which a caller acts.
var (
	// ErrClosed is returned when the object was closed before or during the call.
	ErrClosed = errors.New("nic: closed")
	// ErrState is returned when a queue pair is not in a state that allows the call.
	ErrState = errors.New("nic: wrong queue pair state")
	// ErrNoDevice is returned when no device has the name asked for.
	ErrNoDevice = errors.New("nic: no such device")
	// ErrMemory is returned when memory cannot be registered.
	ErrMemory = errors.New("nic: memory cannot be registered")
)

// GID is a port's global identifier in network byte order.
type GID [16]byte

func (g GID) String() string {
	const hex = "0123456789abcdef"
	b := make([]byte, 0, 47)
	for i, x := range g {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, hex[x>>4], hex[x&15])
	}
	return string(b)
}

// Access says what a memory region may be used for. Local reading is always
// allowed.
type Access uint32

const (
	LocalWrite      Access = 1 << 0
	RemoteWrite     Access = 1 << 1
	RemoteRead      Access = 1 << 2
	RelaxedOrdering Access = 1 << 20
)

// PortState is the state of a device's port.
type PortState uint8

const (
	PortDown PortState = iota
	PortActive
)

// Port describes the port in use. It may change; see [Event].
type Port struct {
	State PortState
	LID   uint16
	GID   GID
	MTU   int // active MTU in bytes
	// Subnet is the GID's network, over all 128 bits; invalid if unknown. Ports
	// of one rail share it where each rail is a subnet of its own.
	Subnet netip.Prefix
}

// Attr describes what a device can do. It does not change.
type Attr struct {
	Name      string
	NUMA      int    // node, -1 if unknown
	MaxMR     uint64 // longest memory region, in bytes
	MaxQP     int
	MaxWR     int // work requests a queue pair may hold
	MaxRDAtom int // outstanding reads a queue pair may have

	// DeathCloses says that nothing a process posted can land once the process
	// is gone (its pidfd has fired). It holds for real cards, whose queue pairs
	// are destroyed with their process, and not for softnic, whose bytes in
	// socket buffers outlive it.
	DeathCloses bool
}

// EventType is what happened to a device or a queue pair.
type EventType uint8

const (
	PortUp EventType = iota + 1
	PortLost
	GIDChanged
	DeviceFatal
	QPFatal
)

// Event is an asynchronous event of a device.
type Event struct {
	Type EventType
	QPN  uint32 // of QPFatal
}

// Provider finds and opens devices.
type Provider interface {
	// Name is "verbs" or "soft".
	Name() string
	// Devices lists the names of all devices, in the provider's order.
	Devices() ([]string, error)
	// Open opens a device by name. It fails with [ErrNoDevice] if there is none.
	Open(name string) (Device, error)
}

// Ported is a [Provider] whose devices have numbered ports, of which a name may say
// one, as in "mlx5_0:2". A name without one is of the port that the provider was set
// up for, and so are those that Devices lists.
type Ported interface {
	// Usable says why a device cannot be used now by the port that its name says; nil
	// if it can. The error wraps [ErrNoDevice].
	Usable(name string) error
}

// Device is an opened card. All methods may be called by any goroutine.
type Device interface {
	Attr() Attr
	// Port returns the port's present state.
	Port() Port
	// Events delivers asynchronous events. The channel is closed by Close.
	// Events are dropped if nobody reads.
	Events() <-chan Event
	// NewPD returns a protection domain.
	NewPD() (PD, error)
	// NewCQ returns a completion queue for at least depth entries. After
	// [CQ.Arm] the next completion calls wake once, from any goroutine; wake
	// must not block. A nil wake is allowed.
	NewCQ(depth int, wake func()) (CQ, error)
	// Close closes the device and all that was made from it.
	Close() error
}

// PD is a protection domain: memory regions and queue pairs of one domain may be
// used together, others not.
type PD interface {
	// Register makes length bytes at addr known to the card. It fails with an
	// error that wraps [ErrMemory] and names the cause.
	Register(addr, length uint64, access Access) (MR, error)
	// NewQP returns a queue pair in state RESET.
	NewQP(opts QPOptions) (QP, error)
	// Close frees the domain. It fails if regions or queue pairs are left.
	Close() error
}

// MR is a registered memory region.
type MR interface {
	LKey() uint32
	RKey() uint32
	// Close unregisters. Once it has returned, the card touches the memory for
	// no peer and no queue pair any more.
	Close() error
}

// QPState is a queue pair's state.
type QPState uint8

const (
	Reset QPState = iota
	Init
	RTR
	RTS
	Err
)

var qpStates = [...]string{"RESET", "INIT", "RTR", "RTS", "ERR"}

func (s QPState) String() string {
	if int(s) >= len(qpStates) {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return qpStates[s]
}

// QPOptions configures a queue pair.
type QPOptions struct {
	CQ    CQ  // takes the completions
	MaxWR int // work requests outstanding at most; 0 means 256
}

// QPAttr is what a transition needs; fields that a transition does not use are
// ignored.
type QPAttr struct {
	State QPState

	// INIT.
	Access    Access
	PKeyIndex uint16

	// RTR.
	RemoteQPN    uint32
	RemoteGID    GID
	RemoteLID    uint16
	MTU          int // upper bound in bytes; 0 means the port's
	TrafficClass uint8
	ServiceLevel uint8

	// RTS. An operation that the peer does not answer fails with
	// [StatusRetryExceeded] after about Timeout times Retries+1. Zero means the
	// values that Mooncake uses: 67 ms and 7.
	Timeout time.Duration
	Retries int
}

// QP is a reliable-connected queue pair.
//
// Post belongs to one goroutine at a time; the other methods may be called by
// any. Operations of one queue pair start and complete in order.
type QP interface {
	Num() uint32
	State() QPState
	// Modify moves the queue pair to attr.State. RESET, INIT, RTR, RTS is the
	// only way up; RESET and ERR are allowed from every state. It fails with
	// [ErrState] otherwise. On the way to ERR everything outstanding is flushed:
	// each operation is reported once, with [StatusFlushed], and no byte of it
	// moves after that report.
	Modify(attr QPAttr) error
	// Post hands work to the card, in order, and returns how many requests it
	// took: fewer than len(wrs) if the queue is full, which is no error. It
	// keeps neither wrs nor what it holds. It never blocks. In state ERR it takes
	// requests and flushes them; before RTS it fails with [ErrState].
	Post(wrs []WR) (n int, err error)
	// Close moves the queue pair to ERR and destroys it: once it has returned, no
	// peer reads or writes memory through it. Operations still outstanding are
	// closed too, then dropped without a report. A peer that cannot be reached is
	// waited for until ctx ends, and the error says so; what was posted may then
	// still land, and Close may be called again.
	Close(ctx context.Context) error
}

// Op is what a work request does.
type Op uint8

const (
	OpWrite Op = iota + 1
	OpRead
)

func (o Op) String() string {
	switch o {
	case OpWrite:
		return "write"
	case OpRead:
		return "read"
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// WR is a work request with one contiguous run at either end.
type WR struct {
	ID         uint64 // returned in the completion
	Op         Op
	Signaled   bool // report success too; failures are always reported
	LKey       uint32
	RKey       uint32
	Length     uint32 // bytes; 0 is allowed
	LocalAddr  uint64
	RemoteAddr uint64
}

// Status says how an operation ended. The numbers are those of enum
// ibv_wc_status.
type Status uint32

const (
	StatusSuccess          Status = 0
	StatusLocalLength      Status = 1
	StatusLocalQPOperation Status = 2
	StatusLocalProtection  Status = 4
	StatusFlushed          Status = 5
	StatusRemoteInvalid    Status = 9
	StatusRemoteAccess     Status = 10
	StatusRemoteOperation  Status = 11
	StatusRetryExceeded    Status = 12
	StatusRNRRetryExceeded Status = 13
	StatusFatal            Status = 18
	StatusResponseTimeout  Status = 19
	StatusGeneral          Status = 21
)

var statusNames = map[Status]string{
	StatusSuccess:          "success",
	StatusLocalLength:      "local length error",
	StatusLocalQPOperation: "local queue pair operation error",
	StatusLocalProtection:  "local protection error",
	StatusFlushed:          "work request flushed",
	StatusRemoteInvalid:    "remote invalid request",
	StatusRemoteAccess:     "remote access error",
	StatusRemoteOperation:  "remote operation error",
	StatusRetryExceeded:    "transport retry counter exceeded",
	StatusRNRRetryExceeded: "receiver-not-ready retry counter exceeded",
	StatusFatal:            "fatal error",
	StatusResponseTimeout:  "response timeout",
	StatusGeneral:          "general error",
}

func (s Status) String() string {
	if n, ok := statusNames[s]; ok {
		return n
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// Local reports whether the cause lies on this side: the card, the key or the
// queue pair here, so that another local card may do better.
func (s Status) Local() bool {
	switch s {
	case StatusLocalLength, StatusLocalQPOperation, StatusLocalProtection, StatusFatal:
		return true
	}
	return false
}

// Completion reports the end of one work request.
type Completion struct {
	ID     uint64
	QPN    uint32
	Status Status
	Vendor uint32 // vendor_err, for the bug report
}

// CQ is a completion queue. Poll and Arm belong to one goroutine.
type CQ interface {
	// Poll fills done with ended operations, oldest first, and returns how
	// many. An error means that the queue is lost.
	Poll(done []Completion) (n int, err error)
	// Arm asks for one call of wake at the next completion. If completions are
	// already there it may call at once or not at all: poll again after it.
	Arm() error
	Close() error
}

// CompletionError is a work completion that did not succeed.
type CompletionError struct {
	Device string // such as "mlx5_0"
	Peer   string // NIC path, such as "host:15001@mlx5_0"
	Op     Op
	Status Status
	Vendor uint32
}

func (e *CompletionError) Error() string {
	return fmt.Sprintf("nic: %s on %s to %s: %v, vendor %#x", e.Op, e.Device, e.Peer, e.Status, e.Vendor)
}
