package rdma

import (
	"errors"
	"slices"
	"testing"

	"github.com/railhop/railhop/internal/xfer"
)

func TestCut(t *testing.T) {
	const base = 1 << 30
	one := []Region{{Addr: base, Length: 1 << 30}}
	two := func(at uint64) []Region {
		return []Region{{Addr: base, Length: at}, {Addr: base + at, Length: 1 << 20}}
	}
	for _, tc := range []struct {
		name          string
		local, remote []Region
		length        uint64
		slice, frag   uint64
		want          []uint64
	}{
		{name: "one byte", length: 1, want: []uint64{1}},
		{name: "a slice", length: 65536, want: []uint64{65536}},
		{name: "a slice and a fragment", length: 81920, want: []uint64{81920}},
		{name: "one byte more", length: 81921, want: []uint64{65536, 16385}},
		{name: "documented", length: 150000, want: []uint64{65536, 65536, 18928}},
		{name: "other sizes", length: 25, slice: 10, frag: 2, want: []uint64{10, 10, 5}},
		{name: "rest within the fragment", length: 22, slice: 10, frag: 2, want: []uint64{10, 12}},
		{name: "local border", local: two(100), length: 70000, want: []uint64{100, 69900}},
		{name: "remote border", remote: two(65537), length: 150000, want: []uint64{65536, 1, 65536, 18927}},
		{name: "both borders", local: two(100), remote: two(300), length: 1000, want: []uint64{100, 200, 700}},
		{name: "same border", local: two(100), remote: two(100), length: 200, want: []uint64{100, 100}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.local == nil {
				tc.local = one
			}
			if tc.remote == nil {
				tc.remote = one
			}
			m := &remote{}
			m.buffers.Store(&tc.remote)
			p := &Path{opts: Options{Local: memory(tc.local), SliceSize: tc.slice, Fragment: tc.frag}.withDefaults()}
			if _, err := p.cut(m, base, base, tc.length); err != nil {
				t.Fatal(err)
			}
			var got []uint64
			at := uint64(base)
			for _, c := range p.cuts {
				if c.local != at || c.remote != at {
					t.Errorf("slice at %#x to %#x, want %#x", c.local, c.remote, at)
				}
				got = append(got, c.length)
				at += c.length
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestSubmitRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		work Work
		want error
	}{
		{"local memory not registered", Work{Op: xfer.Write, Local: 16, Remote: mib, Length: 8}, xfer.ErrAddressNotFound},
		{"local memory too short", Work{Op: xfer.Write, Local: mib + 1<<40 - 4, Remote: mib, Length: 8}, xfer.ErrAddressNotFound},
		{"local wraps", Work{Op: xfer.Write, Local: ^uint64(0) - 3, Remote: mib, Length: 8}, xfer.ErrInvalidArgument},
		{"remote wraps", Work{Op: xfer.Write, Local: mib, Remote: ^uint64(0) - 3, Length: 8}, xfer.ErrInvalidArgument},
		{"no such opcode", Work{Op: 9, Local: mib, Remote: mib, Length: 8}, xfer.ErrInvalidArgument},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 1, nil)
			o := new(owner)
			tc.work.Target, tc.work.Owner = r.peer("b:1", 1), o
			if err := r.path.Submit(&tc.work); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if o.opened != 0 || o.closed != 0 {
				t.Errorf("%d opened, %d closed", o.opened, o.closed)
			}
			r.settled()
		})
	}
}

func TestTargetAddressUnknown(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 1)
	o := new(owner)
	w := Work{Op: xfer.Write, Local: mib, Remote: 0xb7869c1cb5cae9f3, Length: 200000, Target: m, Owner: o}
	if err := r.path.Submit(&w); err != nil {
		t.Fatal(err)
	}
	r.finish(false, o)
	wantErr(t, o, xfer.ErrAddressNotFound)
	if n := m.fetches.Load(); n != 1 {
		t.Errorf("%d fetches, want 1", n)
	}
	// Just after a fetch it waits for another: the target may have registered the
	// memory since.
	again := new(owner)
	w.Owner = again
	if err := r.path.Submit(&w); err != nil {
		t.Fatal(err)
	}
	r.finish(false, again)
	wantErr(t, again, xfer.ErrAddressNotFound)
	if n := m.fetches.Load(); n != 2 {
		t.Errorf("%d fetches, want 2", n)
	}
	r.settled()
}

func TestTargetAddressKnownAfterFetch(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 1)
	m.next = &[]Region{{Addr: mib, Length: 1 << 40}}
	m.buffers.Store(&[]Region{{Addr: mib, Length: 100}})
	o := r.submit(m, 200000)
	r.finish(false, o)
	if o.bytes != 200000 || o.opened != 4 && o.opened != 3 || len(o.errs) > 0 {
		t.Errorf("%+v", o)
	}
	r.settled()
}

func TestZeroLength(t *testing.T) {
	r := newRig(t, 1, nil)
	o := r.submit(r.peer("b:1", 1), 0)
	if o.opened != 1 || o.closed != 1 || o.bytes != 0 || len(o.errs) != 0 {
		t.Errorf("%+v", o)
	}
	if calls, _ := r.net.Calls(); calls != 0 {
		t.Errorf("%d messages", calls)
	}
}
