package rdma

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/xfer"
)

// failN fails the first n requests on a device ("" for any) with status.
func (r *rig) failN(device string, n int, status nic.Status) {
	r.fabric.Fault = func(d string, _ nic.WR) nic.Status {
		if n > 0 && (device == "" || d == device) {
			n--
			return status
		}
		return nic.StatusSuccess
	}
}

func TestFailover(t *testing.T) {
	for _, tc := range []struct {
		name        string
		local, peer int // NICs
		status      nic.Status
		times       int
		wantNIC     string // local one that moved the bytes after all
		wantPeer    string
	}{
		{"no answer, one peer NIC", 1, 1, nic.StatusRetryExceeded, 1, "nic0", "nic0"},
		{"no answer, two peer NICs", 1, 2, nic.StatusRetryExceeded, 1, "nic0", "nic1"},
		{"unspecific", 1, 2, nic.StatusGeneral, 1, "nic0", "nic1"},
		{"refused once", 1, 2, nic.StatusRemoteAccess, 1, "nic0", ""},
		{"local error", 2, 1, nic.StatusLocalProtection, 1, "nic1", "nic0"},
		{"local error, one NIC", 1, 1, nic.StatusLocalQPOperation, 1, "nic0", "nic0"},
		{"eight times", 1, 1, nic.StatusRetryExceeded, 8, "nic0", "nic0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.local, func(o *Options, _ *endpoint.Options) {
				o.Matrix = map[string][2][]string{"cuda:0": {{"nic0"}, {}}}
			})
			m := r.peer("b:1", tc.peer)
			m.first = 1
			r.failN("nic0", tc.times, tc.status)
			o := r.submit(m, 100)
			r.finish(true, o)
			if len(o.errs) != 0 || o.bytes != 100 {
				t.Fatalf("%+v", o)
			}
			for _, l := range r.path.Stats().Links {
				if l.Bytes > 0 && (l.NIC != tc.wantNIC || tc.wantPeer != "" && peerNIC(l.Peer) != tc.wantPeer) {
					t.Errorf("went by %s to %s, want %s to %s", l.NIC, l.Peer, tc.wantNIC, tc.wantPeer)
				}
			}
			if m.fetches.Load() == 0 {
				t.Error("the descriptor was not fetched anew")
			}
			r.settled()
		})
	}
}

// TestRetryCounts submits what has failed once elsewhere: it goes to another peer NIC than
// the preferred one, also if its address is not known yet.
func TestRetryCounts(t *testing.T) {
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("known %v", known), func(t *testing.T) {
			r := newRig(t, 1, nil)
			m := r.peer("b:1", 2)
			m.first = 1
			if !known {
				m.next = m.buffers.Swap(&[]Region{})
			}
			o := new(owner)
			if err := r.path.Submit(&Work{Op: xfer.Write, Local: mib, Remote: mib, Length: 100, Target: m, Owner: o, Retry: 2}); err != nil {
				t.Fatal(err)
			}
			r.finish(true, o)
			if len(o.errs) != 0 || o.bytes != 100 {
				t.Fatalf("%+v", o)
			}
			for _, l := range r.path.Stats().Links {
				if l.Bytes > 0 && peerNIC(l.Peer) != "nic1" {
					t.Errorf("went to %s, want the second", l.Peer)
				}
			}
			r.settled()
		})
	}
}

func TestPausedLinkComesBack(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 2)
	m.first = 1
	r.failN("", 1, nic.StatusRetryExceeded)
	r.finish(false, r.submit(m, 100))
	ops := func() (n [2]uint64) {
		for _, l := range r.path.Stats().Links {
			n[l.Peer[len(l.Peer)-1]-'0'] = l.Ops
		}
		return n
	}
	r.clock.Add(int64(29 * time.Second))
	r.finish(false, r.submit(m, 100))
	if n := ops(); n != [2]uint64{0, 2} {
		t.Errorf("operations by peer NIC %v while the first is paused", n)
	}
	r.clock.Add(int64(2 * time.Second))
	r.finish(false, r.submit(m, 100))
	if n := ops(); n != [2]uint64{1, 2} {
		t.Errorf("operations by peer NIC %v after its pause", n)
	}
}

