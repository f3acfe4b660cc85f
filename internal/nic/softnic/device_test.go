package softnic

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/railhop/railhop/internal/nic"
)

// two returns two connected rigs.
func two(t testing.TB, a, b DeviceConfig, memory int) (*rig, *rig) {
	t.Helper()
	ra, rb := newRig(t, a, memory), newRig(t, b, memory)
	ra.connect(rb.end())
	rb.connect(ra.end())
	return ra, rb
}

// to is a request of n bytes from the start of r to the start of peer.
func (r *rig) to(peer *rig, kind nic.Op, id uint64, n int) nic.WR {
	w := r.wr(kind, id, n)
	w.RKey, w.RemoteAddr = peer.mr.RKey(), peer.addr
	return w
}

func TestCounters(t *testing.T) {
	a, b := two(t, DeviceConfig{Name: "mlx5_0", Rail: "r0"}, DeviceConfig{Name: "mlx5_1", Rail: "r1"}, 4096)
	a.post(a.to(b, nic.OpWrite, 1, 1000), a.to(b, nic.OpWrite, 2, 24), a.to(b, nic.OpRead, 3, 300), a.to(b, nic.OpWrite, 4, 0))
	a.want(0, 0, 0, 0)
	b.post(b.to(a, nic.OpWrite, 1, 7))
	b.want(0)
	at := func(r *rig) netip.AddrPort { return addrOf(r.d.gid, r.d.lid) }
	eq := cmp.Comparer(func(x, y netip.AddrPort) bool { return x == y })
	if d := cmp.Diff([]PeerCount{{
		Addr: at(b), Name: "mlx5_1", Rail: "r1", QPN: b.q.num,
		WroteThere: 1024, ReadThere: 300, OpsThere: 4, WroteHere: 7, OpsHere: 1,
	}}, a.d.Counters(), eq); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]PeerCount{{
		Addr: at(a), Name: "mlx5_0", Rail: "r0", QPN: a.q.num,
		WroteHere: 1024, ReadHere: 300, OpsHere: 4, WroteThere: 7, OpsThere: 1,
	}}, b.d.Counters(), eq); d != "" {
		t.Error(d)
	}
	if got, want := b.d.Counters()[0].Key(), at(a).String()+"/mlx5_0"; got != want {
		t.Errorf("key %q, want %q", got, want)
	}
}

func TestCountersBounded(t *testing.T) {
	c := tally{peers: map[tallyKey]*tallyCount{}}
	for i := range uint32(maxTally + 100) {
		c.count(tallyKey{at: end{qpn: i + 1}}).opsHere.Add(1)
	}
	sum := uint64(0)
	for _, p := range c.Counters() {
		sum += p.OpsHere
	}
	if n := len(c.Counters()); n > maxTally+1 || sum != maxTally+100 {
		t.Errorf("%d entries with %d operations", n, sum)
	}
}

func TestPortDownAndUp(t *testing.T) {
	for _, who := range []string{"requester", "responder"} {
		t.Run(who, func(t *testing.T) {
			a, b := two(t, DeviceConfig{Name: "a"}, DeviceConfig{Name: "b"}, 4096)
			a.post(a.to(b, nic.OpWrite, 1, 10))
			a.want(nic.StatusSuccess)
			d := a.d
			if who == "responder" {
				d = b.d
			}
			d.SetPort(nic.PortDown)
			d.SetPort(nic.PortDown) // no second event
			if s := d.Port().State; s != nic.PortDown {
				t.Errorf("state %v", s)
			}
			a.post(a.to(b, nic.OpWrite, 2, 10), a.to(b, nic.OpWrite, 3, 10))
			a.want(nic.StatusRetryExceeded, nic.StatusFlushed)
			d.SetPort(nic.PortActive)
			for _, want := range []nic.EventType{nic.PortLost, nic.PortUp} {
				if e := <-d.Events(); e.Type != want {
					t.Errorf("event %v, want %v", e.Type, want)
				}
			}
			for _, r := range []*rig{a, b} {
				if err := r.q.Modify(nic.QPAttr{State: nic.Reset}); err != nil {
					t.Fatal(err)
				}
			}
			a.connect(b.end())
			b.connect(a.end())
			a.post(a.to(b, nic.OpWrite, 4, 10))
			a.want(nic.StatusSuccess)
		})
	}
}

// TestPortDownBeforeConnect: a queue pair that has not connected yet comes
// through a port that was down meanwhile.
func TestPortDownBeforeConnect(t *testing.T) {
	a, b := two(t, DeviceConfig{Name: "a"}, DeviceConfig{Name: "b"}, 4096)
	a.d.SetPort(nic.PortDown)
	a.d.SetPort(nic.PortActive)
	a.post(a.to(b, nic.OpWrite, 4, 10))
	a.want(nic.StatusSuccess)
}

func TestLatencyDelaysAndKeepsOrder(t *testing.T) {
	const oneWay = 20 * time.Millisecond
	a, b := two(t, DeviceConfig{Name: "a", Latency: oneWay}, DeviceConfig{Name: "b"}, 4096)
	a.post(a.to(b, nic.OpWrite, 0, 10))
	a.want(nic.StatusSuccess) // connected
	start := time.Now()
	for i := range uint64(40) {
		kind := nic.OpWrite
		if i%3 == 0 {
			kind = nic.OpRead
		}
		a.post(a.to(b, kind, i, 100))
	}
	for i, c := range a.wait(40) {
		if c.ID != uint64(i) || c.Status != nic.StatusSuccess {
			t.Fatalf("completion %d: %+v", i, c)
		}
	}
	// The lower bound is what latency means; all 40 in a row would take 1.6 s.
	if d := time.Since(start); d < 2*oneWay {
		t.Errorf("took %v, want at least %v", d, 2*oneWay)
	}
	// A flush does not wait for the latency, and loses no ack.
	a.post(a.to(b, nic.OpWrite, 1, 10))
	a.q.fail(nic.StatusFlushed)
	if c := a.wait(1)[0]; c.Status != nic.StatusSuccess && c.Status != nic.StatusFlushed {
		t.Errorf("completion %+v", c)
	}
}

