package endpoint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
)

func TestConnectInTwoPhases(t *testing.T) {
	w := newWorld(t)
	a, b := w.host("a:1", nil), w.host("b:1", nil)
	e := w.connect(a, "b:1@nic0")
	passive := b.find(0, "a:1@nic0")
	if passive == nil || !passive.Ready() {
		t.Fatal("the peer is not connected although the ready ACK was sent")
	}
	if !slices.Equal(e.peer, passive.nums) || !slices.Equal(e.nums, passive.peer) {
		t.Errorf("queue pairs do not match: %v to %v, peer %v to %v", e.nums, e.peer, passive.nums, passive.peer)
	}
	for _, n := range e.nums {
		if q := w.fabric.Find(n); q.State() != nic.RTS {
			t.Errorf("queue pair %d is in %v", n, q.State())
		}
	}
	if calls, _ := w.net.Calls(); calls != 2 {
		t.Errorf("%d messages, want 2", calls)
	}
	if again, err := a.set.Get("b:1@nic0"); err != nil || again != e {
		t.Errorf("another endpoint for the same peer: %v", err)
	}
	// The peer uses the same endpoint for its own transfers.
	if e, err := b.set.Get("a:1@nic0"); err != nil || e != passive {
		t.Errorf("the peer has separate endpoints for its two roles: %v", err)
	}
}

func TestConnectToOnePhasePeer(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", nil)
	w.net.Serve("p:1", func(_ context.Context, hs wire.HandShake) wire.HandShake {
		return wire.HandShake{
			LocalNICPath: hs.PeerNICPath, PeerNICPath: hs.LocalNICPath,
			LocalGID: nic.GID{1}.String(), QPNum: []uint32{71, 72},
		}
	})
	w.connect(a, "p:1@x")
	if calls, _ := w.net.Calls(); calls != 1 {
		t.Errorf("%d messages to a one-phase peer, want 1", calls)
	}
}

func TestConnectToItself(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", nil)
	e := w.connect(a, "a:1@nic0")
	if calls, _ := w.net.Calls(); calls != 0 {
		t.Errorf("%d messages for a loopback, want none", calls)
	}
	if !slices.Equal(e.nums, e.peer) {
		t.Errorf("queue pairs %v are connected to %v", e.nums, e.peer)
	}
}

func TestRelayDialsItselfByHandshake(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", nil)
	relay, err := NewSet(Options{NIC: a.nic, Server: "a:1", Dialer: w.net, RelayEpoch: 77, Now: w.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	e, err := relay.Get("a:1@nic0")
	if err != nil {
		t.Fatal(err)
	}
	await(t, "relay connected", e.Ready)
	if p := a.find(77, "a:1@nic0"); p == nil || !p.Ready() {
		t.Fatal("no passive endpoint of the epoch: a fence would miss it")
	}
	if n, err := a.acceptor.Fence(t.Context(), 77); n != 2 || err != nil {
		t.Errorf("fence closed %d, %v, want 2 queue pairs", n, err)
	}
}

func TestReplyIsChecked(t *testing.T) {
	good := func(hs wire.HandShake) wire.HandShake {
		return wire.HandShake{
			LocalNICPath: hs.PeerNICPath, PeerNICPath: hs.LocalNICPath,
			LocalGID: nic.GID{1}.String(), QPNum: []uint32{1, 2}, ReadyAck: ptr(false),
		}
	}
	for _, tc := range []struct {
		name string
		edit func(*wire.HandShake)
		want string
	}{
		{"rejected", func(h *wire.HandShake) { h.ReplyMsg = "no" }, "rejected: no"},
		{"other NIC answers", func(h *wire.HandShake) { h.LocalNICPath = "p:1@y" }, `reply is of "p:1@y"`},
		{"reply for another", func(h *wire.HandShake) { h.PeerNICPath = "" }, `to ""`},
		{"bad GID", func(h *wire.HandShake) { h.LocalGID = "fe80::1" }, "Invalid peer GID: fe80::1"},
		{"no GID and no look-up", func(h *wire.HandShake) { h.LocalGID = "" }, "Peer nic not found in that server: p:1@x"},
		{"too few queue pairs", func(h *wire.HandShake) { h.QPNum = h.QPNum[:1] }, "lists 1 queue pairs, not 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.host("a:1", nil)
			w.net.Serve("p:1", func(_ context.Context, hs wire.HandShake) wire.HandShake {
				r := good(hs)
				tc.edit(&r)
				return r
			})
			e, err := a.set.Get("p:1@x")
			if err != nil {
				t.Fatal(err)
			}
			await(t, "dead", func() bool { return e.State() == Dead })
			if !strings.Contains(e.Err().Error(), tc.want) {
				t.Errorf("got %q, want %q in it", e.Err(), tc.want)
			}
			<-e.Gone()
			if n := w.fabric.QPs(); n != 0 {
				t.Errorf("%d queue pairs are left", n)
			}
		})
	}
}

func TestGIDLookedUpForOldPeer(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", func(o *Options) {
		o.Lookup = func(_ context.Context, path string) (nic.GID, uint16, error) {
			if path != "p:1@x" {
				return nic.GID{}, 0, errors.New("unknown")
			}
			return nic.GID{9}, 3, nil
		}
	})
	w.net.Serve("p:1", func(_ context.Context, hs wire.HandShake) wire.HandShake {
		return wire.HandShake{LocalNICPath: hs.PeerNICPath, PeerNICPath: hs.LocalNICPath, QPNum: []uint32{1, 2}}
	})
	w.connect(a, "p:1@x")
}

