package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/gpu"
)

// req is a request of an application. While it is open its bytes may be read at
// one end and land at the other; the instant that it has ended its source is
// filled with something else, and its destination with what must stay there.
type req struct {
	job      *job
	index    int
	id       uint64 // of its pattern
	from, to *region
	fo, too  uint64
	length   uint64
	ready    bool // the source holds its bytes
	op       railhop.Opcode
	target   *proc
	ended    bool
	limbo    bool // given up, and listed as what may still land
}

// job is a batch.
type job struct {
	k         *worker
	reqs      []*req
	stream    uint64
	named     bool          // the stream is given
	deadline  time.Duration // 0 for none
	batch     *railhop.Batch
	submitted bool
	refused   error
}

// worker is a part of an application that writes, one batch after the other.
type worker struct {
	p      *proc
	name   string
	left   int
	dev    *region
	host   *region
	ended  bool
	open   chan struct{} // holds a token for each batch under way
	wg     sync.WaitGroup
	jobs   []*job
	misses int // times that no destination was there
}

// offer registers what a process's application has.
func (p *proc) offer(e *railhop.Engine) error {
	w := p.w
	if p.role.rank < 0 {
		return nil
	}
	var regions []railhop.Region
	w.mu.Lock()
	for i := range w.plan.workers {
		k := &worker{p: p, name: fmt.Sprintf("%s/w%d", p.name, i), left: w.plan.batches, open: make(chan struct{}, w.plan.depth)}
		k.dev = w.memory(p, k.name+"/dev", gpu.DeviceMemory, p.gpus.own)
		k.host = w.memory(p, k.name+"/host", gpu.HostMemory, "")
		p.workers = append(p.workers, k)
		for _, r := range []*region{k.dev, k.host} {
			regions = append(regions, railhop.Region{Addr: r.addr, Length: uint64(len(r.mem))})
		}
	}
	w.mu.Unlock()
	return e.RegisterBatch(regions)
}

// memory gives a process a region that is watched. The world's mutex is held.
func (w *world) memory(p *proc, name string, kind gpu.Kind, bus string) *region {
	mem := w.pool.part()
	w.used.parts = append(w.used.parts, mem)
	return p.space.add(&region{proc: p, mem: mem, kind: kind, bus: bus, name: name, watch: true})
}

// destination returns the region of a target for a worker, on a rail; nil while it
// is being registered.
func (w *world) destination(k *worker, t *proc, rail int) *region {
	name := fmt.Sprintf("%s/rail%d", k.name, rail)
	if r := t.targets[name]; r != nil {
		return r
	}
	if t.making[name] {
		return nil
	}
	t.making[name] = true
	w.mu.Lock()
	r := w.memory(t, name, gpu.DeviceMemory, t.gpus.infos[rail].BusID)
	w.mu.Unlock()
	go func() {
		err := t.engine.Register(r.addr, uint64(len(r.mem)), "")
		w.call(t, 0, 0, "register "+t.name+name, "registered", func() error {
			if err == nil {
				t.targets[name] = r
			} else {
				t.making[name] = false
			}
			return nil
		})
	}()
	return nil
}

// begin starts a process's workers.
func (w *world) begin(p *proc) {
	for _, k := range p.workers {
		w.workers = append(w.workers, k)
		go k.run()
	}
}

func (k *worker) run() {
	w := k.p.w
	defer func() { k.ended = true }()
	for k.left > 0 {
		var j *job
		err := w.call(k.p, 10*time.Microsecond, 5*time.Millisecond, k.name, "next batch", func() error {
			j = w.nextJob(k)
			return nil
		})
		if err != nil {
			return
		}
		if j == nil {
			continue
		}
		k.open <- struct{}{}
		k.wg.Go(func() {
			k.do(j)
			w.call(k.p, 0, 10*time.Microsecond, fmt.Sprintf("%s %d", k.name, j.reqs[0].id), "batch returned", func() error { return nil })
			<-k.open
		})
	}
	k.wg.Wait()
	k.leave()
}

// leave makes the worker's memory unknown: nothing may use it any more.
func (k *worker) leave() {
	w := k.p.w
	for _, r := range []*region{k.dev, k.host} {
		if err := k.p.engine.Unregister(r.addr); err != nil {
			w.tracef("%s: %v", k.name, err)
			continue
		}
		w.mu.Lock()
		n := 0
		for _, q := range slices.Concat(r.reads, r.writes) {
			if !q.limbo || w.mayLand(q) {
				n++
			}
		}
		if n > 0 && !k.p.dead && !k.p.asked {
			w.violateLocked("%s was unregistered with %d requests open", r, n)
		}
		w.mu.Unlock()
	}
}