// A target that no longer publishes the NIC of a link that failed is asked again, after
// the pause and then more and more rarely, until the link works.
func TestPausedLinkIsLookedFor(t *testing.T) {
	r := newRig(t, 1, func(o *Options, _ *endpoint.Options) { o.RailPause = 3 * time.Second })
	m := r.peer("b:1", 2)
	m.first = 1
	both := m.nics
	r.failN("", 1, nic.StatusRetryExceeded)
	r.finish(false, r.submit(m, 100))
	m.nics = both[1:] // what the target publishes meanwhile
	start, fetches := r.now(), m.fetches.Load()
	tick := func() {
		r.clock.Add(int64(time.Second))
		r.finish(false, r.submit(m, 100))
		for r.path.targets[m].fetching {
			r.path.Step(r.now())
			runtime.Gosched()
		}
	}
	var at []time.Duration
	for r.now() < start+100*time.Second {
		tick()
		if n := m.fetches.Load(); n > fetches {
			at, fetches = append(at, (r.now()-start).Round(time.Second)), n
		}
	}
	if want := []time.Duration{3 * time.Second, 9 * time.Second, 21 * time.Second, 45 * time.Second, 69 * time.Second, 93 * time.Second}; !slices.Equal(at, want) {
		t.Errorf("fetched after %v, want %v", at, want)
	}
	m.nics = both
	for range 100 {
		tick()
	}
	if n := m.fetches.Load(); n != fetches {
		t.Errorf("fetched %d times more once the link works", n-fetches)
	}
	for _, l := range r.path.Stats().Links {
		if l.Peer == both[0] && l.Ops == 0 {
			t.Errorf("%+v: not used again", l)
		}
	}
}

func TestFlushedAreSentAgain(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 1)
	r.failN("", 1, nic.StatusRetryExceeded)
	o := r.submit(m, 50*65536)
	r.finish(true, o)
	if len(o.errs) != 0 || o.bytes != 50*65536 {
		t.Fatalf("%+v", o)
	}
	st := r.path.Stats()
	if st.Flushed == 0 || st.NICs[0].Endpoints.Reconnects != 1 || m.fetches.Load() != 1 {
		t.Errorf("%+v, %d fetches", st, m.fetches.Load())
	}
	r.settled()
}

func TestDirectImpossible(t *testing.T) {
	t.Run("no answer", func(t *testing.T) {
		r := newRig(t, 1, nil)
		m := r.peer("b:1", 1)
		r.failN("", 1<<30, nic.StatusRetryExceeded)
		start := r.now()
		o := r.submit(m, 200000)
		r.finish(true, o)
		for _, want := range []string{"nic0 (rail rail0)", "b:1@nic0 (rail nic0)", "retry counter exceeded"} {
			if !strings.Contains(o.errs[0].Error(), want) {
				t.Errorf("%q is not in %q", want, o.errs[0])
			}
		}
		wantErr(t, o, xfer.ErrEndpoint)
		if took := r.now() - start; took > 15*time.Second {
			t.Errorf("given up after %v", took)
		}
		// Not tried for ever: the next fails at once, until the pause is over.
		posted := r.path.Stats().Posted
		o = r.submit(m, 200000)
		if !o.done() || r.path.Stats().Posted != posted {
			t.Errorf("tried again: %+v", o)
		}
		r.fabric.Fault = nil
		r.clock.Add(int64(31 * time.Second))
		o = r.submit(m, 200000)
		r.finish(true, o)
		if len(o.errs) > 0 {
			t.Errorf("blacklisted for good: %v", o.errs[0])
		}
		r.settled()
	})
	t.Run("nobody listens", func(t *testing.T) {
		r := newRig(t, 1, nil)
		m := r.peer("b:1", 1)
		r.net.Serve("b:1", nil)
		start := r.now()
		o := r.submit(m, 200000)
		r.finish(true, o)
		if !strings.Contains(o.errs[0].Error(), "connection refused") {
			t.Errorf("got %q", o.errs[0])
		}
		if took := r.now() - start; took > 5*time.Second {
			t.Errorf("given up after %v", took)
		}
		dials, _ := r.net.Calls()
		if o = r.submit(m, 100); !o.done() {
			t.Error("the next does not fail at once")
		}
		if n, _ := r.net.Calls(); n != dials || n > 4 {
			t.Errorf("%d dials, then %d", dials, n)
		}
		r.start("b:1", 1)
		r.clock.Add(int64(20 * time.Second))
		o = r.submit(m, 100)
		r.finish(true, o)
		if len(o.errs) > 0 {
			t.Errorf("blacklisted for good: %v", o.errs[0])
		}
		r.settled()
	})
}

func TestRefusedByTarget(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 1)
	r.failN("", 1<<30, nic.StatusRemoteAccess)
	o := r.submit(m, 100)
	r.finish(true, o)
	var ce *nic.CompletionError
	if !errors.As(o.errs[0], &ce) || ce.Status != nic.StatusRemoteAccess {
		t.Errorf("got %v", o.errs[0])
	}
	if n := r.path.Stats().Posted; n != 2 {
		t.Errorf("posted %d times, want twice, with a fetch in between", n)
	}
}

