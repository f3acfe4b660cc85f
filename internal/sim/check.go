package sim

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/railhop/railhop"
)

func (r *region) busy(off, length uint64) bool {
	over := func(q *req, at uint64) bool { return off < at+q.length && at < off+length }
	return slices.ContainsFunc(r.reads, func(q *req) bool { return over(q, q.fo) }) ||
		slices.ContainsFunc(r.writes, func(q *req) bool { return over(q, q.too) })
}

// unmark drops what a range must hold: it is used again.
func (r *region) unmark(off, length uint64) {
	r.marks = slices.DeleteFunc(r.marks, func(m mark) bool { return off < m.off+m.length && m.off < off+length })
}

// compare checks that a region holds what it must.
func (w *world) compare(r *region) {
	for _, m := range r.marks {
		if !bytes.Equal(r.mem[m.off:m.off+m.length], w.pool.pattern(m.pattern, m.length)) {
			w.violateLocked("%s: [%d, %d) does not hold what was written there last", r, m.off, m.off+m.length)
		}
	}
}

// move copies bytes, as a NIC or a GPU does, and checks that it may. The world's
// mutex is held.
func (w *world) move(from *region, fo uint64, to *region, too, n uint64, who string) {
	if from.watch && !from.proc.dead {
		w.allowed(from, from.reads, fo, n, false, who)
	}
	watched := to.watch && !to.proc.dead
	if watched {
		w.allowed(to, to.writes, too, n, true, who)
	}
	copy(to.mem[too:too+n], from.mem[fo:fo+n])
	if !watched {
		return
	}
	for _, r := range to.writes {
		lo, hi := max(too, r.too), min(too+n, r.too+r.length)
		if lo < hi && !bytes.Equal(to.mem[lo:hi], w.pool.pattern(r.id, r.length)[lo-r.too:hi-r.too]) {
			w.violateLocked("%s put wrong bytes at [%d, %d) of %s, request %d", who, lo, hi, to, r.id)
		}
	}
}

func (w *world) allowed(g *region, open []*req, off, n uint64, write bool, who string) {
	for end := off + n; off < end; {
		next := off
		for _, r := range open {
			at := r.fo
			if write {
				at = r.too
			}
			if at <= off && off < at+r.length && (write || r.ready) {
				next = at + r.length
			}
		}
		if next == off {
			if write {
				w.violateLocked("%s wrote to %d of %s, late: no open request goes there", who, off, g)
			} else {
				w.violateLocked("%s read %d of %s: no open request has its source there, or it is not ready", who, off, g)
			}
			return
		}
		off = next
	}
}

// look sees which requests have ended. It runs after each event.
func (w *world) look() {
	keep := w.reqs[:0]
	for _, r := range w.reqs {
		if w.ended(r) {
			continue
		}
		keep = append(keep, r)
	}
	clear(w.reqs[len(keep):])
	w.reqs = keep
}

func (w *world) ended(r *req) bool {
	j := r.job
	p := j.k.p
	switch {
	case p.dead:
		return true // nobody waits for it, nor uses its ends again
	case j.state.Load() == refused:
		w.end(r, "refused")
		return true
	case j.state.Load() != submitted:
		return false
	}
	if r.limbo {
		if w.result.Events%16 != 0 || w.mayLand(r) {
			return false
		}
		w.end(r, "closed at last")
		return true
	}
	res, err := j.batch.Task(r.index)
	if err != nil {
		w.violate("task %d of %s: %v", r.index, j.k.name, err)
		return true
	}
	switch res.Status {
	case railhop.Pending, railhop.Waiting:
		return false
	case railhop.Completed:
		if !r.to.proc.dead && !r.from.proc.dead && !bytes.Equal(r.to.mem[r.too:r.too+r.length], w.pool.pattern(r.id, r.length)) {
			w.violate("request %d of %s is complete, and its bytes are not in place", r.id, j.k.name)
		}
		w.end(r, "complete")
		return true
	}
	w.result.Failed++
	if !w.excused(r) {
		w.violate("request %d of %s has %v for no good reason", r.id, j.k.name, res.Status)
	}
	if w.mayLand(r) {
		r.limbo = true
		w.note("may still land", j.k.name)
		return false
	}
	w.end(r, res.Status.String())
	return true
}

// excused reports whether a request may fail at all: its time was up, an end of it
// is no more, or the direct way was cut more often than it is tried.
func (w *world) excused(r *req) bool {
	p, o := r.job.k.p, &w.plan.env.RDMA
	switch {
	case r.job.deadline > 0, r.target.dead, r.target.asked, p.asked, p.gpus.lost, w.portLost:
		return true
	case !w.plan.spine:
		return true // there may be no other way than a relay
	}
	return o.MaxEndpoints <= 2 || o.RetryCount < 9 && !w.plan.calm
}

// mayLand reports whether the engine lists a request's destination as what may still
// be written.
func (w *world) mayLand(r *req) bool {
	for _, l := range r.job.k.p.engine.MayLand() {
		if _, remote := r.ends(); l.Addr == remote && l.Length == r.length {
			return true
		}
	}
	return false
}

// end closes a request: both its ends are used again at once.
func (w *world) end(r *req, how string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.ended = true
	same := func(o *req) bool { return o == r }
	r.from.reads = slices.DeleteFunc(r.from.reads, same)
	r.to.writes = slices.DeleteFunc(r.to.writes, same)
	w.serial++
	if !r.from.proc.dead {
		copy(r.from.mem[r.fo:r.fo+r.length], w.pool.pattern(w.serial, r.length))
		r.from.marks = append(r.from.marks, mark{r.fo, r.length, w.serial})
	}
	if !r.to.proc.dead {
		w.serial++
		copy(r.to.mem[r.too:r.too+r.length], w.pool.pattern(w.serial, r.length))
		r.to.marks = append(r.to.marks, mark{r.too, r.length, w.serial})
	}
	w.note("request", fmt.Sprintf("%d of %s: %s", r.id, r.job.k.name, how))
}
