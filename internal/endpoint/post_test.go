package endpoint

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
)

// drain polls everything and accounts for it.
func drain(t testing.TB, e *Endpoint) (statuses []nic.Status) {
	t.Helper()
	var done [64]nic.Completion
	for {
		n, err := e.set.cq.Poll(done[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range done[:n] {
			e.Completed(c.QPN, 1)
			statuses = append(statuses, c.Status)
		}
		if n == 0 {
			return statuses
		}
	}
}

func signalled(n int) []nic.WR {
	wrs := make([]nic.WR, n)
	for i := range wrs {
		wrs[i].Signaled = true
	}
	return wrs
}

func TestPostSpreadsAndStops(t *testing.T) {
	for _, tc := range []struct {
		name   string
		maxWR  int
		maxCQE int
		posts  []int
		taken  []int
		used   []int
	}{
		{"one", 8, 100, []int{1}, []int{1}, []int{1, 0}},
		{"two in turn", 8, 100, []int{1, 1}, []int{1, 1}, []int{1, 1}},
		{"even runs", 8, 100, []int{7}, []int{7}, []int{4, 3}},
		{"queue pairs full", 8, 100, []int{20, 1}, []int{16, 0}, []int{8, 8}},
		{"one queue pair full", 8, 100, []int{3, 3, 3, 1, 1, 1, 4}, []int{3, 3, 3, 1, 1, 1, 4}, []int{8, 8}},
		{"completion queue full", 8, 10, []int{7, 7, 1}, []int{7, 3, 0}, []int{6, 4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.host("a:1", func(o *Options) { o.MaxWR, o.MaxCQE = tc.maxWR, tc.maxCQE })
			w.host("b:1", nil)
			e := w.connect(a, "b:1@nic0")
			w.fabric.Hold()
			room := e.Room()
			for i, n := range tc.posts {
				got, err := e.Post(signalled(n))
				if got != tc.taken[i] || err != nil {
					t.Errorf("post %d: took %d of %d, %v, want %d", i, got, n, err, tc.taken[i])
				}
				room -= got
			}
			if !slices.Equal(e.used, tc.used) {
				t.Errorf("outstanding %v, want %v", e.used, tc.used)
			}
			if room > 0 && e.Room() == 0 || e.Room() > room {
				t.Errorf("room %d, want %d", e.Room(), room)
			}
			w.fabric.Release()
			drain(t, e)
			if e.Open() != 0 || a.set.inflight != 0 {
				t.Errorf("%d open and %d in flight after all is reported", e.Open(), a.set.inflight)
			}
		})
	}
}

func TestPostAllocatesNothing(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", nil)
	w.host("b:1", nil)
	e := w.connect(a, "b:1@nic0")
	wrs := signalled(64)
	var done [64]nic.Completion
	if n := testing.AllocsPerRun(100, func() {
		got, err := a.set.Get("b:1@nic0")
		if err != nil || got != e {
			t.Fatal(err)
		}
		if n, err := e.Post(wrs); n != 64 || err != nil {
			t.Fatal(n, err)
		}
		k, _ := a.set.cq.Poll(done[:])
		for _, c := range done[:k] {
			e.Completed(c.QPN, 1)
		}
		a.set.Step(w.clock.now())
		a.set.Reap()
	}); n != 0 {
		t.Errorf("%v allocations a post", n)
	}
}

func TestFailFlushesThenDestroys(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", nil)
	w.host("b:1", nil)
	e := w.connect(a, "b:1@nic0")
	w.fabric.Hold()
	if n, err := e.Post(signalled(5)); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	lost := errors.New("lost")
	e.Fail(lost)
	e.Fail(errors.New("later"))
	if !errors.Is(e.Err(), lost) {
		t.Errorf("cause %v, want the first", e.Err())
	}
	if _, err := e.Post(signalled(1)); !errors.Is(err, ErrNotReady) {
		t.Errorf("a dead endpoint takes work: %v", err)
	}
	w.clock.advance(2 * time.Second)
	if next := w.connect(a, "b:1@nic0"); next == e {
		t.Fatal("a dead endpoint was used again")
	}
	select {
	case <-e.Gone():
		t.Fatal("destroyed before its work was reported")
	default:
	}
	var statuses []nic.Status
	await(t, "flushed", func() bool { statuses = append(statuses, drain(t, e)...); return len(statuses) >= 5 })
	for _, s := range statuses {
		if s != nic.StatusFlushed {
			t.Errorf("status %v", s)
		}
	}
	<-e.Gone()
	if got := a.set.Reap(); got != e {
		t.Errorf("reaped %v", got)
	}
	if a.set.Reap() != nil || a.set.inflight != 0 {
		t.Errorf("%d in flight", a.set.inflight)
	}
}

func TestUnreportedWorkIsReaped(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", func(o *Options) { o.FlushTimeout = time.Millisecond })
	w.host("b:1", nil)
	e := w.connect(a, "b:1@nic0")
	w.fabric.Stick() // the peer cannot be reached
	if n, _ := e.Post(signalled(5)); n != 5 {
		t.Fatal(n)
	}
	e.Fail(errors.New("lost"))
	time.Sleep(5 * time.Millisecond)
	if a.set.Reap() != nil {
		t.Fatal("reaped although what was posted may still land")
	}
	w.fabric.Release()
	await(t, "reaped", func() bool { return a.set.Reap() == e })
	if e.Open() != 5 || a.set.inflight != 0 {
		t.Errorf("%d open, %d in flight: want 5 to end without a report", e.Open(), a.set.inflight)
	}
}

func TestCloseNamesWhatMayStillLand(t *testing.T) {
	w := newWorld(t)
	w.host("b:1", nil)
	dev := w.fabric.NewDevice("nic0", 8)
	pd, _ := dev.NewPD()
	s, err := NewSet(Options{NIC: &NIC{Name: "nic0", Device: dev, PD: pd}, Server: "a:1", Dialer: w.net})
	if err != nil {
		t.Fatal(err)
	}
	e, _ := s.Get("b:1@nic0")
	await(t, "connected", e.Ready)
	w.fabric.Stick()
	if err := s.Close(); err == nil {
		t.Error("no error although the peer cannot be reached")
	}
	w.fabric.Release()
}

func TestEviction(t *testing.T) {
	for _, tc := range []struct {
		name string
		fifo bool
		want string // peers left after a fourth was added
	}{
		{"FIFO evicts the oldest", true, "p1 p2 p3"},
		{"SIEVE spares the used", false, "p0 p2 p3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.host("a:1", func(o *Options) { o.MaxEndpoints, o.FIFO = 3, tc.fifo })
			var eps []*Endpoint
			for i := range 4 {
				w.host(fmt.Sprintf("p%d", i), nil)
			}
			for i := range 3 {
				eps = append(eps, w.connect(a, fmt.Sprintf("p%d@nic0", i)))
			}
			for _, e := range eps {
				e.visited.Store(false)
			}
			if _, err := eps[0].Post(signalled(1)); err != nil {
				t.Fatal(err)
			}
			drain(t, eps[0])
			w.connect(a, "p3@nic0")
			var left string
			for _, e := range a.set.store.all() {
				server, _ := wire.SplitNICPath(e.path)
				left += " " + server
			}
			if left[1:] != tc.want {
				t.Errorf("left %s, want %s", left[1:], tc.want)
			}
		})
	}
}

func TestEvictionSparesTheBusy(t *testing.T) {
	for _, fifo := range []bool{true, false} {
		w := newWorld(t)
		a := w.host("a:1", func(o *Options) { o.MaxEndpoints, o.FIFO = 2, fifo })
		for i := range 3 {
			w.host(fmt.Sprintf("p%d", i), nil)
		}
		w.fabric.Hold()
		for i := range 2 {
			if n, err := w.connect(a, fmt.Sprintf("p%d@nic0", i)).Post(signalled(1)); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if _, err := a.set.Get("p2@nic0"); !errors.Is(err, ErrFull) {
			t.Errorf("fifo %v: got %v, want ErrFull", fifo, err)
		}
		w.fabric.Release()
		drain(t, a.find(0, "p0@nic0"))
		a.find(0, "p1@nic0").Completed(a.find(0, "p1@nic0").nums[0], 1)
		w.connect(a, "p2@nic0")
	}
}

func TestEvictedPeerConnectsAnewAtOnce(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", func(o *Options) { o.MaxEndpoints = 1 })
	w.host("p0", nil)
	w.host("p1", nil)
	for i := range 6 {
		w.connect(a, fmt.Sprintf("p%d@nic0", i%2))
	}
	if st := a.set.Stats(); st.Connects != 6 || st.Evictions != 5 || st.Failures != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestFailQP(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", nil)
	w.host("b:1", nil)
	e := w.connect(a, "b:1@nic0")
	a.set.FailQP(12345)
	if !e.Ready() {
		t.Fatal("another's queue pair")
	}
	a.set.FailQP(e.nums[1])
	if !errors.Is(e.Err(), ErrQPFatal) {
		t.Errorf("got %v", e.Err())
	}
}

func TestClosePeer(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", nil)
	w.host("b:1", nil)
	e := w.connect(a, "b:1@nic0")
	a.set.ClosePeer("b:1@nic0")
	<-e.Gone()
	w.connect(a, "b:1@nic0")
}

// Peers that are waited for do not keep others out.
func TestEvictionOfTheWaiting(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", func(o *Options) { o.MaxEndpoints = 2 })
	w.host("b:1", nil)
	for range 2 {
		for _, path := range []string{"gone:1@x", "gone:2@x"} {
			e, err := a.set.Get(path)
			if err != nil {
				t.Fatal(err)
			}
			await(t, "dial over", func() bool { return e.State() != Connecting })
		}
	}
	if n := a.set.Stats().Endpoints; n != 2 {
		t.Fatalf("%d endpoints, want 2 that wait", n)
	}
	w.connect(a, "b:1@nic0")
	if _, err := a.set.Get("gone:1@x"); err != nil {
		t.Error(err) // it is there, or takes the idle one's place
	}
}
