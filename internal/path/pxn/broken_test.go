package pxn

import (
	"errors"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

// TestBrokenStream has a stream that answers nothing but an error from some time on. What
// it was given goes direct, and ends once the stream is closed: a copy may read its
// source until then.
func TestBrokenStream(t *testing.T) {
	r, o := newRig(t), &owner{}
	direct := 0
	r.path.opts.Direct = func(Item, xfer.Reason) error { direct++; return nil }
	it := &Item{Span: xfer.Span{Source: 1 << 30, Dest: 1 << 20, Length: rigSlot}, Owner: o, Target: &Target{Session: []byte("node-b:1"), Fences: true}}
	if why := r.path.Submit(time.Second, "m1", it); why != xfer.NoReason {
		t.Fatal(why)
	}
	until := func(what string, cond func() bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not so: %s; %d shares went direct, %d have ended", what, direct, o.closed)
			}
			r.path.Step(time.Second)
		}
	}
	until("something is published", func() bool { return len(r.gpu.given) > 0 })
	r.gpu.failed, r.gpu.closed = errors.New("copy failed"), make(chan struct{})
	until("the share goes direct", func() bool { r.path.Step(2 * time.Second); return direct == 1 })
	for range 3 {
		r.path.Step(3 * time.Second)
	}
	if o.closed != 0 {
		t.Error("the share ends while its copy may run")
	}
	close(r.gpu.closed)
	until("the share ends", func() bool { return o.closed == 1 })
	if direct != 1 {
		t.Errorf("%d shares went direct, want 1", direct)
	}
}
