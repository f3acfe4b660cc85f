package rdma

import (
	"slices"
	"testing"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/nic"
)

// What is posted is reported by the run: a quarter of a queue or [runBytes] at most, and
// each share of a queue pair.
func TestReportsOfRuns(t *testing.T) {
	for _, tc := range []struct {
		name     string
		requests int
		length   uint64
		slices   int
		reports  int
	}{
		{"one", 1, 100, 1, 1},
		{"small ones", 64, 4096, 64, 2},
		{"a run is a quarter of the queue", 256, 100, 256, 4},
		{"a run is a mebibyte", 1, 8 * mib, 128, 8},
		{"more than there is room for", 1024, 100, 1024, 16},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 1, func(_ *Options, eo *endpoint.Options) { eo.MaxWR = 256 })
			m := r.peer("b:1", 1)
			r.finish(false, r.submit(m, 1))
			posted, reports := 0, 0
			r.fabric.Fault = func(_ string, w nic.WR) nic.Status {
				if posted++; w.Signaled {
					reports++
				}
				return nic.StatusSuccess
			}
			var owners []*owner
			for range tc.requests {
				owners = append(owners, r.submit(m, tc.length))
			}
			r.finish(false, owners...)
			if posted != tc.slices || reports != tc.reports {
				t.Errorf("%d slices in %d reports, want %d in %d", posted, reports, tc.slices, tc.reports)
			}
			for _, o := range owners {
				if o.bytes != tc.length || len(o.errs) > 0 {
					t.Fatalf("%+v", o)
				}
			}
			r.settled()
		})
	}
}

// A failure in a run: what is before it was not reported and is sent again, as is
// what is behind it, and each byte counts once.
func TestRunFails(t *testing.T) {
	const n = 32 // 16 for each queue pair
	for _, tc := range []struct {
		name  string
		fault int // the request that fails, counted from 1
		again int // how many are sent again
	}{
		{"the first", 1, 16},
		{"the second", 2, 16},
		{"in the middle", 8, 16},
		{"the last", 16, 16},
		{"in the second run", 20, 16},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 1, nil)
			m := r.peer("b:1", 1)
			r.finish(false, r.submit(m, 1))
			before := r.path.Stats()
			count := 0
			r.fabric.Fault = func(string, nic.WR) nic.Status {
				if count++; count == tc.fault {
					return nic.StatusRetryExceeded
				}
				return nic.StatusSuccess
			}
			var owners []*owner
			for range n {
				owners = append(owners, r.submit(m, 4096))
			}
			r.finish(true, owners...)
			for _, o := range owners {
				if o.bytes != 4096 || len(o.errs) > 0 {
					t.Fatalf("%+v", o)
				}
			}
			s := r.path.Stats()
			if got := int(s.Posted-before.Posted) - n; got != tc.again {
				t.Errorf("%d sent again, want %d", got, tc.again)
			}
			if got := s.Links[0].Bytes - before.Links[0].Bytes; got != n*4096 {
				t.Errorf("%d bytes counted, want %d", got, n*4096)
			}
			r.settled()
		})
	}
}

// A run that an abort cuts through: what others have in it is sent again.
func TestRunIsAborted(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 1)
	r.finish(false, r.submit(m, 1))
	r.fabric.Hold()
	var kept, stopped []*owner
	for range 16 {
		kept = append(kept, r.submit(m, 4096))
		stopped = append(stopped, r.submit(m, 4096))
	}
	r.path.Step(r.now())
	r.path.Abort(func(o Owner) bool { return slices.Contains(stopped, o.(*owner)) }, ErrClosed)
	r.until("the queue pairs to be in ERR", false, func() bool { return r.fabric.InState(nic.Err) == 2 })
	r.fabric.Release()
	r.finish(true, append(kept, stopped...)...)
	for _, o := range kept {
		if o.bytes != 4096 || len(o.errs) > 0 {
			t.Fatalf("kept: %+v", o)
		}
	}
	for _, o := range stopped {
		if o.bytes != 0 || len(o.errs) != 1 {
			t.Fatalf("stopped: %+v", o)
		}
	}
	r.settled()
}