// A C++ peer rejects another number of queue pairs and lists its own.
func TestQPCountIsLearnt(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", nil)
	var asked []int
	w.net.Serve("p:1", func(_ context.Context, hs wire.HandShake) wire.HandShake {
		r := wire.HandShake{
			LocalNICPath: hs.PeerNICPath, PeerNICPath: hs.LocalNICPath,
			LocalGID: nic.GID{1}.String(), QPNum: []uint32{1, 2, 3, 4}, ReadyAck: ptr(false),
		}
		if hs.ReadyAck != nil && *hs.ReadyAck {
			return wire.HandShake{}
		}
		asked = append(asked, len(hs.QPNum))
		if len(hs.QPNum) != 4 {
			r.ReplyMsg = CountMismatch
		}
		return r
	})
	e := w.connect(a, "p:1@x")
	if !slices.Equal(asked, []int{2, 4}) {
		t.Errorf("asked for %v queue pairs, want 2, then 4", asked)
	}
	e.Fail(errors.New("lost"))
	w.clock.advance(2 * time.Second)
	w.connect(a, "p:1@x")
	if !slices.Equal(asked, []int{2, 4, 4}) {
		t.Errorf("asked for %v queue pairs: the count was not kept", asked)
	}
}

// The passive side makes as many queue pairs as it was sent.
func TestQPCountsDiffer(t *testing.T) {
	for _, n := range []int{1, 4} {
		w := newWorld(t)
		a, b := w.host("a:1", func(o *Options) { o.QPs = n }), w.host("b:1", nil)
		w.connect(a, "b:1@nic0")
		if p := b.find(0, "a:1@nic0"); len(p.qps) != n {
			t.Errorf("%d queue pairs, want %d", len(p.qps), n)
		}
	}
}

func TestSimultaneousOpen(t *testing.T) {
	for _, tc := range []struct {
		name   string
		qa, qb int
		rounds int
	}{
		{"same counts", 2, 2, 2000},
		{"counts differ", 1, 4, 500},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			delay := func() {
				if n := rand.IntN(4); n > 0 {
					time.Sleep(time.Duration(rand.IntN(20*n)) * time.Microsecond)
				}
			}
			w.net.Delay, w.fabric.Delay = delay, delay
			sem := make(chan struct{}, 64)
			var wg sync.WaitGroup
			for i := range tc.rounds {
				a := w.host(fmt.Sprintf("a:%d", i), func(o *Options) { o.QPs = tc.qa; o.Pause, o.MaxCQE = time.Nanosecond, 16 })
				b := w.host(fmt.Sprintf("b:%d", i), func(o *Options) { o.QPs = tc.qb; o.Pause, o.MaxCQE = time.Nanosecond, 16 })
				sem <- struct{}{}
				wg.Go(func() {
					defer func() { <-sem }()
					open(t, w, a, b)
				})
			}
			wg.Wait()
		})
	}
}