// TestPacedTransfer checks that pacing, which cuts operations into pieces, keeps the
// bytes right.
func TestPacedTransfer(t *testing.T) {
	const n = 3<<20 + 17
	a, b := two(t, DeviceConfig{Name: "a", Rail: "r0", Rate: 1e9}, DeviceConfig{Name: "b", Rail: "r1", CrossRate: 800e6}, n)
	for i := range a.mem {
		a.mem[i] = byte(i * 7)
	}
	a.post(a.to(b, nic.OpWrite, 1, n), a.to(b, nic.OpWrite, 2, n/2), a.to(b, nic.OpWrite, 3, 5))
	a.want(0, 0, 0)
	if d := diffAt(a.mem, b.mem); d >= 0 {
		t.Fatalf("write: byte %d differs", d)
	}
	clear(a.mem)
	a.post(a.to(b, nic.OpRead, 1, n), a.to(b, nic.OpRead, 2, n/2))
	a.want(0, 0)
	if d := diffAt(a.mem, b.mem); d >= 0 {
		t.Fatalf("read: byte %d differs", d)
	}
}

func diffAt(x, y []byte) int {
	for i := range x {
		if x[i] != y[i] {
			return i
		}
	}
	return -1
}

// TestRegionTakenFromBusySender closes a region whose bytes are stuck on their
// way out, since the peer does not read.
func TestRegionTakenFromBusySender(t *testing.T) {
	s, r := newScript(t), newRig(t, DeviceConfig{Name: "a"}, 64<<20)
	r.connect(s.end())
	r.post(r.wr(nic.OpWrite, 1, 64<<20), r.wr(nic.OpWrite, 2, 8))
	s.reply(s.next(kindData), verdictOK)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		r.q.mu.Lock()
		sent := r.q.sent
		r.q.mu.Unlock()
		if sent > 0 {
			break
		}
	}
	if err := r.mr.Close(); err != nil {
		t.Fatal(err)
	}
	ask := s.next(kindClose)
	r.quiet()
	s.reply(ask, verdictOK)
	r.want(nic.StatusLocalProtection, nic.StatusFlushed)
}

// TestBadAddress registers memory that does not exist.
func TestBadAddress(t *testing.T) {
	const nowhere = 8 << 12
	t.Run("local", func(t *testing.T) {
		a, b := two(t, DeviceConfig{Name: "a"}, DeviceConfig{Name: "b"}, 4096)
		mr, err := a.q.pd.Register(nowhere, 4096, rigAccess)
		if err != nil {
			t.Fatal(err)
		}
		w := a.to(b, nic.OpWrite, 1, 4096)
		w.LKey, w.LocalAddr = mr.LKey(), nowhere
		a.post(w, w)
		a.want(nic.StatusLocalProtection, nic.StatusFlushed)
	})
	t.Run("remote", func(t *testing.T) {
		a, b := two(t, DeviceConfig{Name: "a"}, DeviceConfig{Name: "b"}, 1<<16)
		mr, err := b.q.pd.Register(nowhere, 1<<16, rigAccess)
		if err != nil {
			t.Fatal(err)
		}
		w := a.to(b, nic.OpWrite, 1, 1<<16)
		w.RKey, w.RemoteAddr = mr.RKey(), nowhere
		a.post(w, w)
		a.want(nic.StatusRemoteOperation, nic.StatusFlushed)
	})
}

func TestAllocations(t *testing.T) {
	for _, kind := range []nic.Op{nic.OpWrite, nic.OpRead} {
		for _, n := range []int{64, 64 << 10} {
			t.Run(fmt.Sprintf("%v of %d", kind, n), func(t *testing.T) {
				a, b := two(t, DeviceConfig{Name: "a"}, DeviceConfig{Name: "b"}, 64<<10)
				wrs := make([]nic.WR, 8)
				for i := range wrs {
					wrs[i] = a.to(b, kind, uint64(i), n)
				}
				comps := make([]nic.Completion, 8)
				round := func() {
					if k, err := a.q.Post(wrs); k != len(wrs) || err != nil {
						t.Fatal(k, err)
					}
					for k := 0; k < len(wrs); {
						m, err := a.cq.Poll(comps)
						if err != nil {
							t.Fatal(err)
						}
						if k += m; m > 0 {
							continue
						}
						if err := a.cq.Arm(); err != nil {
							t.Fatal(err)
						}
						<-a.wake
					}
				}
				round()
				if avg := testing.AllocsPerRun(200, round); avg > 0 {
					t.Errorf("%v allocations for %d operations of %d bytes", avg, len(wrs), n)
				}
			})
		}
	}
}

// TestNothingLeft checks that closing a device ends its goroutines.
func TestNothingLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		a, b := two(t, DeviceConfig{Name: "a", Latency: time.Microsecond}, DeviceConfig{Name: "b"}, 4096)
		a.post(a.to(b, nic.OpWrite, 1, 10))
		a.want(0)
		b.post(b.to(a, nic.OpRead, 1, 10))
		b.want(0)
		for _, r := range []*rig{a, b} {
			if err := r.d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for end := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}
