package rdma

import (
	"fmt"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
)

// TestLateReport leaves the report of an endpoint's work in the completion queue until
// the endpoint is gone and the slice was posted anew, by another: the report is not of
// that.
func TestLateReport(t *testing.T) {
	r := newRig(t, 1, func(_ *Options, eo *endpoint.Options) { eo.FlushTimeout = time.Millisecond })
	m := r.peer("b:1", 1)
	r.fabric.Hold()
	o := r.submit(m, 100)
	r.until("posted", false, func() bool { return r.path.Stats().Posted == 1 })
	ep, set := r.path.slices[0].ep, r.sets[0]
	ep.Fail(fmt.Errorf("%w: by a test", endpoint.ErrWithdrawn))
	<-ep.Gone()
	if e := set.Reap(); e != ep {
		t.Fatalf("reaped %v, want the endpoint that failed", e)
	}
	r.path.reaped(ep, r.now())
	for deadline := time.Now().Add(10 * time.Second); r.path.Stats().Posted < 2; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatal("not posted anew")
		}
		r.clock.Add(int64(time.Millisecond)) // a dial may have to wait
		set.Step(r.now())
		r.path.serveAll(r.now())
	}
	r.path.Step(r.now())
	r.fabric.Release()
	r.finish(false, o)
	if st := r.path.Stats(); st.Flushed != 1 || st.Posted != 2 || o.bytes != 100 {
		t.Errorf("%d flushed, %d posted, %d bytes moved, want 1, 2 and 100", st.Flushed, st.Posted, o.bytes)
	}
	r.settled()
}
