// Package report shows the outcome of a run: a page that needs nothing but a
// browser, and a table for the terminal.
//
// [Write] makes one HTML file whose charts are drawings inside it, so that it can
// be mailed, archived or opened on a machine without a network. [Table] writes the
// same figures as text. Both take a [Data], which the caller fills; nothing is
// measured here but for [Latency], a histogram.
package report

import (
	"fmt"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

// Data is what a run came to.
type Data struct {
	Title   string
	Intro   string // a sentence under the title
	Command string // as it was typed
	Started time.Time
	Elapsed time.Duration

	Params []Fact   // what was asked for
	Facts  []Fact   // further figures, shown beside throughput and latency
	Notes  []string // sentences that a reader has to know

	Requests   int
	Paths      []Path
	Timeline   Timeline
	Latency    *Latency // of requests; nil if not measured
	Rails      []Bar
	Lanes      []Bar
	Verify     Verify
	Fallbacks  []Fallback
	RailsTitle string // what a bar of Rails is; "" is "Bytes by rail"
	LanesTitle string // "" is "Bytes by lane"
}

// Fact is a named value.
type Fact struct{ Name, Value string }

// Path is a way that bytes took. Its place in [Data.Paths] gives it its colour.
type Path struct {
	Name  string
	Bytes uint64
	Rate  float64 // bytes a second while it was in use
}

// Timeline is bytes by path in equal steps from the start of the run.
type Timeline struct {
	Step  time.Duration
	Paths [][]uint64 // in the order of [Data.Paths]
}

// Bar is a named amount of bytes by path, in the order of [Data.Paths].
type Bar struct {
	Name  string
	Parts []uint64
}

// Verify is the outcome of comparing bytes at the receiver.
type Verify struct {
	Checked    uint64 // bytes compared
	Mismatched uint64 // bytes that differed
	Of         uint64 // bytes received, those not compared included
}

// String says it in words, in the form that scripts look for.
func (v Verify) String() string {
	switch {
	case v.Mismatched > 0:
		return fmt.Sprintf("%s of %s bytes differ", group(v.Mismatched), group(v.Checked))
	case v.Checked == 0:
		return "nothing verified"
	}
	return fmt.Sprintf("verified: %s bytes equal", group(v.Checked))
}

// Fallback is how often bytes took a lesser way, and why.
type Fallback struct {
	Reason xfer.Reason
	Count  uint64
}

// bytes is what all paths carried.
func (d *Data) bytes() uint64 {
	var n uint64
	for _, p := range d.Paths {
		n += p.Bytes
	}
	return n
}

// rate is the average throughput of the run in bytes a second.
func (d *Data) rate() float64 {
	if d.Elapsed <= 0 {
		return 0
	}
	return float64(d.bytes()) / d.Elapsed.Seconds()
}