// open lets two hosts dial each other at once, as often as it takes.
func open(t *testing.T, w *world, a, b *host) {
	both := func() bool {
		w.clock.advance(time.Millisecond)
		ea, erra := a.set.Get(b.set.Path())
		eb, errb := b.set.Get(a.set.Path())
		a.set.Step(w.clock.now())
		b.set.Step(w.clock.now())
		if erra != nil || errb != nil {
			t.Errorf("get: %v, %v", erra, errb)
			return true
		}
		if !ea.Ready() || !eb.Ready() {
			return false
		}
		ea.mu.Lock()
		na, pa := ea.nums, ea.peer
		ea.mu.Unlock()
		eb.mu.Lock()
		nb, pb := eb.nums, eb.peer
		eb.mu.Unlock()
		return slices.Equal(na, pb) && slices.Equal(nb, pa)
	}
	for deadline := time.Now().Add(10 * time.Second); !both(); time.Sleep(20 * time.Microsecond) {
		if time.Now().After(deadline) {
			ea, eb := a.find(0, b.set.Path()), b.find(0, a.set.Path())
			t.Errorf("%s and %s do not agree: %v, %v", a.server, b.server, ea.State(), eb.State())
			return
		}
	}
}

func TestFailureBacksOff(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", nil)
	var dials int
	for sec := 0; sec < 10; sec++ {
		for range 20 { // 50 ms each
			e, err := a.set.Get("gone:1@x")
			if err != nil {
				t.Fatal(err)
			}
			await(t, "dial over", func() bool { return e.State() != Connecting })
			w.clock.advance(50 * time.Millisecond)
			a.set.Step(w.clock.now())
		}
	}
	dials, _ = w.net.Calls()
	if dials < 3 || dials > 8 {
		t.Errorf("%d dials in 10 s, want 3 to 8", dials)
	}
	tr := a.set.Trouble("gone:1@x")
	if tr.Failures < 3 || tr.Cause == nil || !strings.Contains(tr.Cause.Error(), "refused") {
		t.Errorf("trouble %+v", tr)
	}
	// It is not blacklisted for good.
	w.host("gone:1", nil)
	w.clock.advance(time.Minute)
	e, err := a.set.Get("gone:1@nic0")
	if err != nil {
		t.Fatal(err)
	}
	await(t, "connected", e.Ready)
}

func TestStormOfDials(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", func(o *Options) { o.Gate = NewGate(32) })
	w.net.Delay = func() { time.Sleep(100 * time.Microsecond) }
	var all []*Endpoint
	for i := range 240 {
		server := fmt.Sprintf("peer%d:1", i)
		w.host(server, nil)
		e, err := a.set.Get(server + "@nic0")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	await(t, "all connected", func() bool {
		return !slices.ContainsFunc(all, func(e *Endpoint) bool { return !e.Ready() })
	})
	if total, most := w.net.Calls(); total != 480 || most > 32 {
		t.Errorf("%d messages, %d at once, want 480 and at most 32", total, most)
	}
}

func TestCloseEndsDials(t *testing.T) {
	w := newWorld(t)
	a := w.host("a:1", nil)
	w.net.Serve("slow:1", func(ctx context.Context, hs wire.HandShake) wire.HandShake {
		<-ctx.Done()
		return wire.HandShake{ReplyMsg: "late"}
	})
	e, err := a.set.Get("slow:1@x")
	if err != nil {
		t.Fatal(err)
	}
	await(t, "dialled", func() bool { n, _ := w.net.Calls(); return n == 1 })
	if err := a.set.Close(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(e.Err(), ErrClosed) {
		t.Errorf("got %v, want ErrClosed", e.Err())
	}
	if _, err := a.set.Get("slow:1@x"); !errors.Is(err, ErrClosed) {
		t.Errorf("get after close: %v", err)
	}
	if n := w.fabric.QPs(); n != 0 {
		t.Errorf("%d queue pairs are left", n)
	}
}
