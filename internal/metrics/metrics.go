// Package metrics shows an engine's counters to Prometheus: names, labels and
// units live here, the counters themselves in the engine.
//
//	Engine.Stats() ──> Collector ──> /metrics
//
// Nothing is counted here and nothing runs until somebody asks: a scrape is one
// call of Stats. Series are bounded, whatever the number of peers: links beyond
// the first [MaxLinks] are added up under the peer "other".
//
// All names begin with railhop_. Bytes are bytes, counters end in _total. A
// process's engines share the relay and the reasons, so one engine is shown a
// process, not each.
package metrics

import (
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/xfer"
)

// MaxLinks is how many pairs of a NIC and a peer NIC have series of their own.
const MaxLinks = 256

// Other is the peer of what is beyond.
const Other = "other"

// Source is an engine.
type Source interface{ Stats() railhop.Stats }

// Collector is an engine's counters for Prometheus. It may be used by any
// goroutine.
type Collector struct {
	source Source

	mu    sync.Mutex
	links map[link]bool // those with series of their own: first come, first served
}

type link struct{ nic, peer string }

// New returns a collector of an engine's counters.
func New(s Source) *Collector {
	return &Collector{source: s, links: make(map[link]bool)}
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range all {
		ch <- m.desc
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.source.Stats()
	put := func(m metric, v float64, labels ...string) {
		for i := range labels {
			labels[i] = label(labels[i])
		}
		pm, err := prometheus.NewConstMetric(m.desc, m.kind, v, labels...)
		if err != nil {
			pm = prometheus.NewInvalidMetric(m.desc, err)
		}
		ch <- pm
	}
	count := func(m metric, n uint64, labels ...string) { put(m, float64(n), labels...) }

	put(info, 1, s.Segment)
	for _, p := range []struct {
		name string
		flow railhop.Flow
	}{
		{"direct_same_rail", s.DirectSameRail},
		{"direct_cross_rail", s.DirectCrossRail},
		{"relayed", s.Relayed},
	} {
		count(pathBytes, p.flow.Bytes, p.name)
		count(pathOps, p.flow.Ops, p.name)
	}
	count(submittedBytes, s.Submitted.Bytes)
	count(submittedOps, s.Submitted.Ops)
	count(failedBytes, s.Failed.Bytes)
	count(failedOps, s.Failed.Ops)
	for _, r := range xfer.Reasons() {
		count(reasonBytes, s.Reasons[r].Bytes, r.String(), class(r))
		count(reasonOps, s.Reasons[r].Ops, r.String(), class(r))
	}
	for lane, n := range s.Served {
		count(servedBytes, n, strconv.Itoa(lane))
	}
	for _, l := range s.Lanes {
		lane := strconv.Itoa(l.Lane)
		put(laneInFlight, float64(l.InFlight), l.Peer, lane)
		put(laneQueued, float64(l.Queued), l.Peer, lane)
		put(laneQuarantined, truth(l.Quarantined), l.Peer, lane)
	}
	for _, n := range s.Direct.NICs {
		put(nicActive, truth(n.Active), n.Name, n.Rail)
		put(nicEndpoints, float64(n.Endpoints.Endpoints), n.Name)
		count(nicHandshakes, n.Endpoints.Dials, n.Name)
		count(nicConnects, n.Endpoints.Connects, n.Name)
		count(nicReconnects, n.Endpoints.Reconnects, n.Name)
		count(nicFailures, n.Endpoints.Failures, n.Name)
		count(nicEvictions, n.Endpoints.Evictions, n.Name)
	}
	for _, l := range c.bounded(s) {
		count(linkBytes, l.bytes, l.nic, l.peer)
		count(linkOps, l.ops, l.nic, l.peer)
		count(linkErrors, l.errors, l.nic, l.peer)
	}
	count(posted, s.Direct.Posted)
	count(retries, s.Direct.Retries)
	count(flushed, s.Direct.Flushed)
	count(givenUp, s.Direct.Failed)
	count(fetches, s.Direct.Fetches)
	count(fetchFailures, s.Direct.FetchFailures)
	count(deactivations, s.Direct.Deactivations)
	count(tcpBytes, s.TCP.Bytes)
	count(tcpOps, s.TCP.Ops)
	count(tcpFailed, s.TCP.Failed)
	count(tcpDials, s.TCP.Dials)
	for _, e := range []struct {
		kind string
		n    uint64
	}{
		{"dial_failed", s.TCP.DialFailures}, {"refused", s.TCP.Refusals}, {"timeout", s.TCP.Timeouts},
		{"lost", s.TCP.Lost}, {"cut", s.TCP.Shuts},
	} {
		count(tcpErrors, e.n, e.kind)
	}
	put(servedConns, float64(s.TCPServed.Open))
	count(servedTCP, s.TCPServed.ReadBytes, "read")
	count(servedTCP, s.TCPServed.WriteBytes, "write")
	count(servedReqs, s.TCPServed.Reads, "read")
	count(servedReqs, s.TCPServed.Writes, "write")
	count(servedBad, s.TCPServed.Refused)
	count(servedStale, s.TCPServed.Stale)
	var landing uint64
	for _, r := range s.MayLand {
		landing += r.Length
	}
	put(landRanges, float64(len(s.MayLand)))
	put(landBytes, float64(landing))
	count(parks, s.Parks)
}

type linkCount struct {
	link
	bytes, ops, errors uint64
}

// bounded returns the links, those without series of their own added up for
// each NIC. A link that has its own keeps it, so that no counter goes back.
func (c *Collector) bounded(s railhop.Stats) []linkCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := make(map[link]int, len(c.links))
	var counts []linkCount
	for _, l := range s.Direct.Links {
		k := link{label(l.NIC), label(l.Peer)}
		if !c.links[k] {
			if len(c.links) < MaxLinks {
				c.links[k] = true
			} else {
				k.peer = Other
			}
		}
		i, ok := at[k]
		if !ok {
			i = len(counts)
			at[k] = i
			counts = append(counts, linkCount{link: k})
		}
		counts[i].bytes += l.Bytes
		counts[i].ops += l.Ops
		counts[i].errors += l.Errors
	}
	return counts
}

// label makes a label of a name, which may be a peer's invention.
func label(name string) string {
	const most = 256
	if len(name) > most {
		name = name[:most]
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}

func class(r railhop.Reason) string {
	switch r.Class() {
	case xfer.ByDesign:
		return "by_design"
	case xfer.Lesser:
		return "lesser"
	}
	return "degraded"
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
