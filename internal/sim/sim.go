// Package sim runs whole engines, relays and handshakes in one process, under
// simulated time, network, NICs, GPUs and shared memory, driven by a seed.
//
//	         ┌────────────────────── a bubble of testing/synctest ──────────────────────┐
//	seed ──> │ driver: picks the next event ─> turns a pump, delivers, fails, kills ... │ ──> trace, violations
//	         │ goroutines of the engines: run until they wait for the driver or a timer │
//	         └──────────────────────────────────────────────────────────────────────────┘
//
// The code under test is the real one, from [railhop.Open] to the commit word. It
// meets the simulation at the seams: nic.Provider, gpu.Provider and the hooks for
// the pump, the handshakes' network and the registry. Control blocks are real
// memory of the real layout; bytes are really copied, at the time of delivery.
//
// A process of the simulation is an engine with what belongs to it. One that is
// killed is never turned again; its NIC and its GPU go on until it is closed. One
// that is stopped goes on later.
//
// The driver is the only goroutine that decides. Goroutines of the engines leave
// what they ask for in a list; when all of them wait, the driver sorts it, draws
// delays, and picks one thing to happen. So a seed replays exactly. Sim state is
// guarded by one mutex, which is never held over a call into an engine.
//
// The package is for tests. It owns no promise: what it checks is listed in
// check.go, at each event, and in after.go, at the end.
package sim

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop"
)

// Options says what to run.
type Options struct {
	Seed   uint64
	Bug    Bug       // planted, if any
	Memory *Memory   // shared by runs, one at a time
	Trace  io.Writer // takes a line an event; nil means none
}

// Result is what a run came to.
type Result struct {
	Seed       uint64
	Hash       uint64 // of the trace
	Events     int
	Faults     int
	Requests   int
	Relayed    uint64 // bytes
	Direct     uint64 // bytes
	Failed     int    // requests that ended with an error
	Elapsed    time.Duration
	Reasons    map[railhop.Reason]uint64 // why tasks and pieces were not relayed
	Violations []string
}

// world is one run.
type world struct {
	opts  Options
	plan  plan
	rng   *rand.Rand
	start time.Time

	mu       sync.Mutex
	incoming []*event
	poke     chan struct{}

	waiting eventHeap
	ready   []*event
	procs   []*proc
	net     network
	fabric  fabric
	group   group
	bells   map[uint64]bell
	pool    *pool
	used    used
	roles   []*role
	next    int           // fault of the plan
	opened  time.Duration // when the engines were all there
	quietAt time.Duration
	serial  uint64 // of patterns

	reqs     []*req // open ones
	workers  []*worker
	hitMu    sync.Mutex
	hit      []string    // calls that were made to fail
	peaceful atomic.Bool // quiet, for goroutines
	calm     bool        // no fault so far
	portLost bool        // at least once
	quiet    bool        // no faults any more
	ids      uint64

	result  Result
	hash    uint64
	over    bool
	turning *proc // whose pump turns
	nested  bool  // within another's turn
	events  int   // since the last phase began
}

func (w *world) tracef(format string, args ...any) {
	if w.opts.Trace == nil {
		return
	}
	fmt.Fprintf(w.opts.Trace, "%12v  %s\n", w.now(), fmt.Sprintf(format, args...))
}

// note makes something part of the trace.
func (w *world) note(what, key string) {
	h := fnv.New64a()
	var b [16]byte
	now := uint64(w.now())
	for i := range 8 {
		b[i] = byte(now >> (8 * i))
		b[8+i] = byte(w.hash >> (8 * i))
	}
	h.Write(b[:])
	io.WriteString(h, what)
	io.WriteString(h, key)
	w.hash = h.Sum64()
	if w.opts.Trace != nil {
		w.tracef("%s %s", what, key)
	}
}

// violate reports that a promise was broken.
func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violateLocked(format, args...)
}

func (w *world) violateLocked(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(w.result.Violations) < 8 {
		w.result.Violations = append(w.result.Violations, fmt.Sprintf("at %v: %s", w.now(), text))
	}
	w.over = true
	if w.opts.Trace != nil {
		fmt.Fprintf(w.opts.Trace, "%12v  VIOLATION %s\n", w.now(), text)
	}
}

const (
	idleStep  = 5 * time.Millisecond // so far at most time goes at once: a timer's ring is not heard before
	maxEvents = 400_000
)

// turnable reports whether a process's pump would turn now.
func (w *world) turnable(p *proc, now time.Duration) bool {
	if p.loop.Load() == nil || p.stopped || p.dead && !p.clearing {
		return false
	}
	return !p.parked || !p.loop.Load().Asleep() || p.limit != 0 && now >= p.limit
}

