package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/railhop/railhop/internal/shmabi"
)

// used is the memory of a run, to be used by the next.
type used struct {
	arenas, parts [][]byte
	blocks        []*shared
}

// Memory is what runs share, one at a time.
type Memory struct{ pool *pool }

// NewMemory returns memory for runs.
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
		if !p.ready && !p.failed && !p.closed.Load() && !p.dead {
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
		if !k.ended.Load() && k.p.alive() {
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
		w.peaceful.Store(true)
	}
}

// settleDown lets what is under way come to rest.
func (w *world) settleDown() {
	end := w.now() + 2*w.plan.env.PXN.HeartbeatTimeout + 500*time.Millisecond
	w.run(time.Hour, func() bool { return w.now() >= end })
	// A claim that was left half-made is cleared in its own time.
	w.run(5*time.Second, func() bool { return !w.claiming() })
}

// claiming reports whether a lane of a live rank is being claimed.
func (w *world) claiming() bool {
	for _, p := range w.procs {
		for _, e := range p.entries {
			if !p.alive() || e.cut {
				continue
			}
			for i := range shmabi.Lanes {
				if e.mem.block.Lanes[i].Header.State.Load() == shmabi.LaneClaiming {
					return true
				}
			}
		}
	}
	return false
}

func (w *world) stuck(what string) {
	if w.over {
		return
	}
	var b strings.Builder
	for _, k := range w.workers {
		if !k.ended.Load() && k.p.alive() {
			fmt.Fprintf(&b, "; %s has %d batches left", k.name, k.left)
		}
	}
	for _, r := range w.reqs {
		fmt.Fprintf(&b, "; request %d of %s open, limbo %v", r.id, r.job.k.name, r.limbo)
	}
	for _, p := range w.procs {
		if !p.ready || p.asked && !p.closed.Load() {
			fmt.Fprintf(&b, "; %s ready %v, failed %v, dead %v, asked %v, closed %v", p, p.ready, p.failed, p.dead, p.asked, p.closed.Load())
		}
	}
	w.violate("%s%s", what, b.String())
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
