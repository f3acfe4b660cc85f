package sim

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/railhop/railhop/internal/shmabi"
)

// fault notes that something was broken.
func (w *world) fault(what, key string) {
	w.calm = false
	w.result.Faults++
	w.note("FAULT "+what, key)
}

// hits decides whether a call of a process fails, so many times in a thousand and
// the plan's rate. It is asked by goroutines, in no certain order, and so draws from
// no common numbers.
func (w *world) hits(p *proc, what string, weight int) bool {
	if w.peaceful.Load() || w.plan.hits == 0 || p.zombie() {
		return false
	}
	w.hitMu.Lock()
	defer w.hitMu.Unlock()
	p.hits[what]++
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %s %d", w.opts.Seed, p.name, what, p.hits[what])
	if x := h.Sum64(); (x^x>>29)*0xbf58476d1ce4e5b9>>32%1000 >= uint64(weight*w.plan.hits) {
		return false
	}
	w.hit = append(w.hit, what+" "+p.name)
	return true
}

// hurt notes what has failed since the last event.
func (w *world) hurt() {
	w.hitMu.Lock()
	hit := w.hit
	w.hit = nil
	w.hitMu.Unlock()
	slices.Sort(hit)
	for _, what := range hit {
		w.fault(what, "")
	}
}

// inject breaks what the plan says is due, and starts again what was killed.
func (w *world) inject() {
	now := w.now()
	for _, r := range w.roles {
		if r.again != 0 && now >= r.again {
			r.again = 0
			w.launch(w.newProc(r))
		}
	}
	if w.quiet || w.plan.calm || w.next >= len(w.plan.faults) || now < w.opened+w.plan.faults[w.next] {
		return
	}
	w.next++
	r := w.roles[w.rng.IntN(len(w.roles))]
	p := r.proc
	if !p.ready || !p.alive() || p.stopped || p.asked {
		return
	}
	ms := time.Millisecond
	switch w.rng.IntN(15) {
	case 0, 1, 2:
		w.fault("killed", p.name)
		w.kill(p, time.Duration(1+w.rng.Int64N(int64(pick(w.rng, ms, 20*ms, 150*ms)))))
		w.restart(r)
	case 3, 4, 5:
		d := time.Duration(1 + w.rng.Int64N(int64(pick(w.rng, 5*ms, 100*ms, 2*w.plan.env.PXN.HeartbeatTimeout))))
		w.fault("stopped for "+d.String(), p.name)
		w.stop(p)
		w.after(nil, d, d, "resume "+p.name, "resumed", func() { w.resume(p) })
	case 6, 7:
		w.fabric.cut()
	case 8:
		w.fault("closes", p.name)
		p.early = true
		w.shut(p)
		w.restart(r)
	case 9:
		for _, e := range p.entries {
			if e.cut {
				continue
			}
			w.fault("switched off", p.name)
			e.mem.block.Header.Flags.Or(shmabi.FlagOff)
			w.after(nil, ms, 300*ms, "on "+p.name, "switched on", func() {
				if !e.cut {
					e.mem.block.Header.Flags.And(^shmabi.FlagOff)
				}
			})
		}
	case 10:
		d := time.Duration(w.rng.Int64N(int64(pick(w.rng, 20*ms, 300*ms, 3*time.Second))))
		w.fault("clock jumps by "+d.String(), "")
		time.Sleep(d)
	case 11:
		if p.gpus.own != "" && w.chance(1, 3) {
			w.fault("GPU lost", p.name)
			p.gpus.lost = true
			p.gpus.drop()
		}
	case 12:
		// Toward a target without the fence nobody could ever tell that the way is closed.
		if len(p.entries) > 0 && !slices.ContainsFunc(w.roles, func(r *role) bool { return r.noFence }) {
			w.fault("file truncated", p.name)
			p.entries[0].truncate()
			p.early = true
			for _, o := range w.procs {
				o.early = true // who held lanes there may leak
			}
		}
	case 13:
		d := p.nics.devs[w.rng.IntN(len(p.nics.devs))]
		w.portLost = true
		w.fault("port lost", p.name+"/"+d.name)
		d.set(true)
		w.after(nil, ms, 200*ms, "port "+d.name+p.name, "port up", func() { d.set(false) })
	case 14:
		w.fabric.fatal()
	}
}

func (w *world) restart(r *role) {
	if w.chance(3, 4) {
		r.again = w.now() + time.Duration(1+w.rng.Int64N(int64(pick(w.rng, 5*time.Millisecond, 200*time.Millisecond))))
	}
}
