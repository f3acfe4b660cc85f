package nictest

import (
	"slices"
	"testing"

	"github.com/railhop/railhop/internal/nic"
)

func testDevices(t *testing.T, s Setup) {
	names, err := s.Provider.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{s.DevA, s.DevB} {
		if !slices.Contains(names, want) {
			t.Errorf("Devices = %q, want %q among them", names, want)
		}
	}
	_, err = s.Provider.Open("no_such_device")
	wantErr(t, "Open of a device that is not there", err, nic.ErrNoDevice)
}

func testAttributes(t *testing.T, s Setup) {
	dev := open(t, s, s.DevA)
	a := dev.Attr()
	if a.Name != s.DevA {
		t.Errorf("Name = %q, want %q", a.Name, s.DevA)
	}
	if a.MaxMR == 0 || a.MaxQP < 1 || a.MaxWR < 1 || a.MaxRDAtom < 1 {
		t.Errorf("Attr = %+v: limits must not be 0", a)
	}
	p := dev.Port()
	if p.State != nic.PortActive || p.GID == (nic.GID{}) || p.MTU < 256 {
		t.Errorf("Port = %+v: want an active one with a GID and an MTU", p)
	}
}

func testStates(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	peer := b.qp(0)
	port := b.dev.Port()
	attr := func(to nic.QPState) nic.QPAttr {
		return nic.QPAttr{State: to, Access: allAccess, RemoteQPN: peer.Num(), RemoteGID: port.GID, RemoteLID: port.LID}
	}
	up := []nic.QPState{nic.Init, nic.RTR, nic.RTS}
	for from := nic.Reset; from <= nic.Err; from++ {
		for to := nic.Reset; to <= nic.Err; to++ {
			q := a.qp(0)
			for _, st := range up {
				if st <= from && from != nic.Err {
					if err := q.Modify(attr(st)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if from == nic.Err {
				if err := q.Modify(attr(nic.Err)); err != nil {
					t.Fatal(err)
				}
			}
			if q.State() != from {
				t.Fatalf("state %v, want %v", q.State(), from)
			}
			err := q.Modify(attr(to))
			switch legal := to == nic.Reset || to == nic.Err || (to == from+1 && from != nic.Err); {
			case legal && (err != nil || q.State() != to):
				t.Errorf("%v to %v: %v, now %v", from, to, err, q.State())
			case !legal && from == to && err == nil: // a card may take it as no change
			case !legal:
				wantErr(t, from.String()+" to "+to.String(), err, nic.ErrState)
				if q.State() != from {
					t.Errorf("%v to %v left state %v", from, to, q.State())
				}
			}
			closeQP(t, q)
		}
	}
}

func testRegister(t *testing.T, s Setup) {
	a, _ := hosts(t, s)
	addr, _ := s.Alloc(t, 4096)
	for _, tc := range []struct {
		name         string
		addr, length uint64
		access       nic.Access
		bad          bool
	}{
		{"local", addr, 4096, nic.LocalWrite, false},
		{"read only", addr, 4096, nic.RemoteRead, false},
		{"nothing but local reading", addr, 4096, 0, false},
		{"odd", addr + 1, 4093, allAccess, false},
		{"one byte", addr, 1, allAccess, false},
		{"no length", addr, 0, allAccess, true},
		{"wraps around", ^uint64(0) - 100, 4096, allAccess, true},
		{"too long", addr, a.dev.Attr().MaxMR + 1, allAccess, true},
		{"remote write without local", addr, 4096, nic.RemoteWrite, !s.Permissive},
	} {
		mr, err := a.pd.Register(tc.addr, tc.length, tc.access)
		if tc.bad {
			wantErr(t, tc.name, err, nic.ErrMemory)
		} else if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err == nil {
			if err := mr.Close(); err != nil {
				t.Errorf("%s: close: %v", tc.name, err)
			}
		}
	}
}

func testKeys(t *testing.T, s Setup) {
	a, _ := hosts(t, s)
	addr, _ := s.Alloc(t, 4096)
	local, remote := map[uint32]bool{}, map[uint32]bool{}
	for range 100 {
		mr, err := a.pd.Register(addr, 4096, allAccess)
		if err != nil {
			t.Fatal(err)
		}
		if !s.OneKey && mr.LKey() == mr.RKey() {
			t.Errorf("local and remote key are both %#x", mr.LKey())
		}
		if local[mr.LKey()] || remote[mr.RKey()] {
			t.Errorf("keys %#x, %#x are given out twice", mr.LKey(), mr.RKey())
		}
		local[mr.LKey()], remote[mr.RKey()] = true, true
	}
}

func testBusyObjects(t *testing.T, s Setup) {
	a, _ := hosts(t, s)
	r, q := a.region(64, allAccess), a.qp(0)
	if err := a.pd.Close(); err == nil {
		t.Error("a domain with a region and a queue pair was closed")
	}
	if err := a.cq.Close(); err == nil {
		t.Error("a completion queue with a queue pair was closed")
	}
	closeQP(t, q)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := a.pd.Close(); err != nil {
		t.Error(err)
	}
	if err := a.cq.Close(); err != nil {
		t.Error(err)
	}
}

func testCloseTwice(t *testing.T, s Setup) {
	a, b := hosts(t, s)
	qa, qb := pair(t, a, b)
	from, to := a.region(64, allAccess), b.region(64, allAccess)
	a.do(qa, write(1, from, 0, to, 0, 64))
	for range 2 {
		closeQP(t, qa)
		closeQP(t, qb)
		for _, r := range []*region{from, to} {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	_, err := qa.Post([]nic.WR{write(2, from, 0, to, 0, 64)})
	wantErr(t, "Post after Close", err, nic.ErrClosed)
	wantErr(t, "Modify after Close", qa.Modify(nic.QPAttr{State: nic.Init}), nic.ErrClosed)
}

func testDeviceClose(t *testing.T, s Setup) {
	a, err := s.Provider.Open(s.DevA)
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t, s, a)
	q1, q2 := pair(t, h, h)
	r := h.region(1<<16, allAccess)
	h.do(q1, write(1, r, 0, r, 1<<15, 1<<15))
	h.do(q2, write(2, r, 0, r, 1<<15, 1<<15))
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := <-a.Events(); ok {
		for range a.Events() { // until it is closed
		}
	}
	_, err = a.NewPD()
	wantErr(t, "NewPD", err, nic.ErrClosed)
	_, err = a.NewCQ(1, nil)
	wantErr(t, "NewCQ", err, nic.ErrClosed)
	_, err = h.pd.NewQP(nic.QPOptions{CQ: h.cq})
	wantErr(t, "NewQP", err, nic.ErrClosed)
	_, err = h.cq.Poll(make([]nic.Completion, 1))
	wantErr(t, "Poll", err, nic.ErrClosed)
}
