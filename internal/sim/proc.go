package sim

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/pump"
	"github.com/railhop/railhop/internal/shmabi"
)

var errZombie = errors.New("sim: the process is dead")

// proc is a process: an engine and what belongs to it.
type proc struct {
	w                 *world
	name              string
	role              *role
	life              int // how often the role was started
	host              string
	number            int // of all processes
	gpu               int // its own, -1 for a target
	pid               int32
	space             space
	cfg               railhop.Config
	engine            *railhop.Engine
	ready             bool        // the engine is open, and what it offers is registered
	closed            atomic.Bool // the engine was closed, or could not be opened
	asked             bool        // to close
	failed            bool        // it could not be started
	early             bool        // closed while others were stopped: its arena may be leaked
	working, shutting bool

	loop   atomic.Pointer[pump.Loop]
	parked bool
	limit  time.Duration // the park ends by then; 0 for never
	taken  bool          // a lane of it was claimed since its last turn

	stopped  bool
	dead     bool // killed
	gone     bool // and closed: descriptors, NIC and GPU work
	clearing bool // is cleared away at the end of the run
	undead   atomic.Bool
	held     []*event

	gpus    *gpus
	nics    *nics
	entries []*entry
	watches []*watch
	workers []*worker
	targets map[string]*region // what a target offers, by worker and rail
	making  map[string]bool    // of them, what is being registered
	counts  map[string]int     // of calls, by what is asked
	hits    map[string]int     // of calls that may fail
}

func (p *proc) String() string { return p.name }

// zombie reports whether the process is dead and cleared away: nothing that it
// does has an effect any more.
func (p *proc) zombie() bool { return p.undead.Load() }

func (p *proc) alive() bool { return !p.dead && !p.closed.Load() }

func (p *proc) identity() shmabi.Identity {
	return shmabi.Identity{UID: 1000, PID: p.pid, StartTicks: uint64(1000 + p.pid)}
}

// turnHook implements the engine's hook: the driver turns the pump.
func (p *proc) turnHook(ctx context.Context, l *pump.Loop) {
	p.loop.Store(l)
	<-ctx.Done()
	p.loop.Store(nil)
	l.Stop()
}

// launch begins to open a process's engine.
func (w *world) launch(p *proc) {
	w.procs = append(w.procs, p)
	go func() {
		e, err := railhop.Open(p.cfg)
		if err == nil {
			err = p.offer(e)
		}
		w.call(p, 0, 0, "open "+p.name, "opened", func() error {
			p.engine, p.ready, p.failed = e, err == nil, err != nil
			if err != nil {
				w.tracef("%s cannot start: %v", p, err)
			}
			return nil
		})
		if p.zombie() {
			p.engine = e
		}
		if e == nil {
			p.closed.Store(true)
		}
	}()
}

// kill ends a process at this instant. What it has in its NIC and GPU goes on
// until it is closed.
func (w *world) kill(p *proc, teardown time.Duration) {
	p.dead = true
	w.calm = false
	w.group.died(p)
	w.after(nil, teardown, teardown, "teardown "+p.name, "closed by the kernel", func() { w.tear(p) })
}

// tear takes away what the kernel held for a dead process.
func (w *world) tear(p *proc) {
	p.gone = true
	w.fabric.closeAll(p)
	p.gpus.drop()
	w.net.closed(p)
	w.group.closed(p)
}

func (w *world) stop(p *proc) { p.stopped = true; w.calm = false }

func (w *world) resume(p *proc) {
	p.stopped = false
	held := p.held
	p.held = nil
	w.ready = append(w.ready, held...)
}

// clear makes a zombie of a dead process, so that its goroutines can end.
func (w *world) clear(p *proc) {
	p.stopped, p.clearing = false, true
	p.undead.Store(true)
	w.fabric.closeAll(p)
	p.gpus.drop()
	w.net.abandon(p)
	held := p.held
	p.held = nil
	for _, e := range held {
		if e.lost != nil {
			e.lost()
		}
	}
}

// shut closes a process's engine, off the driver.
func (w *world) shut(p *proc) {
	p.asked = true
	if p.closed.Load() {
		return
	}
	go func() {
		var err error
		if p.engine != nil {
			err = p.engine.Close()
		}
		if err != nil && !p.dead {
			w.tracef("%s closed with %v", p, err)
		}
		p.closed.Store(true)
	}()
}

// calls counts the calls of a kind, so that each has a key of its own. The world's
// mutex is held.
func (p *proc) calls(what string) int {
	p.counts[what]++
	return p.counts[what]
}
