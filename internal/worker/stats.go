package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop"
)

func (h *host) stats(_ context.Context, a EngineArgs, _ func(any)) (Stats, error) {
	e, err := h.engine(a.Engine)
	if err != nil {
		return Stats{}, err
	}
	st := e.Stats()
	s := Stats{
		Segment: st.Segment, DirectSameRail: Flow(st.DirectSameRail), DirectCrossRail: Flow(st.DirectCrossRail), Relayed: Flow(st.Relayed),
		Submitted: Flow(st.Submitted), Failed: Flow(st.Failed), Reasons: byName(st.Reasons), Fallbacks: byName(st.Fallbacks),
		Served: st.Served, Parks: st.Parks,
	}
	for _, l := range st.Lanes {
		s.Lanes = append(s.Lanes, Lane{Peer: l.Peer, Lane: l.Lane})
	}
	return s, nil
}

func byName(reasons map[railhop.Reason]railhop.Flow) map[string]Flow {
	named := make(map[string]Flow, len(reasons))
	for r, f := range reasons {
		if f.Ops > 0 {
			named[r.String()] = Flow(f)
		}
	}
	return named
}

// counters tells what the NICs have counted, by the peer's NIC.
func (h *host) counters(context.Context, None, func(any)) ([]Counter, error) {
	h.mu.Lock()
	hw := h.hardware
	h.mu.Unlock()
	if hw == nil {
		return nil, fmt.Errorf("worker: counters: no software NIC is open")
	}
	hw.seen.mu.Lock()
	devices := slices.Clone(hw.seen.devices)
	hw.seen.mu.Unlock()
	type key struct{ nic, peer, addr string }
	sums := make(map[key]*Counter)
	for _, d := range devices {
		name := d.Attr().Name
		for _, c := range d.Counters() {
			k := key{name, c.Name, c.Addr.Addr().String()}
			s := sums[k]
			if s == nil {
				s = &Counter{NIC: name, Rail: d.Rail(), Peer: c.Name, PeerAddr: k.addr, PeerRail: c.Rail}
				sums[k] = s
			}
			s.WroteHere += c.WroteHere
			s.ReadHere += c.ReadHere
			s.WroteThere += c.WroteThere
			s.ReadThere += c.ReadThere
		}
	}
	all := make([]Counter, 0, len(sums))
	for _, s := range sums {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b Counter) int {
		return cmp.Or(cmp.Compare(a.NIC, b.NIC), cmp.Compare(a.PeerAddr, b.PeerAddr), cmp.Compare(a.Peer, b.Peer))
	})
	return all, nil
}

func (h *host) usage(context.Context, None, func(any)) (Usage, error) {
	h.mu.Lock()
	var parks uint64
	for _, e := range h.engines {
		parks = max(parks, e.Stats().Parks)
	}
	h.mu.Unlock()
	var cpu unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &cpu); err != nil {
		return Usage{}, fmt.Errorf("worker: CPU time: %w", err)
	}
	now, err := monotonic()
	return Usage{CPU: cpu.Nano(), Now: now, Parks: parks}, err
}

// monotonic is a clock that all processes of the machine share.
func monotonic() (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("worker: clock: %w", err)
	}
	return now.Nano(), nil
}
