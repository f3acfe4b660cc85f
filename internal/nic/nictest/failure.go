package nictest

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

func testRemoteErrors(t *testing.T, s Setup) {
	const n = 4096
	hostA, hostB := hosts(t, s)
	for _, tc := range []struct {
		name   string
		region nic.Access // of the target
		qp     nic.Access // of the target's queue pair
		spoil  func(b *host, w *nic.WR, to *region)
	}{
		{"wrong key", allAccess, allAccess, func(b *host, w *nic.WR, to *region) { w.RKey ^= 0x5a5a5a00 }},
		{"behind the end", allAccess, allAccess, func(b *host, w *nic.WR, to *region) { w.RemoteAddr = to.addr + 1 }},
		{"before the start", allAccess, allAccess, func(b *host, w *nic.WR, to *region) { w.RemoteAddr = to.addr - 1 }},
		{"far away", allAccess, allAccess, func(b *host, w *nic.WR, to *region) { w.RemoteAddr = ^uint64(0) - 8 }},
		{"region without access", nic.LocalWrite, allAccess, nil},
		{"queue pair without access", allAccess, nic.LocalWrite, nil},
		{"closed region", allAccess, allAccess, func(b *host, w *nic.WR, to *region) {
			if err := to.Close(); err != nil {
				b.t.Fatal(err)
			}
		}},
		{"other domain", allAccess, allAccess, func(b *host, w *nic.WR, to *region) {
			pd, err := b.dev.NewPD()
			if err != nil {
				b.t.Fatal(err)
			}
			mr, err := pd.Register(to.addr, n, allAccess)
			if err != nil {
				b.t.Fatal(err)
			}
			w.RKey = mr.RKey()
		}},
	} {
		for _, kind := range []nic.Op{nic.OpWrite, nic.OpRead} {
			t.Run(tc.name+"/"+kind.String(), func(t *testing.T) {
				a, b := hostA.in(t), hostB.in(t)
				qa, qb := a.qp(0), b.qp(0)
				connect(t, qa, b.dev, qb.Num(), allAccess)
				connect(t, qb, a.dev, qa.Num(), tc.qp)
				from, to := a.region(n, allAccess), b.region(n, tc.region)
				from.fill(20)
				before := to.fill(21)
				w := write(1, from, 0, to, 0, n)
				w.Op = kind
				if tc.spoil != nil {
					tc.spoil(b, &w, to)
				}
				more := write(2, from, 0, to, 0, n)
				post(t, qa, w, more, more)
				refusal := nic.StatusRemoteAccess
				if tc.qp != allAccess && s.QPRefusal != 0 {
					refusal = s.QPRefusal
				}
				a.want(1, refusal)
				a.want(2, nic.StatusFlushed)
				a.want(2, nic.StatusFlushed)
				if qa.State() != nic.Err {
					t.Errorf("state %v, want ERR", qa.State())
				}
				same(t, "target", to.mem, before)
				post(t, qa, more)
				a.want(2, nic.StatusFlushed)
				a.none()
			})
		}
	}
}

