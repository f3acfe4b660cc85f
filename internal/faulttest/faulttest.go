// Package faulttest plays senders, relays and targets as processes that can be
// held at a chosen stage of a transfer, and then killed, or stopped and woken.
//
// A process is the test's own binary, started again by [Start]: the test's
// TestMain gives [Serve] the first word. It has a software NIC and a software
// GPU, takes commands by its standard input, and says on its standard output
// when it has come to the stage that it is to be held at. A [Wire] stands
// between a relay and its target and keeps bytes on their way, as the network
// and socket buffers do, when the relay is long dead.
//
// Bugs are planted by wrappers in the child, never in the engine: a test that
// watches for late writes runs with one first, and must see some.
//
// The package is for tests. A [Process] may be used by any goroutine.
package faulttest

import (
	"encoding/json"

	"github.com/railhop/railhop"
)

// Stage is where a process is held.
type Stage string

// The stages of a relay, in the order in which a piece comes to them. What
// happens on the wire is [Wire]'s. A target has the first of them.
const (
	Nowhere   Stage = ""
	Handshake Stage = "handshake" // a queue pair is to become RTS
	Claim     Stage = "claim"     // before the compare-and-swap
	Post      Stage = "post"      // claimed, not posted
	Store     Stage = "store"     // all came back, the completion not stored
)

// The stages of a sender.
const (
	Attach Stage = "attach" // a lane is claimed, its arena not imported
	Copy   Stage = "copy"   // committed, not copied
	Fence  Stage = "fence"  // a claimed piece is to be closed, the target not asked
)

// Bug is what a process does wrong.
type Bug string

const (
	NoBug Bug = ""
	// NoClaim is a relay that does not see what its sender revokes, and takes
	// pieces without saying so.
	NoClaim Bug = "no claim"
	// NoFence is a sender that does not ask for the fence, and counts it as
	// confirmed.
	NoFence Bug = "no fence"
)

// Settings are MC_* and RAILHOP_* values.
type Settings map[string]string

// Options says how a process begins.
type Options struct {
	Set      Settings
	Registry string
	Stage    Stage
	Nth      int // time that it comes to the stage, once armed; 0 means the first
	Bug      Bug
	// Wire is where queue pairs are connected to in place of the target's NIC.
	Wire string `json:",omitempty"`
	// Touch is memory that the process uses, in bytes, so that its death is slow.
	Touch uint64 `json:",omitempty"`
	Quiet bool   `json:",omitempty"` // it logs errors only
	// Binary is what is started; the test's own if it is empty.
	Binary string `json:",omitempty"`
}

// command is one line to a child.
type command struct {
	ID      int
	Op      string
	Options *Options `json:",omitempty"`
	Name    string   `json:",omitempty"` // of a segment
	Addr    uint64   `json:",omitempty"`
	To      uint64   `json:",omitempty"`
	Size    uint64   `json:",omitempty"`
	Seed    uint64   `json:",omitempty"`
	Limit   int      `json:",omitempty"` // ms
	Socket  string   `json:",omitempty"` // of a sink
	Slots   int      `json:",omitempty"`
	Rings   int      `json:",omitempty"`
	Depth   int      `json:",omitempty"`
	At      uint64   `json:",omitempty"` // an instant
}

// Answer is one line from a child.
type Answer struct {
	ID      int
	Reached Stage    `json:",omitempty"` // no answer, but the news that it is held
	Err     string   `json:",omitempty"`
	Late    bool     `json:",omitempty"` // the error was a deadline, honoured
	Name    string   `json:",omitempty"`
	NIC     string   `json:",omitempty"`
	Addr    uint64   `json:",omitempty"`
	Bad     int      `json:",omitempty"`
	Status  *Status  `json:",omitempty"`
	Left    []string `json:",omitempty"` // behind, after close

	PID    int           `json:",omitempty"` // of a forked child
	Held   *Held         `json:",omitempty"`
	Sink   *SinkCounts   `json:",omitempty"`
	Stream *StreamCounts `json:",omitempty"`
	Times  *Times        `json:",omitempty"`
}

// Status is how a child is.
type Status struct {
	Stats   railhop.Stats
	Imports int // of other processes' GPU memory
	Fences  int // asked of targets
	Maps    int // of files in the registry
}

func (a *Answer) line() []byte {
	b, err := json.Marshal(a)
	if err != nil {
		b, _ = json.Marshal(Answer{ID: a.ID, Err: err.Error()})
	}
	return append(b, '\n')
}
