package rdma

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/xfer"
)

func TestMoves(t *testing.T) {
	r := newRig(t, 2, nil)
	m := r.peer("b:1", 2)
	var wrs []nic.WR
	r.fabric.Fault = func(_ string, wr nic.WR) nic.Status { wrs = append(wrs, wr); return nic.StatusSuccess }
	var owners []*owner
	want := uint64(0)
	for _, op := range []xfer.Opcode{xfer.Write, xfer.Read} {
		for _, n := range []uint64{1, 65536, 150000, 64 * mib} {
			o := new(owner)
			if err := r.path.Submit(&Work{Op: op, Local: mib + 5, Remote: 2*mib + 7, Length: n, Target: m, Owner: o}); err != nil {
				t.Fatal(err)
			}
			owners, want = append(owners, o), want+n
		}
	}
	r.finish(false, owners...)
	got := map[nic.Op]uint64{}
	for _, wr := range wrs {
		got[wr.Op] += uint64(wr.Length)
		if wr.RemoteAddr-wr.LocalAddr != mib+2 || wr.RKey != 7 || wr.LKey != 100 && wr.LKey != 101 {
			t.Fatalf("posted %+v", wr)
		}
	}
	if got[nic.OpWrite] != want/2 || got[nic.OpRead] != want/2 {
		t.Errorf("moved %v, want %d each", got, want/2)
	}
	for _, o := range owners {
		if len(o.errs) != 0 {
			t.Error(o.errs[0])
		}
	}
	st := r.path.Stats()
	var bytes uint64
	for _, l := range st.Links {
		bytes += l.Bytes
	}
	if bytes != want || st.Retries != 0 || st.Posted != uint64(len(wrs)) {
		t.Errorf("stats %+v, want %d bytes", st, want)
	}
	if st.Posts > st.Posted/16 {
		t.Errorf("%d requests in %d posts: not chained", st.Posted, st.Posts)
	}
	r.settled()
}

type countingOwner struct{ opened, closed int }

func (o *countingOwner) Opened(n int)         { o.opened += n }
func (o *countingOwner) Closed(uint64, error) { o.closed++ }

func TestAllocatesNothing(t *testing.T) {
	r := newRig(t, 2, func(o *Options, _ *endpoint.Options) {
		o.Matrix = map[string][2][]string{"cuda:0": {{"nic0"}, {"nic1"}}}
	})
	m := r.peer("b:1", 2)
	o := new(countingOwner)
	w := Work{Op: xfer.Write, Local: mib, Remote: mib, Length: 150000, Target: m, Owner: o}
	move := func() {
		for range 16 {
			if err := r.path.Submit(&w); err != nil {
				t.Fatal(err)
			}
		}
		for o.opened != o.closed {
			r.path.Step(r.now())
			r.path.Arm(r.now())
		}
	}
	warm := new(owner)
	w.Owner = warm
	for range 64 {
		if err := r.path.Submit(&w); err != nil {
			t.Fatal(err)
		}
	}
	r.finish(false, warm)
	w.Owner = o
	move()
	if n := testing.AllocsPerRun(200, move); n != 0 {
		t.Errorf("%v allocations for 16 requests", n)
	}
}

func BenchmarkSlices(b *testing.B) {
	r := newRig(b, 1, nil)
	m := r.peer("b:1", 1)
	o := new(owner)
	w := Work{Op: xfer.Write, Local: mib, Remote: mib, Length: 4096, Target: m, Owner: o}
	if err := r.path.Submit(&w); err != nil {
		b.Fatal(err)
	}
	r.finish(false, o)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += 256 {
		for range 256 {
			if err := r.path.Submit(&w); err != nil {
				b.Fatal(err)
			}
		}
		for o.opened != o.closed {
			r.path.Step(r.now())
		}
	}
}

func TestLocalNICByLocation(t *testing.T) {
	matrix := map[string][2][]string{
		"cuda:0": {{"nic2"}, {"nic0"}},
		"cuda:1": {{}, {"nic1"}},
		"cpu:0":  {{"nic0", "nic1"}, {}},
	}
	for _, tc := range []struct {
		location string
		down     int // NIC, -1 for none
		want     string
	}{
		{"cuda:0", -1, "nic2"},
		{"cuda:0", 2, "nic0"},
		{"cuda:1", -1, "nic1"},
		{"cuda:1", 1, "nic0 nic2"},
		{"cpu:0", -1, "nic0 nic1"},
		{"cpu:7", -1, "nic0 nic1 nic2"},
	} {
		t.Run(fmt.Sprint(tc.location, tc.down), func(t *testing.T) {
			r := newRig(t, 3, func(o *Options, _ *endpoint.Options) { o.Matrix = matrix })
			r.local[0].Location = tc.location
			m := r.peer("b:1", 1)
			if tc.down >= 0 {
				r.cards[tc.down].SetPort(nic.PortDown)
				r.until("inactive", false, func() bool { return !r.path.nics[tc.down].active })
			}
			for range 12 {
				r.finish(false, r.submit(m, 100))
			}
			used := ""
			for i := range 3 {
				for _, l := range r.path.Stats().Links {
					if l.NIC == fmt.Sprintf("nic%d", i) && l.Ops > 0 {
						used += fmt.Sprintf(" nic%d", i)
					}
				}
			}
			if used[1:] != tc.want {
				t.Errorf("used%s, want %s", used, tc.want)
			}
		})
	}
}

