// Package worker makes a process a rank, or a target, that another process
// commands: the demo, the replay and the tests play a fabric of them on one
// machine.
//
//	parent: Proc --stdin:  {"id":7,"do":"stream","args":{...}}      one a line
//	             <-stdout- {"id":7,"event":{...}}                   any number
//	             <-stdout- {"id":7,"ok":{...}} or {"id":7,"error":"..."}
//
// [Serve] is the worker's end: it opens engines, holds memory of the process and of
// software GPUs, fills and checks it, and moves it. [Proc] is the parent's end:
// it starts a worker, has a method for each command, and ends it.
//
// Commands run at the same time, each on a goroutine of its own; a parent that
// wants an order waits for the answers. A worker ends when its standard input
// does, so that none outlives its parent, and closes its engines first, so that
// none leaves anything behind. Both ends are of one build and trust each other.
package worker

import "encoding/json"

// maxLine bounds a line of the protocol.
const maxLine = 64 << 20

// message is a line, either way.
type message struct {
	ID    uint64          `json:"id"`
	Do    string          `json:"do,omitempty"`
	Args  json.RawMessage `json:"args,omitempty"`
	Event json.RawMessage `json:"event,omitempty"`
	OK    json.RawMessage `json:"ok,omitempty"`
	Error string          `json:"error,omitempty"`
}

// None is the result of a command that has nothing to tell.
type None struct{}

// OpenArgs opens an engine.
type OpenArgs struct {
	Engine string `json:"engine"` // by which later commands name it
	Host   string `json:"host"`   // that peers dial
	// Env is the engine's whole environment: the process's own is not looked at.
	// All engines of a worker have the same RAILHOP_* hardware.
	Env      map[string]string `json:"env"`
	Devices  []string          `json:"devices,omitempty"`
	Protocol string            `json:"protocol,omitempty"` // "rdma", "tcp", or "" for what there is
	Registry string            `json:"registry,omitempty"`
}

// Opened is an open engine.
type Opened struct {
	Segment  string   `json:"segment"`
	Warnings []string `json:"warnings,omitempty"`
	PXN      bool     `json:"pxn"` // asked for, and its settings are sound
}

// HostMemory is the GPU of memory that is the process's own.
const HostMemory = -1

// AllocArgs allocates memory.
type AllocArgs struct {
	Memory string `json:"memory"` // by which later commands name it
	GPU    int    `json:"gpu"`    // ordinal, or HostMemory
	Bytes  uint64 `json:"bytes"`
}

// Allocated is where memory lies.
type Allocated struct {
	Addr uint64 `json:"addr"`
}

// RegisterArgs registers memory with an engine.
type RegisterArgs struct {
	Engine    string `json:"engine"`
	Memory    string `json:"memory"`
	Location  string `json:"location,omitempty"`
	LocalOnly bool   `json:"local_only,omitempty"`
}

// FillArgs writes to a part of memory: the stream of Seed from offset From, or,
// if Poison is set, the byte Value.
type FillArgs struct {
	Memory string `json:"memory"`
	Offset uint64 `json:"offset"`
	Length uint64 `json:"length"` // 0: up to the end
	Seed   uint64 `json:"seed,omitempty"`
	From   uint64 `json:"from,omitempty"`
	Poison bool   `json:"poison,omitempty"`
	Value  byte   `json:"value,omitempty"`
}

// Verified is the outcome of a comparison.
type Verified struct {
	Bytes      uint64 `json:"bytes"`
	Mismatched uint64 `json:"mismatched"`
	First      int64  `json:"first"` // offset of the first byte that differs, or -1
}

// SegmentArgs opens a segment.
type SegmentArgs struct {
	Engine string `json:"engine"`
	Name   string `json:"name"`
}

// Segment is an opened segment.
type Segment struct {
	ID uint64 `json:"id"`
}

