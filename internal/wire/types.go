// Package wire is the form of Mooncake's messages: frames and JSON, bytes in and
// values out. It opens no connection and takes no decision.
package wire

// Type is a frame's type byte.
type Type uint8

const (
	Connection Type = 0
	Metadata   Type = 1
	Notify     Type = 2
	Probe      Type = 3
	Fence      Type = 0x70 // railhop's own, pxn.md 8.3
)

// HandShake is the body of a Connection frame and of its reply.
type HandShake struct {
	LocalNICPath string // the sender's, "server@device"
	PeerNICPath  string // the receiver's, as the sender knows it
	LocalLID     uint16
	LocalGID     string // 16 two-digit hex bytes joined by ":"; "" in old peers
	QPNum        []uint32
	ReadyAck     *bool  // nil: one-phase peer; true: this is the second phase
	ReplyMsg     string // "" is success
	Payload      string
	// RelayEpoch is the registry epoch of the relay that asks, 0 for a plain
	// connection: member "railhop_relay", 16 hex digits.
	RelayEpoch uint64
}

// Notification is the body of a Notify frame and of its reply.
type Notification struct {
	Name string
	Msg  string
}

// FenceRequest asks a target to close all queue pairs of a relay epoch.
type FenceRequest struct {
	Epoch uint64
	Nonce string
}

// FenceReply confirms that it is done.
type FenceReply struct {
	Epoch  uint64
	Nonce  string
	Closed int    // queue pairs closed by this request
	Error  string // "" is success
}

// Device is a NIC in a [SegmentDesc].
type Device struct {
	Name string
	LID  uint16
	GID  string
}

// Buffer is a registered range in a [SegmentDesc].
type Buffer struct {
	Name   string // rdma: the memory's location, such as "cuda:0"; tcp: the segment's name
	Addr   uint64
	Length uint64
	LKey   []uint32 // one a device, in the order of Devices
	RKey   []uint32 // likewise; empty if not remotely accessible
}

// SegmentDesc describes the memory that a process serves.
type SegmentDesc struct {
	Name            string
	Protocol        string // "rdma" or "tcp"
	TCPDataPort     int
	TCPProtoVersion int // missing means 1
	// TCPDataHost is where TCPDataPort is served; "" means where the handshake is.
	// Mooncake 0.3.13 sends it.
	TCPDataHost    string
	Timestamp      string
	RDMAServerName string // "" if not set
	Devices        []Device
	Buffers        []Buffer
	// PriorityMatrix maps a location to its preferred and its other devices.
	PriorityMatrix map[string][2][]string
	// MatrixProblem says why a decoded descriptor has no matrix; "" if it has one.
	// Mooncake opens such a segment, warns, and then finds no device.
	MatrixProblem string
	// FenceVersion is 1 if the process offers the fence, else 0: member
	// "railhop": {"fence": 1}.
	FenceVersion int
	// TCPProves is 1 if a connection that the process has closed proves that nothing
	// of what it was sent can land any more, else 0: member "railhop": {"tcp": 1}.
	TCPProves int
}

// ServerName is the first part of the segment's NIC paths.
func (d *SegmentDesc) ServerName() string {
	if d.RDMAServerName != "" {
		return d.RDMAServerName
	}
	return d.Name
}
