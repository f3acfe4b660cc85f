// Package tally counts which way bytes went, and why not another, and logs each
// reason once. Counters only rise. Any goroutine may count; nothing blocks but
// the first log line of a reason.
package tally

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/railhop/railhop/internal/xfer"
)

// Way is how bytes went.
type Way uint8

const (
	DirectSameRail  Way = iota // own NIC, target on a rail of ours
	DirectCrossRail            // own NIC, across rails
	Relayed                    // through a peer GPU and its NIC
	wayCount
)

// Flow is what went one way.
type Flow struct {
	Ops   uint64
	Bytes uint64
}

// Snapshot is a copy of all counters.
type Snapshot struct {
	DirectSameRail  Flow
	DirectCrossRail Flow
	Relayed         Flow
	Submitted       Flow
	Failed          Flow
	// Reasons counts tasks or pieces by why they were not relayed, or less well.
	Reasons map[xfer.Reason]Flow
}

type flow struct{ ops, bytes atomic.Uint64 }

func (f *flow) add(bytes uint64) {
	f.ops.Add(1)
	f.bytes.Add(bytes)
}

func (f *flow) load() Flow { return Flow{f.ops.Load(), f.bytes.Load()} }

// Tally is a set of counters. Use [New].
type Tally struct {
	log       *slog.Logger
	ways      [wayCount]flow
	submitted flow
	failed    flow
	reasons   [xfer.ReasonCount]flow
	logged    [xfer.ReasonCount]atomic.Bool
}

// New returns counters at zero that log to log.
func New(log *slog.Logger) *Tally {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Tally{log: log}
}

// Submitted counts a task handed in.
func (t *Tally) Submitted(bytes uint64) { t.submitted.add(bytes) }

// Failed counts a task that ended without all its bytes in place.
func (t *Tally) Failed(bytes uint64) { t.failed.add(bytes) }

// Went counts bytes that have arrived.
func (t *Tally) Went(w Way, bytes uint64) { t.ways[w].add(bytes) }

// Because counts a reason, and logs it if it is the first time. attrs are as
// for [slog.Logger.Log].
func (t *Tally) Because(r xfer.Reason, bytes uint64, attrs ...any) {
	t.reasons[r].add(bytes)
	if t.logged[r].Load() || t.logged[r].Swap(true) {
		return
	}
	level, msg := slog.LevelDebug, "direct by design"
	switch r.Class() {
	case xfer.Degraded:
		level, msg = slog.LevelWarn, "relay not used"
	case xfer.Lesser:
		level, msg = slog.LevelInfo, "relay used by slower means"
	}
	t.log.Log(context.Background(), level, msg, append([]any{"reason", r.String()}, attrs...)...)
}

// Count is how often a reason was counted.
func (t *Tally) Count(r xfer.Reason) uint64 { return t.reasons[r].ops.Load() }

// Changes rises whenever a counter does.
func (t *Tally) Changes() uint64 {
	n := t.submitted.ops.Load() + t.failed.ops.Load()
	for i := range t.ways {
		n += t.ways[i].ops.Load()
	}
	for i := range t.reasons {
		n += t.reasons[i].ops.Load()
	}
	return n
}

// Snapshot copies the counters. They are read one by one: sums hold once
// nothing is under way.
func (t *Tally) Snapshot() Snapshot {
	s := Snapshot{
		DirectSameRail:  t.ways[DirectSameRail].load(),
		DirectCrossRail: t.ways[DirectCrossRail].load(),
		Relayed:         t.ways[Relayed].load(),
		Submitted:       t.submitted.load(),
		Failed:          t.failed.load(),
		Reasons:         make(map[xfer.Reason]Flow),
	}
	for _, r := range xfer.Reasons() {
		if f := t.reasons[r].load(); f.Ops > 0 {
			s.Reasons[r] = f
		}
	}
	return s
}
