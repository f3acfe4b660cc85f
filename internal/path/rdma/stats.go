package rdma

import (
	"sync/atomic"

	"github.com/railhop/railhop/internal/endpoint"
)

type counters struct {
	posted, posts, retries, flushed, failed atomic.Uint64
	fetches, fetchFailures, deactivations   atomic.Uint64
}

// Stats is what a path has done so far.
type Stats struct {
	Posted        uint64 // work requests
	Posts         uint64 // batches of them
	Retries       uint64 // failed attempts of slices that were tried again or given up
	Flushed       uint64 // slices that ended with their endpoint
	Failed        uint64 // slices given up
	Fetches       uint64 // descriptors fetched anew
	FetchFailures uint64
	Deactivations uint64 // of NICs
	NICs          []NICStats
	Links         []LinkStats
}

// NICStats describes one local NIC.
type NICStats struct {
	Name, Rail string
	Active     bool
	Endpoints  endpoint.Stats
}

// LinkStats describes the pair of a local NIC and a peer NIC path.
type LinkStats struct {
	NIC, Peer  string
	Bytes, Ops uint64
	Errors     uint64
}

// Stats returns the counters. It may be called by any goroutine.
func (p *Path) Stats() Stats {
	c := &p.counts
	st := Stats{
		Posted:        c.posted.Load(),
		Posts:         c.posts.Load(),
		Retries:       c.retries.Load(),
		Flushed:       c.flushed.Load(),
		Failed:        c.failed.Load(),
		Fetches:       c.fetches.Load(),
		FetchFailures: c.fetchFailures.Load(),
		Deactivations: c.deactivations.Load(),
	}
	for _, n := range p.nics {
		st.NICs = append(st.NICs, NICStats{n.nic.Name, p.railOf(n), n.nic.Active(), n.set.Stats()})
	}
	p.statsMu.Lock()
	defer p.statsMu.Unlock()
	for _, l := range p.all {
		st.Links = append(st.Links, LinkStats{l.nic.nic.Name, l.path, l.bytes.Load(), l.ops.Load(), l.errs.Load()})
	}
	return st
}
