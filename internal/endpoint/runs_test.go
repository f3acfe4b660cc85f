package endpoint

import (
	"slices"
	"testing"

	"github.com/railhop/railhop/internal/nic"
)

// reports polls everything there is.
func reports(t *testing.T, e *Endpoint) (all []nic.Completion) {
	t.Helper()
	var done [64]nic.Completion
	for {
		n, err := e.set.cq.Poll(done[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return all
		}
		all = append(all, done[:n]...)
	}
}

func TestRuns(t *testing.T) {
	for _, tc := range []struct {
		name  string
		posts []int
		fault int   // the request that fails, counted from 1 over both queue pairs
		ended []int // by report
	}{
		{"one", []int{1}, 0, []int{1}},
		{"an even run each", []int{4}, 0, []int{2, 2}},
		{"a run is a quarter of the queue", []int{16}, 0, []int{4, 4, 4, 4}},
		{"a rest", []int{9}, 0, []int{4, 1, 4}},
		{"posts in turn", []int{1, 3}, 0, []int{1, 2, 1}},
		{"the first of a run fails", []int{4}, 1, []int{1, 1, 2}},
		{"the last of a run fails", []int{4}, 2, []int{2, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.host("a:1", func(o *Options) { o.MaxWR = 16 })
			w.host("b:1", nil)
			e := w.connect(a, "b:1@nic0")
			count := 0
			w.fabric.Fault = func(_ string, wr nic.WR) nic.Status {
				if count++; count == tc.fault {
					return nic.StatusRetryExceeded
				}
				return nic.StatusSuccess
			}
			for _, n := range tc.posts {
				wrs := make([]nic.WR, n)
				for i := range wrs {
					wrs[i].ID = 7
				}
				if got, err := e.PostRuns(wrs); got != n || err != nil {
					t.Fatalf("took %d of %d, %v", got, n, err)
				}
			}
			var ended []int
			for _, c := range reports(t, e) {
				if c.ID&^RunEnd != 7 {
					t.Errorf("id %#x", c.ID)
				}
				ended = append(ended, e.Ended(&c))
			}
			slices.Sort(ended)
			slices.Sort(tc.ended)
			if !slices.Equal(ended, tc.ended) {
				t.Errorf("reports stand for %v, want %v", ended, tc.ended)
			}
			if e.Open() != 0 || a.set.inflight != 0 {
				t.Errorf("%d open, %d in flight", e.Open(), a.set.inflight)
			}
		})
	}
}