// step lets one thing happen, or time pass.
func (w *world) step() {
	w.result.Events++
	w.events++
	if w.events > maxEvents {
		w.stuck(fmt.Sprintf("%d events and no end", maxEvents))
		return
	}
	now := w.now()
	for len(w.waiting) > 0 && w.waiting[0].at <= now {
		w.ready = append(w.ready, heap.Pop(&w.waiting).(*event))
	}
	var pumps [16]*proc
	n := 0
	for _, p := range w.procs {
		if w.turnable(p, now) && n < len(pumps) {
			pumps[n] = p
			n++
		}
	}
	total := len(w.ready) + n
	if total == 0 || w.chance(1, 24) {
		w.pass(now, total > 0)
		return
	}
	i := w.rng.IntN(total)
	if i < n {
		w.turn(pumps[i], false)
		return
	}
	i -= n
	e := w.ready[i]
	w.ready = append(w.ready[:i], w.ready[i+1:]...)
	w.happen(e)
}

func (w *world) happen(e *event) {
	if p := e.owner; p != nil {
		switch {
		case p.clearing:
			if e.lost != nil {
				e.lost()
				return
			}
		case p.dead:
			p.held = append(p.held, e)
			return
		case p.stopped:
			p.held = append(p.held, e)
			return
		}
	}
	w.note(e.what, e.key)
	e.fire()
}

// pass lets time pass, until something can happen, or a little.
func (w *world) pass(now time.Duration, little bool) {
	d := idleStep
	if little {
		d = time.Duration(1+w.rng.IntN(20)) * time.Microsecond
	}
	if len(w.waiting) > 0 {
		d = min(d, w.waiting[0].at-now)
	}
	for _, p := range w.procs {
		if p.loop.Load() != nil && p.parked && p.limit > now && !p.stopped && (!p.dead || p.clearing) {
			d = min(d, p.limit-now)
		}
	}
	if d <= 0 {
		d = time.Microsecond
	}
	select {
	case <-w.poke:
	default:
	}
	t := time.NewTimer(d)
	select {
	case <-t.C:
	case <-w.poke:
		t.Stop()
	}
}

// turn turns a pump once. A probe is a turn that nobody has asked for: it must
// find nothing to do.
func (w *world) turn(p *proc, probe bool) {
	if p.parked {
		p.loop.Load().Resume()
	}
	outer := w.turning
	w.turning = p
	limit, cold := p.loop.Load().Turn()
	w.turning = outer
	if probe && !cold && !p.taken {
		w.violate("%s had work and nobody rang its pump", p)
	}
	p.taken = false
	p.parked, p.limit = cold, 0
	if cold && limit > 0 {
		p.limit = w.now() + limit
	}
}

// interleave lets another process's pump turn in the middle of p's: between two
// accesses to a lane's words. Only the driver's own turns are cut so; what runs in a
// goroutine touches none of the words that this is called for.
func (w *world) interleave(p *proc) {
	if w.turning != p || w.nested || w.over || !w.chance(1, 256) {
		return
	}
	now := w.now()
	o := w.procs[w.rng.IntN(len(w.procs))]
	if o == p || !w.turnable(o, now) {
		return
	}
	w.nested = true
	w.note("in between", o.name)
	w.turn(o, false)
	w.nested = false
}

// probe looks whether a pump sleeps that should not. Once there were faults a pump
// may find, by time alone, that a peer has gone.
func (w *world) probe() {
	if !w.calm || !w.chance(1, 8) {
		return
	}
	p := w.procs[w.rng.IntN(len(w.procs))]
	if p.loop.Load() == nil || !p.parked || !p.loop.Load().Asleep() || p.limit != 0 && p.limit-w.now() < 6*time.Millisecond {
		return
	}
	w.turn(p, true)
}

// run steps until done reports true, for at most limit of simulated time.
func (w *world) run(limit time.Duration, done func() bool) bool {
	end := w.now() + limit
	for !w.over {
		w.settle()
		w.look()
		if done() {
			return true
		}
		if w.now() > end {
			return false
		}
		w.inject()
		w.probe()
		w.step()
	}
	return false
}

// Run runs a seed. It must be called in a bubble of testing/synctest.
func Run(o Options) (r Result) {
	w := newWorld(o)
	defer func() {
		if v := recover(); v != nil {
			text := string(debug.Stack())
			if i := strings.Index(text, "panic("); i > 0 {
				text = text[i:]
			}
			w.violate("panic: %v\n%s", v, text)
			r = w.result
		}
	}()
	w.story()
	w.result.Hash = w.hash
	w.result.Elapsed = w.now()
	return w.result
}
