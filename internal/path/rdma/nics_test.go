package rdma_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/path/rdma"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/testkit"
	"github.com/railhop/railhop/internal/xfer"
)

func TestBytesOverNICs(t *testing.T) {
	a, b := newProcess(t, 0, 2), newPeer(t, 0, 2)
	most := 64 * mib
	if testing.Short() {
		most = 8 * mib
	}
	src, from := a.memory(most)
	dst, to := b.memory(most)
	peer := a.open(b.name)
	for seed, n := range []int{1, 2, 4095, 65536, 65537, 81920, 150000, mib + 1, most} {
		for _, op := range []xfer.Opcode{xfer.Write, xfer.Read} {
			t.Run(fmt.Sprint(op, n), func(t *testing.T) {
				in, out := src, dst
				if op == xfer.Read {
					in, out = dst, src
				}
				pattern.Fill(in[:n], uint64(seed), 0)
				clear(out)
				if err := a.submit(rdma.Work{Op: op, Local: from, Remote: to, Length: uint64(n), Target: peer}).wait(t); err != nil {
					t.Fatal(err)
				}
				if at, bad := pattern.Mismatch(out[:n], uint64(seed), 0); bad != 0 {
					t.Errorf("%d bytes differ, the first at %d", bad, at)
				}
				if i := bytes.IndexFunc(out[n:min(len(out), n+4096)], func(r rune) bool { return r != 0 }); i >= 0 {
					t.Errorf("a byte beyond the end was written: %d", n+i)
				}
			})
		}
	}
	if st := a.path.Stats(); st.Retries != 0 || st.Flushed != 0 {
		t.Errorf("%+v", st)
	}
}

// Both ends' ranges span buffers that touch, with keys of their own.
func TestBuffersOverNICs(t *testing.T) {
	a, b := newProcess(t, 0, 1), newPeer(t, 0, 2)
	src, from := mapped(t, mib)
	a.register(from, 300*1024)
	a.register(from+300*1024, mib-300*1024)
	dst, to := mapped(t, mib)
	b.register(to, 500*1024+1)
	b.register(to+500*1024+1, mib-500*1024-1)
	pattern.Fill(src, 9, 0)
	if err := a.submit(rdma.Work{Op: xfer.Write, Local: from, Remote: to, Length: mib, Target: a.open(b.name)}).wait(t); err != nil {
		t.Fatal(err)
	}
	if at, n := pattern.Mismatch(dst, 9, 0); n != 0 {
		t.Errorf("%d bytes differ, the first at %d", n, at)
	}
}

func TestBatchesOverNICs(t *testing.T) {
	a, b := newProcess(t, 0, 2), newPeer(t, 0, 2)
	const pieces, size = 2000, 4096
	srcA, fromA := a.memory(pieces * size)
	dstA, toA := a.memory(pieces * size)
	srcB, fromB := b.memory(pieces * size)
	dstB, toB := b.memory(pieces * size)
	pattern.Fill(srcA, 1, 0)
	pattern.Fill(srcB, 2, 0)
	batch := func(local, remote uint64, peer *target) (works []rdma.Work) {
		for i := range uint64(pieces) {
			// Scattered: the order of sources is not that of destinations.
			at := i * 777 % pieces * size
			works = append(works, rdma.Work{Op: xfer.Write, Local: local + at, Remote: remote + at, Length: size, Target: peer})
		}
		return works
	}
	// Both dial each other at once.
	wa := a.submit(batch(fromA, toB, a.open(b.name))...)
	wb := b.submit(batch(fromB, toA, b.open(a.name))...)
	if err := errors.Join(wa.wait(t), wb.wait(t)); err != nil {
		t.Fatal(err)
	}
	if _, n := pattern.Mismatch(dstB, 1, 0); n != 0 {
		t.Errorf("%d bytes differ at B", n)
	}
	if _, n := pattern.Mismatch(dstA, 2, 0); n != 0 {
		t.Errorf("%d bytes differ at A", n)
	}
}

func TestSelfOverNICs(t *testing.T) {
	a := newProcess(t, 0, 2)
	src, from := a.memory(mib)
	dst, to := a.memory(mib)
	pattern.Fill(src, 3, 0)
	if err := a.submit(rdma.Work{Op: xfer.Write, Local: from, Remote: to, Length: mib, Target: a.open(a.name)}).wait(t); err != nil {
		t.Fatal(err)
	}
	if _, n := pattern.Mismatch(dst, 3, 0); n != 0 {
		t.Errorf("%d bytes differ", n)
	}
}

