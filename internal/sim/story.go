package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/shmabi"
)

// used is the memory of a run, to be used by the next.
type used struct {
	arenas, parts [][]byte
	blocks        []*shared
}

// memory that runs share.
type Memory struct{ pool *pool }

// NewMemory returns memory for runs, one at a time.
func NewMemory() *Memory { return &Memory{newPool()} }

func newWorld(o Options) *world {
	w := &world{
		opts: o, rng: rand.New(rand.NewPCG(o.Seed, 0x5241494c)), start: time.Now(), poke: make(chan struct{}, 1),
		bells: make(map[uint64]bell), pool: o.Memory.pool, calm: true,
	}
	w.plan = newPlan(w.rng)
	w.net = network{w: w, listeners: make(map[string]*listener)}
	w.fabric = fabric{w: w, qps: make(map[uint32]*qp), mrs: make(map[uint32]*mr)}
	w.group = group{w: w}
	w.result.Seed = o.Seed
	return w
}

// story is a run from its beginning to its end.
func (w *world) story() {
	defer w.giveBack()
	defer w.checkLeaks()
	defer w.clearAway()
	var roles []*role
	for i := range w.plan.targets {
		roles = append(roles, &role{name: fmt.Sprintf("target%d", i), rank: -1, port: uint16(15000 + i), noFence: w.chance(1, 6), moves: w.chance(1, 3)})
	}
	for i := range w.plan.ranks {
		roles = append(roles, &role{name: fmt.Sprintf("rank%d", i), rank: i, port: uint16(16000 + i), moves: true})
	}
	w.roles = roles
	w.tracef("plan %+v", w.plan)
	for _, r := range roles {
		w.launch(w.newProc(r))
	}
	if !w.run(10*time.Second, w.started) {
		w.stuck("the engines do not start")
	}
	w.opened = w.now()
	if !w.run(240*time.Second, w.finished) {
		w.stuck("work does not end")
	}
	w.calmDown()
	if !w.run(60*time.Second, func() bool { return len(w.reqs) == 0 }) {
		w.stuck("ways are not closed")
	}
	w.settleDown()
	w.checkLanes()
	w.checkCounters()
	w.closeAll()
}

func (w *world) started() bool {
	for _, p := range w.procs {
		if !p.ready && !p.failed && !p.closed && !p.dead {
			return false
		}
	}
	for _, p := range w.procs {
		if p.ready && !p.working {
			p.working = true
			w.begin(p)
		}
	}
	return true
}

func (w *world) finished() bool {
	w.started()
	if len(w.plan.faults) > 0 && w.now() < w.lastFault() {
		return false
	}
	for _, r := range w.roles {
		if r.again != 0 || r.proc.stopped {
			return false
		}
	}
	if !w.quiet && w.now() > w.lastFault()+300*time.Millisecond {
		w.calmDown()
	}
	for _, p := range w.procs {
		if p.alive() && !p.ready && !p.failed {
			return false
		}
	}
	for _, k := range w.workers {
		if !k.ended && k.p.alive() {
			return false
		}
	}
	return true
}

func (w *world) lastFault() time.Duration {
	if n := len(w.plan.faults); n > 0 {
		return w.opened + w.plan.faults[n-1]
	}
	return w.opened
}

func (w *world) calmDown() {
	if !w.quiet {
		w.quiet, w.quietAt = true, w.now()
	}
}

// settleDown lets what is under way come to rest.
func (w *world) settleDown() {
	end := w.now() + 2*w.plan.env.PXN.HeartbeatTimeout + 500*time.Millisecond
	w.run(time.Hour, func() bool { return w.now() >= end })
}

func (w *world) stuck(what string) {
	if w.over {
		return
	}
	var b strings.Builder
	for _, k := range w.workers {
		if !k.ended && k.p.alive() {
			fmt.Fprintf(&b, "; %s has %d batches left", k.name, k.left)
		}
	}
	for _, r := range w.reqs {
		fmt.Fprintf(&b, "; request %d of %s open, limbo %v", r.id, r.job.k.name, r.limbo)
	}
	for _, p := range w.procs {
		if !p.ready || p.asked && !p.closed {
			fmt.Fprintf(&b, "; %s ready %v, failed %v, dead %v, asked %v, closed %v", p, p.ready, p.failed, p.dead, p.asked, p.closed)
		}
	}
	w.violate("%s%s", what, b.String())
}

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
			if !p.dead && !p.closed {
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
	w.over, w.quiet = false, true
	for _, p := range w.procs {
		if !p.dead && !p.closed {
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
			if !p.closed {
				left++
			}
		}
		for _, k := range w.workers {
			if !k.ended {
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
						if j.submitted {
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

func (w *world) giveBack() {
	for _, r := range w.procs {
		for _, e := range r.entries {
			e.restore()
		}
	}
	p := w.pool
	p.arenas = append(p.arenas, w.used.arenas...)
	p.parts = append(p.parts, w.used.parts...)
	p.blocks = append(p.blocks, w.used.blocks...)
}

// logger writes what a process logs into the trace.
func (w *world) logger(p *proc) *slog.Logger { return slog.New(&logHandler{w, p}) }

type logHandler struct {
	w *world
	p *proc
}

func (h *logHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h *logHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h *logHandler) WithGroup(string) slog.Handler            { return h }
func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	r.Attrs(func(a slog.Attr) bool { b.WriteString(" " + a.String()); return true })
	h.w.tracef("    %s: %s%s", h.p, r.Message, b.String())
	return nil
}