// A target that refuses on one queue pair and closes the other in silence has
// refused, whichever of the two is seen first.
func TestRefusalIsTold(t *testing.T) {
	for _, first := range []nic.Status{nic.StatusRetryExceeded, nic.StatusRemoteAccess} {
		t.Run(first.String(), func(t *testing.T) {
			r := newRig(t, 1, nil)
			m := r.peer("b:1", 1)
			r.finish(false, r.submit(m, 1))
			var n atomic.Int64
			r.fabric.Fault = func(string, nic.WR) nic.Status {
				switch n.Add(1) {
				case 1:
					return first
				case 2:
					return nic.StatusRetryExceeded
				}
				return nic.StatusRemoteAccess
			}
			o := r.submit(m, 4*65536)
			r.finish(true, o)
			var le *LinkError
			if !errors.As(o.errs[0], &le) || !le.Refused() {
				t.Errorf("got %v, want the refusal", o.errs[0])
			}
			r.settled()
		})
	}
}

// lines counts what is logged, by any goroutine.
type lines struct{ n atomic.Int64 }

func (l *lines) Write(p []byte) (int, error) { l.n.Add(1); return len(p), nil }

// 1,000 slices fail with a bad-request error (D20).
func TestStormOfRefusals(t *testing.T) {
	var log lines
	r := newRig(t, 1, func(o *Options, eo *endpoint.Options) {
		eo.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	m := r.peer("b:1", 1)
	r.finish(false, r.submit(m, 1))
	r.failN("", 1<<30, nic.StatusRemoteInvalid)
	start := r.now()
	var owners []*owner
	for range 1000 {
		owners = append(owners, r.submit(m, 100))
	}
	r.finish(true, owners...)
	seconds := int((r.now()-start)/time.Second) + 2
	st := r.path.Stats().NICs[0].Endpoints
	if int(st.Reconnects) > seconds || int(log.n.Load()) > seconds {
		t.Errorf("%d reconnects and %d log lines in %d s", st.Reconnects, log.n.Load(), seconds)
	}
	for _, o := range owners {
		if len(o.errs) != 1 || !strings.Contains(o.errs[0].Error(), "remote invalid request") {
			t.Fatalf("first cause not kept: %v", o.errs)
		}
	}
	r.settled()
	// The peer is usable again.
	r.fabric.Fault = nil
	o := r.submit(m, mib)
	r.finish(true, o)
	if len(o.errs) > 0 {
		t.Error(o.errs[0])
	}
	r.settled()
}

// A request that has failed takes its queued slices with it.
func TestOneRefusalEndsTheRequest(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 1)
	r.finish(false, r.submit(m, 1))
	r.failN("", 1<<30, nic.StatusRemoteAccess)
	start := r.now()
	o := r.submit(m, 1000*65536)
	r.finish(true, o)
	if took := r.now() - start; took > 3*time.Second || o.bytes != 0 {
		t.Errorf("took %v, %d bytes", took, o.bytes)
	}
	r.settled()
}

func TestStormOfPeers(t *testing.T) {
	r := newRig(t, 1, nil)
	var peers []*remote
	for i := range 240 {
		peers = append(peers, r.peer(fmt.Sprintf("b%d:1", i), 1))
	}
	start := time.Now()
	var owners []*owner
	for _, m := range peers {
		owners = append(owners, r.submit(m, 3*65536))
	}
	r.finish(false, owners...)
	t.Logf("240 peers connected and served in %v", time.Since(start))
	for i, o := range owners {
		if o.bytes != 3*65536 {
			t.Errorf("peer %d: %+v", i, o)
		}
	}
	if _, most := r.net.Calls(); most > 32 {
		t.Errorf("%d dials at once", most)
	}
	r.settled()
}

func TestPeerRestarts(t *testing.T) {
	r := newRig(t, 1, nil)
	m := &remote{name: "b:1", nics: []string{"b:1@nic0"}, rkey: 7}
	m.buffers.Store(&[]Region{{Addr: mib, Length: 1 << 40}})
	stop := r.start("b:1", 1)
	r.finish(false, r.submit(m, mib))
	stop()
	r.clock.Add(int64(time.Minute))
	r.start("b:1", 1)
	calls, _ := r.net.Calls()
	o := r.submit(m, mib)
	r.finish(true, o)
	if len(o.errs) > 0 {
		t.Fatal(o.errs[0])
	}
	if n, _ := r.net.Calls(); n != calls+2 || m.fetches.Load() != 1 {
		t.Errorf("%d messages and %d fetches, want one handshake (2) and 1", n-calls, m.fetches.Load())
	}
	r.settled()
}

func TestEvictedAreSentAgainWithoutPenalty(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 1)
	r.finish(false, r.submit(m, 1))
	r.fabric.Hold()
	o := r.submit(m, 10*65536)
	r.until("posted", false, func() bool { return r.path.Stats().Posted == 11 })
	r.sets[0].ClosePeer("b:1@nic0")
	r.fabric.Release()
	r.finish(true, o)
	if st := r.path.Stats(); len(o.errs) > 0 || st.Retries != 0 || m.fetches.Load() != 0 {
		t.Errorf("%+v, %+v", o, st)
	}
	r.settled()
}