func TestPeerRestartsOverNICs(t *testing.T) {
	a, b := newProcess(t, 0, 1), newPeer(t, 0, 1)
	src, from := a.memory(mib)
	dst, to := b.memory(mib)
	pattern.Fill(src, 4, 0)
	w := rdma.Work{Op: xfer.Write, Local: from, Remote: to, Length: mib, Target: a.open(b.name)}
	if err := a.submit(w).wait(t); err != nil {
		t.Fatal(err)
	}
	port := b.server.Port()
	b.stop()
	again := newPeer(t, port, 1)
	again.register(to, mib) // the same addresses with other keys
	clear(dst)
	if err := a.submit(w).wait(t); err != nil {
		t.Fatal(err)
	}
	if _, n := pattern.Mismatch(dst, 4, 0); n != 0 {
		t.Errorf("%d bytes differ", n)
	}
}

func TestAbortOverNICs(t *testing.T) {
	a, b := newProcess(t, 0, 1), newPeer(t, 0, 1)
	src, from := a.memory(64 * mib)
	dst, to := b.memory(64 * mib)
	peer := a.open(b.name)
	pattern.Fill(src, 5, 0)
	bad := a.submit(rdma.Work{Op: xfer.Write, Local: from, Remote: to, Length: 32 * mib, Target: peer})
	good := a.submit(rdma.Work{Op: xfer.Write, Local: from + 32*mib, Remote: to + 32*mib, Length: 32 * mib, Target: peer})
	for bad.bytes.Load() == 0 {
		time.Sleep(100 * time.Microsecond)
	}
	cause := errors.New("cancelled")
	if err := a.loop.Do(func() { a.path.Abort(func(o rdma.Owner) bool { return o == bad }, cause) }); err != nil {
		t.Fatal(err)
	}
	err := bad.wait(t)
	if err != nil && !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	if len(testkit.RealDevices()) > 0 {
		time.Sleep(200 * time.Millisecond) // what has left the card arrives
	}
	// Nothing of it lands any more.
	half := dst[:32*mib]
	before := bytes.Clone(half)
	if err := good.wait(t); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(before, half) {
		t.Error("bytes landed after the abort was over")
	}
	if !bytes.Equal(dst[32*mib:], src[32*mib:]) {
		t.Error("the other request's bytes differ")
	}
}

// A relay's endpoint is bound: a fence ends its work, and nothing lands after it.
func TestFenceOverNICs(t *testing.T) {
	a, b := newProcess(t, 0, 1), newPeer(t, 0, 1)
	src, from := a.memory(16 * mib)
	dst, to := b.memory(16 * mib)
	pattern.Fill(src, 6, 0)
	const epoch = 0xfeed
	set, err := endpoint.NewSet(endpoint.Options{
		NIC:    &endpoint.NIC{Name: "soft0", Device: a.devices[0], PD: a.pds[0]},
		Server: a.name, Dialer: a.dialer, RelayEpoch: epoch,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	e, err := set.Get(b.name + "@soft0")
	if err != nil {
		t.Fatal(err)
	}
	for !e.Ready() {
		if err := e.Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Microsecond)
	}
	lkey, rkey := a.local.Buffers()[0].Chunks[0].LKey[0], b.local.Buffers()[0].Chunks[0].RKey[0]
	wrs := make([]nic.WR, 256)
	for i := range wrs {
		off := uint64(i) * 65536
		wrs[i] = nic.WR{ID: uint64(i), Op: nic.OpWrite, Signaled: true, LKey: lkey, RKey: rkey, Length: 65536, LocalAddr: from + off, RemoteAddr: to + off}
	}
	if n, err := e.Post(wrs); n != len(wrs) || err != nil {
		t.Fatal(n, err)
	}
	closed, err := b.acceptor.Fence(t.Context(), epoch)
	if closed != 2 || err != nil {
		t.Fatalf("closed %d, %v", closed, err)
	}
	after := bytes.Clone(dst)
	var done [64]nic.Completion
	for left := len(wrs); left > 0; {
		n, err := set.CQ().Poll(done[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range done[:n] {
			e.Completed(c.QPN, 1)
			if c.Status != nic.StatusSuccess {
				e.Fail(errors.New("fenced"))
			}
		}
		left -= n
		time.Sleep(50 * time.Microsecond)
	}
	if !bytes.Equal(after, dst) {
		t.Error("bytes landed after the fence")
	}
	// Plain traffic is not touched, and a new handshake is welcome.
	if err := a.submit(rdma.Work{Op: xfer.Write, Local: from, Remote: to, Length: 16 * mib, Target: a.open(b.name)}).wait(t); err != nil {
		t.Error(err)
	}
	<-e.Gone()
	e, err = set.Get(b.name + "@soft0")
	if err != nil {
		t.Fatal(err)
	}
	for !e.Ready() {
		if err := e.Err(); err != nil {
			t.Fatal(err)
		}
		set.Step(time.Hour)
		time.Sleep(100 * time.Microsecond)
	}
}