// nextJob makes up a batch, on the driver.
func (w *world) nextJob(k *worker) *job {
	var targets []*proc
	for _, p := range w.procs {
		if p.role.rank < 0 && p.ready && p.alive() && !p.asked {
			targets = append(targets, p)
		}
	}
	if len(targets) == 0 || w.quiet && w.now() > w.quietAt+2*time.Second {
		k.left--
		return nil
	}
	// Where it goes: mostly one region, sometimes one after the other of several.
	var places []*req
	mixed := w.chance(1, 3)
	for range 1 + w.rng.IntN(4) {
		t := targets[w.rng.IntN(len(targets))]
		rail := w.rng.IntN(2)
		if w.chance(2, 3) {
			rail = 1 - k.p.role.rank%2 // the other one: it is what relays are for
		}
		if to := w.destination(k, t, rail); to != nil {
			places = append(places, &req{target: t, to: to})
		}
		if !mixed {
			break
		}
	}
	if len(places) == 0 {
		if k.misses++; k.misses > 50 {
			k.left--
		}
		return nil
	}
	k.left--
	from := k.dev
	if w.chance(1, 8) {
		from = k.host
	}
	j := &job{k: k}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.compare(from)
	op := railhop.Write
	if w.chance(1, 12) {
		op = railhop.Read
	}
	n := 1 + w.rng.IntN(6)
	if mixed {
		n = 4 + w.rng.IntN(20)
	}
	fo := uint64(0)
	too := make(map[*region]uint64)
	if len(from.reads)+len(from.writes) > 0 {
		fo = uint64(w.rng.IntN(partBytes))
	}
	for i := range n {
		r := *places[i%len(places)]
		w.compare(r.to)
		r.length = uint64(1 + w.rng.IntN(4096))
		switch w.rng.IntN(6) {
		case 0:
			r.length = uint64(1 + w.rng.IntN(600<<10))
		case 1, 2:
			r.length = uint64(1 + w.rng.IntN(100<<10))
		}
		if too[r.to] == 0 && len(r.to.writes)+len(r.to.reads) > 0 {
			too[r.to] = uint64(w.rng.IntN(partBytes))
		}
		if w.chance(1, 2) {
			gap := uint64(w.rng.IntN(5000))
			fo += gap
			too[r.to] += gap * 3
		}
		if end := fo + r.length; end > partBytes || too[r.to]+r.length > partBytes || from.busy(fo, r.length) || r.to.busy(too[r.to], r.length) {
			continue
		}
		w.serial++
		r.job, r.index, r.id, r.from, r.fo, r.too = j, len(j.reqs), w.serial, from, fo, too[r.to]
		fo += r.length
		too[r.to] += r.length
		r.op = op
		if op == railhop.Read {
			r.from, r.to, r.fo, r.too = r.to, r.from, r.too, r.fo
		}
		j.reqs = append(j.reqs, &r)
		r.from.reads = append(r.from.reads, &r)
		r.to.writes = append(r.to.writes, &r)
	}
	if len(j.reqs) == 0 {
		return nil
	}
	if op == railhop.Write && w.chance(1, 4) && k.p.gpus.own != "" {
		j.named, j.stream = true, uint64(7+w.rng.IntN(2))
	}
	for _, r := range j.reqs {
		w.reqs = append(w.reqs, r)
		r.from.unmark(r.fo, r.length)
		r.to.unmark(r.too, r.length)
		if !j.named {
			r.fill(w)
		}
	}
	if w.chance(1, 3) && k.p.gpus.own != "" {
		s := k.p.gpus.caller(j.stream)
		s.push(streamOp{kind: opKernel, kernel: func() { // of the application: slow, and before the fence
			for _, r := range j.reqs {
				if j.named && !r.ended {
					r.fill(w)
				}
			}
		}})
	} else if j.named {
		for _, r := range j.reqs {
			r.fill(w)
		}
	}
	if w.rng.Float64() < w.plan.deadline {
		j.deadline = time.Duration(1 + w.rng.Int64N(int64(pick(w.rng, 2*time.Millisecond, 50*time.Millisecond, time.Second))))
	}
	k.jobs = append(k.jobs, j)
	w.result.Requests += len(j.reqs)
	return j
}

// ends are the addresses here and at the target.
func (r *req) ends() (local, remote uint64) {
	from, to := r.from.addr+r.fo, r.to.addr+r.too
	if r.op == railhop.Read {
		return to, from
	}
	return from, to
}

// fill puts a request's bytes into its source.
func (r *req) fill(w *world) {
	copy(r.from.mem[r.fo:], w.pool.pattern(r.id, r.length))
	r.ready = true
}

// do submits a batch and waits for it, on the worker's goroutine.
func (k *worker) do(j *job) {
	w := k.p.w
	e := k.p.engine
	var err error
	reqs := make([]railhop.Request, len(j.reqs))
	for i, r := range j.reqs {
		id, err := e.OpenSegment(context.Background(), r.target.engine.Name())
		if err != nil {
			j.refused = err
			return
		}
		reqs[i] = railhop.Request{Op: r.op, Target: id, Length: r.length}
		reqs[i].Source, reqs[i].TargetAddr = r.ends()
	}
	j.batch = e.NewBatch(len(reqs))
	if j.named {
		err = j.batch.SubmitOn(j.stream, reqs)
	} else {
		err = j.batch.Submit(reqs)
	}
	if err != nil {
		j.refused = err
		return
	}
	j.submitted = true
	ctx := context.Background()
	if j.deadline > 0 {
		c, cancel := context.WithTimeout(ctx, j.deadline)
		defer cancel()
		ctx = c
	}
	err = j.batch.Wait(ctx)
	if k.p.dead {
		return
	}
	if err == nil && j.batch.Poll() != railhop.Completed {
		w.violate("%s: Wait returned nil, the status is %v", k.name, j.batch.Poll())
	}
	var land *railhop.MayLandError
	if err != nil && !errors.As(err, &land) && j.batch.Poll() == railhop.Waiting {
		w.violate("%s: Wait returned %v, and the batch is not answered", k.name, err)
	}
	if err != nil {
		w.tracef("%s: %v", k.name, err)
	}
}

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
	case j.refused != nil:
		w.end(r, "refused")
		return true
	case !j.submitted:
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
	if w.plan.calm && w.plan.spine && j.deadline == 0 && w.plan.env.RDMA.MaxEndpoints > 2 {
		w.violate("request %d of %s failed without a fault: %v", r.id, j.k.name, j.batch.Wait(context.Background()))
	}
	if w.mayLand(r) {
		r.limbo = true
		w.note("may still land", j.k.name)
		return false
	}
	w.end(r, res.Status.String())
	return true
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