// Work is posted only as far as the queues have room.
func TestBackPressure(t *testing.T) {
	r := newRig(t, 1, func(_ *Options, eo *endpoint.Options) { eo.MaxWR, eo.MaxCQE = 8, 12 })
	m := r.peer("b:1", 1)
	r.fabric.Hold()
	o := r.submit(m, 100*65536)
	r.until("posted", false, func() bool { return r.path.Stats().Posted > 0 })
	for range 10 {
		r.path.Step(r.now())
	}
	if n := r.path.Stats().Posted; n != 12 {
		t.Errorf("%d posted, want 12", n)
	}
	r.fabric.Release()
	r.finish(false, o)
	r.settled()
}

func TestStoreFullWaits(t *testing.T) {
	r := newRig(t, 1, func(_ *Options, eo *endpoint.Options) { eo.MaxEndpoints = 2 })
	var owners []*owner
	for i := range 6 {
		owners = append(owners, r.submit(r.peer(fmt.Sprintf("b%d:1", i), 1), 200000))
	}
	r.path.Step(r.now())
	if limit := r.path.Arm(r.now()); limit != time.Millisecond {
		t.Errorf("the pump may sleep %v although nothing rings for room in the store", limit)
	}
	r.finish(true, owners...)
	for _, o := range owners {
		if len(o.errs) > 0 {
			t.Error(o.errs[0])
		}
	}
	if st := r.path.Stats().NICs[0].Endpoints; st.Endpoints > 2 || st.Evictions < 4 {
		t.Errorf("%+v", st)
	}
	r.settled()
}

func TestCloseEndsEverything(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 1)
	r.finish(false, r.submit(m, 1))
	r.fabric.Hold()
	posted := r.submit(m, mib)
	r.until("posted", false, func() bool { return r.path.Stats().Posted > 1 })
	unreachable := &remote{name: "c:1", nics: []string{"c:1@x"}}
	unreachable.buffers.Store(m.buffers.Load())
	gone := r.submit(unreachable, mib)
	if err := r.path.Close(); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*owner{posted, gone} {
		if !o.done() {
			t.Errorf("%d of %d closed", o.closed, o.opened)
		}
		wantErr(t, o, ErrClosed)
	}
	if err := r.path.Submit(&Work{Op: xfer.Write, Target: m, Owner: posted}); !errors.Is(err, ErrClosed) {
		t.Errorf("submit after close: %v", err)
	}
}

// What the NIC cannot vouch for is closed with an error that says so.
func TestCloseNamesWhatMayStillLand(t *testing.T) {
	r := newRig(t, 1, func(_ *Options, eo *endpoint.Options) { eo.CloseTimeout = time.Millisecond })
	m := r.peer("b:1", 1)
	r.finish(false, r.submit(m, 1))
	r.fabric.Stick()
	o := r.submit(m, 100)
	r.until("posted", false, func() bool { return r.path.Stats().Posted == 2 })
	if err := r.path.Close(); err == nil {
		t.Error("no error")
	}
	if len(o.errs) != 1 || !strings.Contains(o.errs[0].Error(), "may still land") {
		t.Errorf("got %v", o.errs)
	}
	r.fabric.Release()
}

func TestCompletionQueueLost(t *testing.T) {
	r := newRig(t, 2, func(o *Options, eo *endpoint.Options) {
		o.Matrix = map[string][2][]string{"cuda:0": {{"nic0"}, {"nic1"}}}
		eo.FlushTimeout = time.Millisecond
	})
	m := r.peer("b:1", 1)
	r.finish(false, r.submit(m, 1))
	r.fabric.Hold()
	o := r.submit(m, 10*65536)
	r.until("posted", false, func() bool { return r.path.Stats().Posted == 11 })
	r.cards[0].LoseCQs()
	r.until("inactive", false, func() bool { return !r.path.nics[0].active })
	r.fabric.Release()
	r.finish(true, o)
	if len(o.errs) > 0 || o.bytes != 10*65536 {
		t.Errorf("%+v", o)
	}
	r.settled()
}

func TestLinksAreForgotten(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 1)
	r.finish(false, r.submit(m, 1))
	for i := range 3 * maxLinks {
		r.path.link(r.path.nics[0], fmt.Sprintf("p%d:1@x", i))
	}
	if n := len(r.path.links); n > maxLinks || n != len(r.path.all) {
		t.Errorf("%d links and %d in the statistics, want at most %d", n, len(r.path.all), maxLinks)
	}
	r.finish(false, r.submit(m, 1))
}