func testLocalErrors(t *testing.T, s Setup) {
	const n = 4096
	hostA, hostB := hosts(t, s)
	for _, tc := range []struct {
		name   string
		op     nic.Op
		access nic.Access
		spoil  func(a *host, w *nic.WR, from *region)
	}{
		{"wrong key", nic.OpWrite, allAccess, func(a *host, w *nic.WR, from *region) { w.LKey ^= 0x5a5a5a00 }},
		{"behind the end", nic.OpWrite, allAccess, func(a *host, w *nic.WR, from *region) { w.LocalAddr++ }},
		{"read into memory that is not writable", nic.OpRead, 0, nil},
		{"closed region", nic.OpWrite, allAccess, func(a *host, w *nic.WR, from *region) {
			if err := from.Close(); err != nil {
				a.t.Fatal(err)
			}
		}},
		{"other domain", nic.OpWrite, allAccess, func(a *host, w *nic.WR, from *region) {
			pd, err := a.dev.NewPD()
			if err != nil {
				a.t.Fatal(err)
			}
			mr, err := pd.Register(from.addr, n, allAccess)
			if err != nil {
				a.t.Fatal(err)
			}
			w.LKey = mr.LKey()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := hostA.in(t), hostB.in(t)
			qa, _ := pair(t, a, b)
			good, from, to := a.region(n, 0), a.region(n, tc.access), b.region(n, allAccess)
			want := good.fill(22)
			w := write(2, from, 0, to, 0, n)
			w.Op = tc.op
			if tc.spoil != nil {
				tc.spoil(a, &w, from)
			}
			ok := write(1, good, 0, to, 0, n)
			bad := write(3, good, 0, to, 0, n)
			if s.LonelyErrors {
				a.do(qa, ok)
				post(t, qa, w, bad)
			} else {
				post(t, qa, ok, w, bad)
				a.want(1, nic.StatusSuccess)
			}
			if got := a.wait(1)[0]; got.ID != 2 || got.Status != nic.StatusLocalProtection && (got.Status != s.LocalRefusal || s.LocalRefusal == 0) {
				t.Fatalf("completion of %d: %v; want 2: %v", got.ID, got.Status, nic.StatusLocalProtection)
			}
			a.want(3, nic.StatusFlushed)
			if qa.State() != nic.Err {
				t.Errorf("state %v, want ERR", qa.State())
			}
			same(t, "target", to.mem, want)
			a.none()
		})
	}
}

func testPostBeforeRTS(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	q, peer := a.qp(0), b.qp(0)
	from, to := a.region(64, 0), b.region(64, allAccess)
	port := b.dev.Port()
	for _, attr := range []nic.QPAttr{
		{State: nic.Reset},
		{State: nic.Init},
		{State: nic.RTR, RemoteQPN: peer.Num(), RemoteGID: port.GID, RemoteLID: port.LID},
	} {
		if err := q.Modify(attr); err != nil {
			t.Fatal(err)
		}
		n, err := q.Post([]nic.WR{write(1, from, 0, to, 0, 64)})
		wantErr(t, "Post in "+attr.State.String(), err, nic.ErrState)
		if n != 0 {
			t.Errorf("Post in %v took %d", attr.State, n)
		}
	}
	a.none()
}

func testPostAfterErr(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	for _, up := range []bool{false, true} {
		q, peer := a.qp(0), b.qp(0)
		from, to := a.region(64, 0), b.region(64, allAccess)
		if up {
			connect(t, q, b.dev, peer.Num(), allAccess)
			connect(t, peer, a.dev, q.Num(), allAccess)
			a.do(q, write(1, from, 0, to, 0, 64))
		}
		if err := q.Modify(nic.QPAttr{State: nic.Err}); err != nil {
			t.Fatal(err)
		}
		w := write(2, from, 0, to, 0, 64)
		w.Signaled = false // failures are reported all the same
		post(t, q, w, w)
		a.want(2, nic.StatusFlushed)
		a.want(2, nic.StatusFlushed)
		a.none()
	}
}

// testFlushOnce moves a busy queue pair to ERR: each request is reported once,
// successes before failures.
func testFlushOnce(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	const n, count = 256 << 10, 64
	from, to := a.region(n, 0), b.region(n, allAccess)
	rounds := 10
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		qa, qb := pair(t, a, b)
		for i := range uint64(count) {
			post(t, qa, write(i, from, 0, to, 0, n))
		}
		for range round {
			runtime.Gosched()
		}
		if err := qa.Modify(nic.QPAttr{State: nic.Err}); err != nil {
			t.Fatal(err)
		}
		failed := false
		for i, c := range a.wait(count) {
			if c.ID != uint64(i) {
				t.Fatalf("completion %d is of %d", i, c.ID)
			}
			if c.Status != nic.StatusSuccess && c.Status != nic.StatusFlushed || failed && c.Status == nic.StatusSuccess {
				t.Fatalf("completion %d: %v, after a failure: %v", i, c.Status, failed)
			}
			failed = c.Status != nic.StatusSuccess
		}
		a.none()
		time.Sleep(s.InFlight)
		// Reported means over: what the memory holds now stays.
		before := to.fill(uint64(round))
		linger(t, to, before)
		closeQP(t, qa)
		closeQP(t, qb)
	}
}

