package tcp

import "sync/atomic"

type counters struct {
	ops, bytes, failed                  atomic.Uint64
	sends, dials, dialFailures, fetches atomic.Uint64
	refusals, timeouts, shuts, lost     atomic.Uint64
}

// Stats is what a path has done so far.
type Stats struct {
	Ops, Bytes   uint64 // requests answered, and their payload
	Failed       uint64 // requests given up
	Sends        uint64 // system calls that sent
	Dials        uint64
	DialFailures uint64
	Fetches      uint64 // descriptors fetched anew
	Refusals     uint64 // requests that a peer refused
	Timeouts     uint64 // answers that did not come
	Shuts        uint64 // connections closed to stop what was under way
	Lost         uint64 // connections lost with answers due
}

// Stats returns the counters. It may be called by any goroutine.
func (p *Path) Stats() Stats {
	c := &p.counts
	return Stats{
		Ops:          c.ops.Load(),
		Bytes:        c.bytes.Load(),
		Failed:       c.failed.Load(),
		Sends:        c.sends.Load(),
		Dials:        c.dials.Load(),
		DialFailures: c.dialFailures.Load(),
		Fetches:      c.fetches.Load(),
		Refusals:     c.refusals.Load(),
		Timeouts:     c.timeouts.Load(),
		Shuts:        c.shuts.Load(),
		Lost:         c.lost.Load(),
	}
}
