package rdma

import (
	"errors"
	"testing"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/nic"
)

func TestAbort(t *testing.T) {
	r := newRig(t, 1, func(_ *Options, eo *endpoint.Options) { eo.MaxWR, eo.MaxCQE = 8, 16 })
	m := r.peer("b:1", 1)
	r.finish(false, r.submit(m, 1))
	r.fabric.Hold()
	bad, good := r.submit(m, 12*65536), r.submit(m, 12*65536)
	r.until("posted", false, func() bool { return r.path.Stats().Posted == 17 })
	r.fabric.Stick() // the NIC cannot say yet that nothing lands any more
	timeout := errors.New("too late")
	r.path.Abort(only(bad), timeout)
	r.until("both ends in ERR", false, func() bool { return r.fabric.InState(nic.Err) == 4 })
	for range 20 {
		r.path.Step(r.now())
	}
	if bad.closed != 0 || good.closed != 0 {
		t.Errorf("closed %d and %d slices that may still land", bad.closed, good.closed)
	}
	r.fabric.Release()
	r.finish(true, bad, good)
	wantErr(t, bad, timeout)
	if len(bad.errs) != 12 || len(good.errs) != 0 || good.bytes != 12*65536 {
		t.Errorf("%d errors, want 12; the other: %+v", len(bad.errs), good)
	}
	if st := r.path.Stats(); st.Retries != 0 {
		t.Errorf("%d retries: another owner's slices paid for the abort", st.Retries)
	}
	r.path.Abort(only(bad), timeout) // nothing is left to abort
	r.settled()
}

func TestAbortQueued(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 1)
	r.net.Serve("b:1", nil)
	cause := errors.New("cancelled")
	o, other := r.submit(m, mib), r.submit(m, mib)
	r.path.Abort(only(o), cause)
	if !o.done() || other.closed != 0 {
		t.Errorf("closed %d of %d at once, and %d of the other", o.closed, o.opened, other.closed)
	}
	wantErr(t, o, cause)
	r.start("b:1", 1)
	r.finish(true, other)
	r.settled()
}