func testPeerGone(t *testing.T, s Setup) {
	t.Run("queue pair closed, idle", func(t *testing.T) {
		t.Parallel() // they wait, more than they do
		a, b := hosts(t, s)
		qa, qb := pair(t, a, b)
		from, to := a.region(64, 0), b.region(64, allAccess)
		a.do(qa, write(1, from, 0, to, 0, 64))
		closeQP(t, qb)
		post(t, qa, write(2, from, 0, to, 0, 64), write(3, from, 0, to, 0, 64))
		a.want(2, nic.StatusRetryExceeded)
		a.want(3, nic.StatusFlushed)
		a.none()
	})
	t.Run("queue pair in ERR before the first post", func(t *testing.T) {
		t.Parallel()
		a, b := hosts(t, s)
		qa, qb := pair(t, a, b)
		from, to := a.region(64, 0), b.region(64, allAccess)
		if err := qb.Modify(nic.QPAttr{State: nic.Err}); err != nil {
			t.Fatal(err)
		}
		post(t, qa, write(2, from, 0, to, 0, 64), write(3, from, 0, to, 0, 64))
		a.want(2, nic.StatusRetryExceeded)
		a.want(3, nic.StatusFlushed)
		a.none()
	})
	t.Run("not ready, and never will be", func(t *testing.T) {
		t.Parallel()
		a, b := hosts(t, s)
		qa, qb := a.qp(0), b.qp(0)
		port := b.dev.Port()
		for _, attr := range []nic.QPAttr{
			{State: nic.Init, Access: allAccess},
			{State: nic.RTR, RemoteQPN: qb.Num(), RemoteGID: port.GID, RemoteLID: port.LID},
			{State: nic.RTS, Timeout: 5 * time.Millisecond, Retries: 1},
		} {
			if err := qa.Modify(attr); err != nil {
				t.Fatal(err)
			}
		}
		from, to := a.region(64, 0), b.region(64, allAccess)
		post(t, qa, write(2, from, 0, to, 0, 64))
		a.want(2, nic.StatusRetryExceeded)
		a.none()
	})
	t.Run("other peer", func(t *testing.T) {
		t.Parallel()
		a, b := hosts(t, s)
		qa, qb := pair(t, a, b)
		stranger := a.qp(0)
		connect(t, stranger, b.dev, qb.Num(), allAccess)
		from, to := a.region(64, 0), b.region(64, allAccess)
		post(t, stranger, write(1, from, 0, to, 0, 64))
		a.want(1, nic.StatusRetryExceeded)
		a.do(qa, write(2, from, 0, to, 0, 64))
	})
}

// testReconnect goes on with new queue pairs after a failure.
func testReconnect(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	from, to := a.region(1<<16, 0), b.region(1<<16, allAccess)
	for round := range uint64(5) {
		qa, qb := pair(t, a, b)
		src := from.fill(round)
		a.do(qa, write(1, from, 0, to, 0, 1<<16))
		same(t, "target", to.mem, src)
		bad := write(2, from, 0, to, 0, 1<<16)
		bad.RKey ^= 0x33330000
		post(t, qa, bad)
		a.want(2, nic.StatusRemoteAccess)
		closeQP(t, qa)
		closeQP(t, qb)
	}
	a.none()
}

func testResetAndReuse(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, qb := a.qp(0), b.qp(0)
	from, to := a.region(1<<16, 0), b.region(1<<16, allAccess)
	for round := range uint64(4) {
		connect(t, qa, b.dev, qb.Num(), allAccess)
		connect(t, qb, a.dev, qa.Num(), allAccess)
		src := from.fill(30 + round)
		a.do(qa, write(round, from, 0, to, 0, 1<<16))
		same(t, "target", to.mem, src)
		for i := range uint64(20) {
			post(t, qa, write(100+i, from, 0, to, 0, 1<<16))
		}
		for _, q := range []nic.QP{qa, qb} {
			if round%2 == 1 {
				if err := q.Modify(nic.QPAttr{State: nic.Err}); err != nil {
					t.Fatal(err)
				}
			}
			if err := q.Modify(nic.QPAttr{State: nic.Reset}); err != nil {
				t.Fatal(err)
			}
		}
		a.none() // a reset drops without a report
		time.Sleep(s.InFlight)
	}
}

