package tcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/pump"
	"github.com/railhop/railhop/internal/xfer"
)

// registered is the memory of a process.
type registered struct {
	mu     sync.Mutex
	ranges []region
}

type region struct {
	addr, length uint64
	dev          gpu.Device
}

func (m *registered) add(addr, length uint64, dev gpu.Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranges = append(m.ranges, region{addr, length, dev})
}

func (m *registered) remove(addr uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranges = slices.DeleteFunc(m.ranges, func(r region) bool { return r.addr == addr })
}

func (m *registered) Find(addr, length uint64) (gpu.Device, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.ranges {
		if r.addr <= addr && addr+length <= r.addr+r.length {
			return r.dev, true
		}
	}
	return nil, false
}

// heap allocates memory that stays where it is, which memory on a stack does not.
//
//go:noinline
func heap(n int) []byte { return make([]byte, n) }

// buffer allocates and registers host memory.
func (m *registered) buffer(n int) []byte {
	b := heap(n)
	m.add(addressOf(b), uint64(n), nil)
	return b
}

// target is a peer as a test describes it.
type target struct {
	mu      sync.Mutex
	route   Route
	next    *Route // from the next fetch on
	known   *registered
	fetch   func() *registered // what a fetch finds to be known, nil for no change
	fetches atomic.Int64
	fail    error
}

func (t *target) Name() string { return "peer" }

func (t *target) Route(context.Context) (Route, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.route, nil
}

func (t *target) Holds(addr, length uint64) error {
	t.mu.Lock()
	known := t.known
	t.mu.Unlock()
	if known == nil {
		return nil
	}
	if _, ok := known.Find(addr, length); !ok {
		return fmt.Errorf("no buffer: %w", xfer.ErrAddressNotFound)
	}
	return nil
}

func (t *target) Refetch(context.Context) error {
	t.fetches.Add(1)
	known := (*registered)(nil)
	if t.fetch != nil {
		known = t.fetch()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if known != nil {
		t.known = known
	}
	if t.next != nil {
		t.route, t.next = *t.next, nil
	}
	return t.fail
}

// rig is a path on a pump of its own.
type rig struct {
	tb   testing.TB
	loop *pump.Loop
	path *Path
}

func newRig(tb testing.TB, opts Options) *rig {
	tb.Helper()
	poller, err := NewPoller()
	if err != nil {
		tb.Fatal(err)
	}
	loop := pump.New(pump.Options{Park: poller.Park, Unpark: poller.Unpark, Lender: poller, SpinFor: -1})
	opts.Poller, opts.Now, opts.Wake = poller, loop.Now, loop.Wake
	path, err := New(opts)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); loop.Run(ctx) }()
	loop.Add(path)
	tb.Cleanup(func() {
		loop.Remove(path)
		if err := path.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
		cancel()
		<-done
		poller.Close()
	})
	return &rig{tb: tb, loop: loop, path: path}
}

// serve starts a server for memory, and returns a target that reaches it.
func serve(tb testing.TB, m *registered) (*Server, *target) {
	tb.Helper()
	s, err := Listen(ServerOptions{Log: debugLog(tb)})
	if err != nil {
		tb.Fatal(err)
	}
	s.Serve(m)
	tb.Cleanup(func() { s.Close() })
	return s, &target{route: Route{Host: "127.0.0.1", Port: s.Port(), Version: 2, Proves: true}, known: m}
}

// task is an owner.
type task struct {
	open  int
	bytes uint64
	err   error
	wg    *sync.WaitGroup
}

func (t *task) Opened(n int) { t.open += n }

func (t *task) Closed(bytes uint64, err error) {
	t.bytes += bytes
	if t.err == nil {
		t.err = err
	}
	if t.open--; t.open == 0 {
		t.wg.Done()
	}
}

// run submits work and waits for its end.
func (r *rig) run(works ...Work) []*task {
	r.tb.Helper()
	tasks, wg := r.start(works...)
	wg.Wait()
	return tasks
}

func (r *rig) start(works ...Work) ([]*task, *sync.WaitGroup) {
	r.tb.Helper()
	var wg sync.WaitGroup
	wg.Add(len(works))
	tasks := make([]*task, len(works))
	err := r.loop.Do(func() {
		for i := range works {
			tasks[i] = &task{wg: &wg}
			works[i].Owner = tasks[i]
			if err := r.path.Submit(&works[i]); err != nil {
				tasks[i].err = err
				wg.Done()
			}
		}
	})
	if err != nil {
		r.tb.Fatal(err)
	}
	return tasks, &wg
}

// mustRun is run for work that must succeed.
func (r *rig) mustRun(works ...Work) {
	r.tb.Helper()
	for i, t := range r.run(works...) {
		if t.err != nil {
			r.tb.Fatalf("request %d of %d: %v", i, len(works), t.err)
		}
		if t.bytes != works[i].Length {
			r.tb.Fatalf("request %d of %d: %d bytes in place, want %d", i, len(works), t.bytes, works[i].Length)
		}
	}
}

func (r *rig) abort(t *task, cause error) {
	r.tb.Helper()
	if err := r.loop.Do(func() { r.path.Abort(func(o Owner) bool { return o == t }, cause) }); err != nil {
		r.tb.Fatal(err)
	}
}

func debugLog(tb testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

var errEnough = errors.New("enough")

// eventually waits for something that another goroutine brings about.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within 10 s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// serveGate is serve for memory whose look-ups are held.
func serveGate(tb testing.TB, g *gate) (*Server, *target) {
	tb.Helper()
	s, err := Listen(ServerOptions{Log: debugLog(tb)})
	if err != nil {
		tb.Fatal(err)
	}
	s.Serve(heldMemory{g})
	tb.Cleanup(func() { s.Close() })
	return s, &target{route: Route{Host: "127.0.0.1", Port: s.Port(), Version: 2, Proves: true}}
}

type heldMemory struct{ g *gate }

func (h heldMemory) Find(addr, length uint64) (gpu.Device, bool) {
	h.g.pass()
	return h.g.Find(addr, length)
}
