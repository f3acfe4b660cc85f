package nictest

import (
	"bytes"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

var sizes = []int{0, 1, 7, 64, 4095, 1<<16 - 1, 1 << 16, 1<<16 + 1, 1 << 20, 8 << 20}

const (
	guard   = 64 // bytes on either side that nothing may touch
	longest = 8<<20 + 2*guard
)

// offsets are where a run begins, at either end, behind a whole number of pages.
var offsets = []struct{ from, to int }{{0, 0}, {1, 0}, {0, 3}, {7, 13}}

// upTo is the part of a region that a run of n bytes may touch, and what guards it.
func (r *region) upTo(n int) *region {
	return &region{r.MR, r.addr, r.mem[:min(len(r.mem), n+2*guard)]}
}

func testWrite(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, _ := pair(t, a, b)
	from, all := a.region(longest, 0), b.region(longest, allAccess)
	src := from.fill(1)
	for _, n := range sizes {
		to := all.upTo(n)
		for i, off := range offsets {
			if testing.Short() && i > 0 && n > 1<<20 {
				break
			}
			want := to.fill(2)
			copy(want[guard+off.to:], src[off.from:off.from+n])
			a.do(qa, write(uint64(n), from, off.from, to, guard+off.to, n))
			same(t, size(n), to.mem, want)
		}
	}
	same(t, "source", from.mem, src)
}

func testRead(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, _ := pair(t, a, b)
	all, from := a.region(longest, nic.LocalWrite), b.region(longest, nic.RemoteRead)
	src := from.fill(3)
	for _, n := range sizes {
		into := all.upTo(n)
		for i, off := range offsets {
			if testing.Short() && i > 0 && n > 1<<20 {
				break
			}
			want := into.fill(4)
			copy(want[guard+off.to:], src[off.from:off.from+n])
			a.do(qa, read(uint64(n), into, guard+off.to, from, off.from, n))
			same(t, size(n), into.mem, want)
		}
	}
	same(t, "source", from.mem, src)
}

// testOrder writes to one place over and over: the last one stays, and
// completions come in the order of posting.
func testOrder(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, _ := pair(t, a, b)
	const rounds, n = 40, 3000
	from, to := a.region(rounds*n, 0), b.region(n, allAccess)
	src := from.fill(5)
	var wrs []nic.WR
	for i := range rounds {
		wrs = append(wrs, write(uint64(i), from, i*n, to, 0, n))
	}
	post(t, qa, wrs...)
	for i, c := range a.wait(rounds) {
		if c.ID != uint64(i) || c.Status != nic.StatusSuccess || c.QPN != qa.Num() {
			t.Fatalf("completion %d: %+v", i, c)
		}
	}
	same(t, "target", to.mem, src[(rounds-1)*n:])
	a.none()
}

func testBothWays(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, qb := pair(t, a, b)
	const n = 1 << 20
	ra, rb := a.region(2*n, allAccess), b.region(2*n, allAccess)
	srcA, srcB := ra.fill(6), rb.fill(7)
	for i := range 8 {
		post(t, qa, write(uint64(i), ra, 0, rb, n, n))
		post(t, qb, write(uint64(i), rb, 0, ra, n, n))
	}
	a.wait(8)
	b.wait(8)
	same(t, "at b", rb.mem[n:], srcA[:n])
	same(t, "at a", ra.mem[n:], srcB[:n])
}

// testSelective posts rounds of which only the last request is signalled.
func testSelective(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, _ := pair(t, a, b)
	const each = 16
	from, to := a.region(each*64, 0), b.region(each*64, allAccess)
	src := from.fill(8)
	for round := range 100 { // many more than the queue holds
		var wrs []nic.WR
		for i := range each {
			w := write(uint64(round*each+i), from, i*64, to, i*64, 64)
			w.Signaled = i == each-1
			wrs = append(wrs, w)
		}
		post(t, qa, wrs...)
		a.want(uint64(round*each+each-1), nic.StatusSuccess)
		a.none()
	}
	same(t, "target", to.mem, src)
}

func testPollShort(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, _ := pair(t, a, b)
	from, to := a.region(64, 0), b.region(64, allAccess)
	if n, err := a.cq.Poll(nil); n != 0 || err != nil {
		t.Errorf("Poll into nothing: %d, %v", n, err)
	}
	for i := range 10 {
		post(t, qa, write(uint64(i), from, 0, to, 0, 64))
	}
	var c [3]nic.Completion
	next, deadline := uint64(0), time.Now().Add(patience)
	for next < 10 && time.Now().Before(deadline) {
		n, err := a.cq.Poll(c[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range c[:n] {
			if x.ID != next {
				t.Fatalf("completion of %d, want %d", x.ID, next)
			}
			next++
		}
	}
	if next != 10 {
		t.Errorf("%d completions, want 10", next)
	}
	a.none()
}

func testWake(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, _ := pair(t, a, b)
	from, to := a.region(64, 0), b.region(64, allAccess)
	for i := range uint64(50) {
		if err := a.cq.Arm(); err != nil {
			t.Fatal(err)
		}
		post(t, qa, write(i, from, 0, to, 0, 64))
		select {
		case <-a.wake:
		case <-time.After(patience):
			t.Fatal("not woken")
		}
		a.want(i, nic.StatusSuccess)
	}
	// Not armed: no call.
	a.do(qa, write(99, from, 0, to, 0, 64))
	select {
	case <-a.wake:
		t.Error("woken without Arm")
	default:
	}
}

func testQueueFull(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	const room = 16
	qa, qb := a.qp(room), b.qp(room)
	connect(t, qa, b.dev, qb.Num(), allAccess)
	connect(t, qb, a.dev, qa.Num(), allAccess)
	from, to := a.region(64, 0), b.region(64, allAccess)
	// A card may round up, but not without bounds.
	wrs := make([]nic.WR, min(1<<16, 4*a.dev.Attr().MaxWR))
	for i := range wrs {
		wrs[i] = write(uint64(i), from, 0, to, 0, 64)
	}
	for range 3 {
		n, err := qa.Post(wrs)
		if err != nil {
			t.Fatal(err)
		}
		if n < room || n == len(wrs) {
			t.Fatalf("Post took %d of %d, want a part, at least %d", n, len(wrs), room)
		}
		for i, c := range a.wait(n) {
			if c.ID != uint64(i) || c.Status != nic.StatusSuccess {
				t.Fatalf("completion %d: %+v", i, c)
			}
		}
	}
	a.none()
}

func testManySmall(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, _ := pair(t, a, b)
	const ops, each = 20000, 24
	from, to := a.region(ops*each, 0), b.region(ops*each, allAccess)
	src := from.fill(9)
	posted, done := 0, 0
	wrs, comps := make([]nic.WR, 0, 64), make([]nic.Completion, 64)
	deadline := time.Now().Add(patience)
	for done < ops {
		wrs = wrs[:0]
		for len(wrs) < 64 && posted+len(wrs) < ops {
			i := posted + len(wrs)
			j := i * 7919 % ops // scattered
			wrs = append(wrs, write(uint64(i), from, j*each, to, j*each, each))
		}
		n, err := qa.Post(wrs)
		if err != nil {
			t.Fatal(err)
		}
		posted += n
		n, err = a.cq.Poll(comps)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range comps[:n] {
			if c.ID != uint64(done) || c.Status != nic.StatusSuccess {
				t.Fatalf("completion %d: %+v", done, c)
			}
			done++
		}
		if n == 0 {
			time.Sleep(20 * time.Microsecond)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d done after %v", done, ops, patience)
		}
	}
	same(t, "target", to.mem, src)
	a.none()
}

func testTwoPairs(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	q1, _ := pair(t, a, b)
	q2, _ := pair(t, a, b)
	const n, rounds = 100_000, 30
	from, to := a.region(2*n, 0), b.region(2*n, allAccess)
	src := from.fill(10)
	for i := range uint64(rounds) {
		post(t, q1, write(i, from, 0, to, 0, n))
		post(t, q2, write(i, from, n, to, n, n))
	}
	next := map[uint32]uint64{}
	for _, c := range a.wait(2 * rounds) {
		if c.ID != next[c.QPN] || c.Status != nic.StatusSuccess {
			t.Fatalf("completion %+v, want number %d", c, next[c.QPN])
		}
		next[c.QPN]++
	}
	if next[q1.Num()] != rounds || next[q2.Num()] != rounds {
		t.Errorf("completions by queue pair: %v", next)
	}
	same(t, "target", to.mem, src)
	a.none()
}

// testMixed reads what it has just written, many times in one go.
func testMixed(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, _ := pair(t, a, b)
	for _, n := range []int{5, 3000, 70_000} {
		const rounds = 20
		from, back := a.region(rounds*n, 0), a.region(rounds*n, nic.LocalWrite)
		to := b.region(n, allAccess)
		src := from.fill(11)
		var wrs []nic.WR
		for i := range rounds {
			wrs = append(wrs, write(uint64(2*i), from, i*n, to, 0, n), read(uint64(2*i+1), back, i*n, to, 0, n))
		}
		post(t, qa, wrs...)
		for i, c := range a.wait(len(wrs)) {
			if c.ID != uint64(i) || c.Status != nic.StatusSuccess {
				t.Fatalf("completion %d: %+v", i, c)
			}
		}
		// A card may start the next write before a read is answered, unless
		// fenced; what is read is then some round's bytes, whole or in part.
		for i := range rounds {
			got := back.mem[i*n : (i+1)*n]
			if bytes.Equal(got, make([]byte, n)) {
				t.Fatalf("round %d read nothing", i)
			}
		}
		same(t, "target", to.mem, src[(rounds-1)*n:])
	}
}

// testSelf connects two queue pairs of one device, and one to itself.
func testSelf(t *testing.T, s Setup) {
	h := newHost(t, s, open(t, s, s.DevA))
	q1, q2 := pair(t, h, h)
	r := h.region(2<<16, allAccess)
	src := r.fill(12)
	h.do(q1, write(1, r, 0, r, 1<<16, 1<<16))
	same(t, "half", r.mem[1<<16:], src[:1<<16])
	h.do(q2, read(2, r, 0, r, 1<<16, 1<<16))
	q := h.qp(0)
	connect(t, q, h.dev, q.Num(), allAccess)
	src = r.fill(13)
	h.do(q, write(3, r, 0, r, 1<<16, 1<<16))
	same(t, "own half", r.mem[1<<16:], src[:1<<16])
	closeQP(t, q)
}