// storm keeps q busy with writes until stop is closed or the queue pair fails.
func storm(h *host, q nic.QP, from, to *region, stop <-chan struct{}) (ended chan struct{}) {
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		w := write(7, from, 0, to, 0, len(to.mem))
		comps := make([]nic.Completion, 64)
		for {
			select {
			case <-stop:
				return
			default:
			}
			n, err := q.Post([]nic.WR{w, w, w, w})
			if err != nil {
				return
			}
			k, err := h.cq.Poll(comps)
			if err != nil {
				return
			}
			for _, c := range comps[:k] {
				if c.Status != nic.StatusSuccess {
					return
				}
			}
			if n == 0 && k == 0 {
				time.Sleep(50 * time.Microsecond)
			}
		}
	}()
	return ended
}

// busy waits until the storm has reached the region.
func busy(t testing.TB, to, from *region) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !bytes.Equal(to.mem[len(to.mem)-64:], from.mem[len(to.mem)-64:]) {
		if time.Now().After(deadline) {
			t.Fatal("no write arrives")
		}
		time.Sleep(time.Millisecond)
	}
}

// linger watches a region for a while: nothing may change.
func linger(t testing.TB, r *region, want []byte) {
	t.Helper()
	for end := time.Now().Add(30 * time.Millisecond); time.Now().Before(end); {
		if !bytes.Equal(r.mem, want) {
			t.Fatal("memory changed after its way was closed")
		}
		time.Sleep(500 * time.Microsecond)
	}
}

// late runs a storm of writes, cuts it by closing, and then watches the target.
func late(t *testing.T, s Setup, cut func(t testing.TB, qb nic.QP, to *region)) {
	a, b := hosts(t, s)
	from, to := a.region(512<<10, 0), b.region(512<<10, allAccess)
	for round := range uint64(8) {
		target := to
		if round > 0 {
			mr, err := b.pd.Register(to.addr, uint64(len(to.mem)), allAccess)
			if err != nil {
				t.Fatal(err)
			}
			target = &region{mr, to.addr, to.mem}
		}
		from.fill(40 + round)
		qa, qb := pair(t, a, b)
		stop := make(chan struct{})
		ended := storm(a, qa, from, target, stop)
		busy(t, target, from)
		cut(t, qb, target)
		linger(t, target, target.fill(50+round))
		close(stop)
		<-ended
		closeQP(t, qa)
		closeQP(t, qb)
		if err := target.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func testNoByteAfterClose(t *testing.T, s Setup) {
	late(t, s, func(t testing.TB, qb nic.QP, to *region) { closeQP(t, qb) })
}

func testNoByteAfterErr(t *testing.T, s Setup) {
	late(t, s, func(t testing.TB, qb nic.QP, to *region) {
		if err := qb.Modify(nic.QPAttr{State: nic.Err}); err != nil {
			t.Fatal(err)
		}
	})
}

func testNoByteAfterMRClose(t *testing.T, s Setup) {
	late(t, s, func(t testing.TB, qb nic.QP, to *region) {
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// testCloseMRAfterCompletion closes each region as soon as its own request has
// completed, while others of the same queue pair are underway: those must not suffer.
func testCloseMRAfterCompletion(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, _ := pair(t, a, b)
	to := b.region(256<<10, allAccess)
	const count = 200
	var regions []*region
	addr, mem := s.Alloc(t, 256<<10)
	for i := range count {
		mr, err := a.pd.Register(addr, uint64(len(mem)), 0)
		if err != nil {
			t.Fatal(err)
		}
		regions = append(regions, &region{mr, addr, mem})
		post(t, qa, write(uint64(i), regions[i], 0, to, 0, 1+(i*7919)%len(mem)))
	}
	for i := range count {
		a.want(uint64(i), nic.StatusSuccess)
		if err := regions[i].Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
}