// StreamArgs moves a contiguous range, block by block, with a number of batches in
// flight at a time.
type StreamArgs struct {
	Engine  string `json:"engine"`
	Segment uint64 `json:"segment"`
	Read    bool   `json:"read,omitempty"` // from the target; else to it
	Memory  string `json:"memory"`         // here
	Offset  uint64 `json:"offset"`         // into Memory
	Addr    uint64 `json:"addr"`           // there
	Length  uint64 `json:"length"`         // of the range, at both ends
	Total   uint64 `json:"total"`          // bytes in all: once round the range if 0
	Block   uint64 `json:"block"`          // bytes of a request
	Batch   int    `json:"batch"`          // requests of a batch
	Window  int    `json:"window"`         // batches in flight
}

// Streamed is what has been moved so far, and in the end.
type Streamed struct {
	Bytes       uint64 `json:"bytes"`
	Requests    uint64 `json:"requests"`
	Nanoseconds int64  `json:"ns"` // from the first Submit on
}

// Rate is in bytes a second.
func (s Streamed) Rate() float64 {
	if s.Nanoseconds <= 0 {
		return 0
	}
	return float64(s.Bytes) / (float64(s.Nanoseconds) / 1e9)
}

// Span is a request of TransferArgs.
type Span struct {
	Offset uint64 `json:"offset"` // into Memory
	Addr   uint64 `json:"addr"`   // there
	Length uint64 `json:"length"`
}

// TransferArgs moves spans as one batch and waits for them.
type TransferArgs struct {
	Engine       string `json:"engine"`
	Segment      uint64 `json:"segment"`
	Read         bool   `json:"read,omitempty"`
	Memory       string `json:"memory"`
	Spans        []Span `json:"spans"`
	Milliseconds int64  `json:"ms,omitempty"` // deadline; 0: none
}

// Transferred is what became of them, by span.
type Transferred struct {
	Error  string   `json:"error,omitempty"` // of the batch
	Status []string `json:"status"`
	Bytes  []uint64 `json:"bytes"`
}

// Flow is a number of operations and their bytes.
type Flow struct {
	Ops   uint64 `json:"ops"`
	Bytes uint64 `json:"bytes"`
}

// Stats is a snapshot of an engine's counters, by the names of things.
type Stats struct {
	Segment         string          `json:"segment"`
	DirectSameRail  Flow            `json:"direct_same_rail"`
	DirectCrossRail Flow            `json:"direct_cross_rail"`
	Relayed         Flow            `json:"relayed"`
	Submitted       Flow            `json:"submitted"`
	Failed          Flow            `json:"failed"`
	Reasons         map[string]Flow `json:"reasons"`
	Fallbacks       map[string]Flow `json:"fallbacks"`
	Served          []uint64        `json:"served"` // bytes, by lane of ours
	Lanes           []Lane          `json:"lanes"`
	Parks           uint64          `json:"parks"`
}

// Lane is one that the process holds in another rank.
type Lane struct {
	Peer string `json:"peer"` // the name of its registry entry
	Lane int    `json:"lane"`
}

// Counter is what went between a NIC here and a NIC elsewhere.
type Counter struct {
	NIC        string `json:"nic"` // here
	Rail       string `json:"rail"`
	Peer       string `json:"peer"`      // its name
	PeerAddr   string `json:"peer_addr"` // its address, without the port
	PeerRail   string `json:"peer_rail"`
	WroteHere  uint64 `json:"wrote_here"` // bytes that the peer wrote into memory here
	ReadHere   uint64 `json:"read_here"`
	WroteThere uint64 `json:"wrote_there"`
	ReadThere  uint64 `json:"read_there"`
}

// Usage is what the process has used so far.
type Usage struct {
	CPU   int64  `json:"cpu_ns"`
	Now   int64  `json:"now_ns"` // the machine's monotonic clock
	Parks uint64 `json:"parks"`  // of the engines' pump
}

// PlainArgs is one end of a plain TCP stream, to compare with.
type PlainArgs struct {
	Memory string `json:"memory"` // sent from, or received into, round and round
	Total  uint64 `json:"total"`
	Addr   string `json:"addr,omitempty"` // to send to
	Host   string `json:"host,omitempty"` // to receive on
}
