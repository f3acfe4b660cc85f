package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
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
	k        *worker
	reqs     []*req
	stream   uint64
	named    bool          // the stream is given
	deadline time.Duration // 0 for none
	batch    *railhop.Batch
	state    atomic.Int32 // submitted or refused
	refused  error
}

// The states of a job.
const (
	submitted = 1
	refused   = 2
)

// worker is a part of an application that writes, one batch after the other.
type worker struct {
	p      *proc
	name   string
	left   int
	dev    *region
	host   *region
	ended  atomic.Bool
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
	defer func() { k.ended.Store(true) }()
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
			j.state.Store(refused)
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
		j.state.Store(refused)
		return
	}
	j.state.Store(submitted)
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
