package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/xfer"
)

func fill(b []byte, seed uint64) { pattern.Fill(b, seed, 0) }

func TestSizes(t *testing.T) {
	t.Parallel()
	const most = 9 << 20
	for _, version := range []int{1, 2} {
		var m registered
		far := m.buffer(most)
		near := heap(most)
		s, to := serve(t, &m)
		to.route.Version = version
		r := newRig(t, Options{PieceSize: 3 << 20})
		for _, n := range []int{0, 1, 7, 8, 23, 24, 25, 4096, 8191, 8192, 8193, 65535, 65536, 65537, 1<<20 + 1, most} {
			t.Run(fmt.Sprintf("v%d/%d", version, n), func(t *testing.T) {
				fill(near, uint64(n))
				clear(far)
				w := Work{Op: xfer.Write, Local: addressOf(near), Remote: addressOf(far), Length: uint64(n), Target: to}
				r.mustRun(w)
				if !bytes.Equal(near[:n], far[:n]) || bytes.Count(far[n:], []byte{0}) != most-n {
					t.Fatal("the target's memory is not as written")
				}
				clear(near)
				w.Op = xfer.Read
				r.mustRun(w)
				if !bytes.Equal(near[:n], far[:n]) || bytes.Count(near[n:], []byte{0}) != most-n {
					t.Fatal("what was read is not the target's memory")
				}
			})
		}
		if st := s.Stats(); st.Refused != 0 {
			t.Errorf("refused %d", st.Refused)
		}
	}
}

func TestBatches(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		n, size    int
		version    int
		lanes      int
		op         xfer.Opcode
		interleave bool
	}{
		{name: "4000 small writes", n: 4000, size: 100, version: 2, op: xfer.Write},
		{name: "4000 small reads", n: 4000, size: 100, version: 2, op: xfer.Read},
		{name: "writes v1", n: 1500, size: 4096, version: 1, op: xfer.Write},
		{name: "reads v1", n: 1500, size: 4096, version: 1, op: xfer.Read},
		{name: "middle writes, one lane", n: 600, size: 20000, version: 2, lanes: 1, op: xfer.Write},
		{name: "middle reads, one lane", n: 600, size: 20000, version: 2, lanes: 1, op: xfer.Read},
		{name: "mixed", n: 1000, size: 9000, version: 2, interleave: true},
		{name: "mixed v1", n: 1000, size: 9000, version: 1, interleave: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var m registered
			far, near := m.buffer(tt.n*tt.size), heap(tt.n*tt.size)
			_, to := serve(t, &m)
			to.route.Version = tt.version
			r := newRig(t, Options{Lanes: tt.lanes})
			fill(near, 1)
			fill(far, 2)
			wantNear, wantFar := bytes.Clone(near), bytes.Clone(far)
			works := make([]Work, tt.n)
			for i := range works {
				op := tt.op
				if tt.interleave {
					op = xfer.Opcode(i & 1)
				}
				// Backwards, so that places are told apart from order.
				from, at := (tt.n-1-i)*tt.size, i*tt.size
				works[i] = Work{Op: op, Local: addressOf(near) + uint64(from), Remote: addressOf(far) + uint64(at), Length: uint64(tt.size), Target: to}
				if op == xfer.Write {
					copy(wantFar[at:], near[from:from+tt.size])
				} else {
					copy(wantNear[from:], far[at:at+tt.size])
				}
			}
			r.mustRun(works...)
			if !bytes.Equal(near, wantNear) || !bytes.Equal(far, wantFar) {
				t.Fatal("bytes are not where they belong")
			}
		})
	}
}

func TestUnknownAddress(t *testing.T) {
	t.Parallel()
	var m registered
	far := m.buffer(4096)
	near := heap(8192)
	_, to := serve(t, &m)
	for _, tt := range []struct {
		name    string
		version int
		blind   bool // the descriptor says that it is there
		remote  uint64
		length  uint64
	}{
		{"known to be unknown", 2, false, addressOf(far) + 4096, 10},
		{"refused v2", 2, true, addressOf(far) + 4096, 10},
		{"refused v1", 1, true, addressOf(far) + 4096, 10},
		{"one byte past the end", 2, true, addressOf(far), 4097},
		{"overflowing", 2, true, ^uint64(0) - 5, 5},
	} {
		for _, op := range []xfer.Opcode{xfer.Read, xfer.Write} {
			t.Run(tt.name+"/"+op.String(), func(t *testing.T) {
				to := &target{route: to.route, known: &m}
				to.route.Version = tt.version
				if tt.blind {
					to.known = nil
				}
				r := newRig(t, Options{})
				got := r.run(Work{Op: op, Local: addressOf(near), Remote: tt.remote, Length: tt.length, Target: to})[0]
				if tt.version == 2 && !errors.Is(got.err, xfer.ErrAddressNotFound) || got.err == nil {
					t.Errorf("got error %v, want %v", got.err, xfer.ErrAddressNotFound)
				}
				if bytes.Count(far, []byte{0}) != len(far) {
					t.Error("something was written")
				}
				if n := to.fetches.Load(); tt.version == 2 && n != 1 {
					t.Errorf("the descriptor was fetched anew %d times, want once", n)
				}
			})
		}
	}
}

// One request that is refused costs its connection, and no other request.
func TestBadAmongGood(t *testing.T) {
	t.Parallel()
	for _, version := range []int{1, 2} {
		var m registered
		const n, size = 900, 512
		far, near := m.buffer(n*size), heap(n*size)
		fill(near, 3)
		_, to := serve(t, &m)
		to.known = nil
		to.route.Version = version
		r := newRig(t, Options{Lanes: 2})
		works := make([]Work, n)
		bad := func(i int) bool { return i%300 == 17 }
		want := bytes.Clone(near)
		for i := range works {
			at := uint64(i * size)
			works[i] = Work{Op: xfer.Write, Local: addressOf(near) + at, Remote: addressOf(far) + at, Length: size, Target: to}
			if bad(i) {
				works[i].Remote = addressOf(far) + n*size - 1
				clear(want[at : at+size])
			}
		}
		for i, got := range r.run(works...) {
			if (got.err != nil) != bad(i) {
				t.Errorf("v%d: request %d: error %v", version, i, got.err)
			}
		}
		runtime.KeepAlive(near) // the path knows it by its address alone
		if !bytes.Equal(far, want) {
			for i := range n {
				if at := i * size; !bytes.Equal(far[at:at+size], want[at:at+size]) {
					t.Errorf("v%d: request %d: bytes are not where they belong", version, i)
				}
			}
		}
	}
}
