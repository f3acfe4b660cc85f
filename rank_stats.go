package railhop

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/wire"
)

// reporter keeps the stats file beside a rank's entry up to date, for those who
// look at the group from outside. Whoever beats for the rank looks once a second
// whether a counter has changed; only then is the file written, by a goroutine that
// ends with it.
type reporter struct {
	writing atomic.Bool
	wg      sync.WaitGroup
	failed  atomic.Bool // to log it once

	mu      sync.Mutex
	engines []*Engine // those that the rank serves

	// Of whoever beats.
	at   time.Duration // the next look
	seen uint64        // what the last look came to
}

const reportEvery = time.Second

func (p *reporter) add(e *Engine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.engines, e) {
		p.engines = append(p.engines, e)
	}
}

func (p *reporter) remove(e *Engine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.engines = slices.DeleteFunc(p.engines, func(o *Engine) bool { return o == e })
}

func (p *reporter) all() []*Engine {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.engines)
}

// close waits for a write that is underway. The pump no longer steps the rank.
func (p *reporter) close() { p.wg.Wait() }

func (r *rank) reportStats(now time.Duration) {
	p := &r.report
	if now < p.at || p.writing.Load() {
		return
	}
	p.at = now + reportEvery
	engines := p.all()
	seen := r.fingerprint(engines)
	if seen == p.seen || len(engines) == 0 {
		return
	}
	p.seen = seen
	p.writing.Store(true)
	p.wg.Go(func() {
		defer p.writing.Store(false)
		if err := r.entry.WriteStats(r.stats(engines)); err != nil && !p.failed.Swap(true) {
			r.log.Warn("stats file not written", "entry", r.entry.Name(), "err", err)
		}
	})
}

// fingerprint changes, as good as always, when one of the counters does.
func (r *rank) fingerprint(engines []*Engine) uint64 {
	const prime = 1099511628211 // of FNV
	h := uint64(14695981039346656037)
	mix := func(n uint64) { h = (h ^ n) * prime }
	mix(r.host.tally.Changes())
	for _, n := range r.relay.Served() {
		mix(n)
	}
	for _, e := range engines {
		s := e.direct.Stats()
		mix(s.Failed)
		for _, l := range s.Links {
			mix(l.Bytes)
			mix(l.Errors)
		}
		mix(uint64(len(e.MayLand())))
	}
	return h
}

// stats is what the rank says of itself.
func (r *rank) stats(engines []*Engine) registry.Stats {
	counters := make(map[string]uint64)
	count := func(name string, f Flow) {
		counters[name+".ops"] += f.Ops
		counters[name+".bytes"] += f.Bytes
	}
	s := registry.Stats{NICPaths: make(map[string]string), Counters: counters}
	for i, e := range engines {
		st := e.Stats()
		count("direct_same_rail", st.DirectSameRail)
		count("direct_cross_rail", st.DirectCrossRail)
		for _, l := range st.MayLand {
			s.MayStillLand = append(s.MayStillLand, fmt.Sprintf("%s [%#x, %#x)", l.Segment, l.Addr, l.Addr+l.Length))
		}
		if i > 0 {
			continue // what follows is the process's
		}
		count("submitted", st.Submitted)
		count("relayed", st.Relayed)
		count("failed", st.Failed)
		for why, f := range st.Reasons {
			count("reason."+why.String(), f)
		}
		for _, n := range st.Served {
			counters["served.bytes"] += n
		}
		s.Server = e.local.Desc().ServerName()
		for i, n := range r.nics {
			s.NICPaths[r.rails[i]] = wire.NICPath(s.Server, n.Attr().Name)
		}
		_, rule := e.rails.Target(localNICs(devicesOf(r.nics)))
		s.RailRule = rule.String()
	}
	return s
}
