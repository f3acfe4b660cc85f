package sim

import (
	"fmt"
	"runtime"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/shmabi"
)

// closeAll closes the engines, in any order.
func (w *world) closeAll() {
	w.calm = false
	for _, i := range w.rng.Perm(len(w.procs)) {
		p := w.procs[i]
		if p.dead || p.asked {
			continue
		}
		w.after(nil, 0, 50*time.Millisecond, "shut "+p.name, "close", func() { w.shut(p) })
	}
	if !w.run(120*time.Second, func() bool {
		for _, p := range w.procs {
			if !p.dead && !p.closed.Load() {
				return false
			}
		}
		return true
	}) {
		w.stuck("engines do not close")
	}
}

// clearAway ends the goroutines of the dead. It goes on after a violation, since
// the bubble must end.
func (w *world) clearAway() {
	bad := w.over
	w.over = false
	w.calmDown()
	for _, p := range w.procs {
		if !p.dead && !p.closed.Load() {
			p.dead, p.gone = true, true // of a run that has failed
		}
	}
	for _, p := range w.procs {
		if p.dead {
			w.clear(p)
		}
	}
	n := 0
	w.events = 0
	ok := w.run(300*time.Second, func() bool {
		left := 0
		for _, p := range w.procs {
			if !p.dead {
				continue
			}
			if !p.shutting && !p.asked && (p.ready || p.engine != nil) {
				p.shutting = true
				w.shut(p)
			}
			if !p.closed.Load() {
				left++
			}
		}
		for _, k := range w.workers {
			if !k.ended.Load() {
				left++
			}
		}
		n = left
		return left == 0
	})
	if !ok && !bad {
		w.violate("%d processes and workers are left", n)
		if w.opts.Trace != nil {
			stacks := make([]byte, 1<<20)
			fmt.Fprintf(w.opts.Trace, "%s\n", stacks[:runtime.Stack(stacks, true)])
		}
	}
	w.over = w.over || bad
}

func (w *world) checkLanes() {
	if w.over {
		return
	}
	for _, p := range w.procs {
		if !p.alive() {
			continue
		}
		for _, e := range p.entries {
			if e.cut {
				continue
			}
			for i := range shmabi.Lanes {
				h := &e.mem.block.Lanes[i].Header
				if h.State.Load() == shmabi.LaneFree {
					continue
				}
				if h.State.Load() == shmabi.LaneReady && h.SenderEpoch.Load() == 0 {
					w.violate("lane %d of %s was released and is not free", i, p)
				}
				if h.State.Load() == shmabi.LaneClaiming {
					w.violate("lane %d of %s is being claimed for ever", i, p)
				}
				id := h.Sender
				for _, o := range w.procs {
					if o.identity() == id && o.gone && !w.plan.blind {
						w.violate("lane %d of %s is still held by %s, which is gone", i, p, o)
					}
				}
			}
		}
	}
}

// checkCounters compares what engines say with what was asked of them.
func (w *world) checkCounters() {
	if w.over {
		return
	}
	left := 0
	for _, p := range w.procs {
		if !p.alive() || p.engine == nil || p.role.rank < 0 {
			continue
		}
		left++
		go func() {
			s := p.engine.Stats()
			w.call(p, 0, 0, "stats "+p.name, "stats", func() error {
				left--
				var ops, size uint64
				for _, k := range p.workers {
					for _, j := range k.jobs {
						if j.state.Load() == submitted {
							ops += uint64(len(j.reqs))
							for _, r := range j.reqs {
								size += r.length
							}
						}
					}
				}
				w.result.Relayed += s.Relayed.Bytes
				for why, f := range s.Reasons {
					if w.result.Reasons == nil {
						w.result.Reasons = make(map[railhop.Reason]uint64)
					}
					w.result.Reasons[why] += f.Ops
				}
				w.result.Direct += s.DirectSameRail.Bytes + s.DirectCrossRail.Bytes
				if s.Submitted.Ops != ops || s.Submitted.Bytes != size {
					w.violate("%s: %d requests of %d bytes were submitted, it counts %d of %d", p, ops, size, s.Submitted.Ops, s.Submitted.Bytes)
				}
				sum := s.Relayed.Bytes + s.DirectSameRail.Bytes + s.DirectCrossRail.Bytes + s.Failed.Bytes
				if sum != size {
					w.violate("%s: %d bytes submitted, and relayed %d + direct %d + %d + failed %d = %d", p, size,
						s.Relayed.Bytes, s.DirectSameRail.Bytes, s.DirectCrossRail.Bytes, s.Failed.Bytes, sum)
				}
				return nil
			})
		}()
	}
	if !w.run(20*time.Second, func() bool { return left == 0 }) {
		w.stuck("engines do not give their stats")
	}
}

func (w *world) checkLeaks() {
	if w.over {
		return
	}
	f := &w.fabric
	if n := len(f.qps); n > 0 {
		w.violate("%d queue pairs are left, such as %s", n, f.all[0].key)
	}
	if n := len(f.mrs); n > 0 {
		w.violate("%d memory regions are left", n)
	}
	if f.cqs != 0 || f.pds != 0 || f.opens != 0 {
		w.violate("left are %d completion queues, %d domains, %d open NICs", f.cqs, f.pds, f.opens)
	}
	for _, p := range w.procs {
		g := p.gpus
		if g.allocs != 0 && !p.dead && !w.plan.blind && !p.early || g.imports != 0 || g.events != 0 || g.open != 0 {
			w.violate("%s has left: %d allocations, %d imports, %d events, %d open devices and mappings", p, g.allocs, g.imports, g.events, g.open)
		}
		for _, s := range g.streams {
			if !s.closed && !s.caller {
				w.violate("%s is left", s.key)
			}
		}
		w.mu.Lock()
		bad := len(w.result.Violations)
		w.mu.Unlock()
		for _, r := range p.space.regions {
			if r.watch && !p.dead && bad == 0 {
				w.mu.Lock()
				w.compare(r)
				w.mu.Unlock()
			}
		}
		if p.dead || w.plan.blind || p.early {
			continue
		}
		for _, e := range p.entries {
			if e.cut {
				continue
			}
			for i := range shmabi.Lanes {
				if s := e.mem.block.Lanes[i].Header.State.Load(); s != shmabi.LaneFree {
					w.violate("lane %d of %s is left in state %d", i, p, s)
				}
			}
		}
	}
}
