package rdma

import (
	"testing"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/xfer"
)

func TestPortDownAndUp(t *testing.T) {
	type change struct {
		name   string
		active bool
	}
	var seen []change
	r := newRig(t, 2, func(o *Options, _ *endpoint.Options) {
		o.Matrix = map[string][2][]string{"cuda:0": {{"nic0"}, {"nic1"}}}
		o.Health = func(n *endpoint.NIC, active bool, _ error) { seen = append(seen, change{n.Name, active}) }
	})
	m := r.peer("b:1", 1)
	r.finish(false, r.submit(m, 1))
	r.fabric.Hold()
	o := r.submit(m, 20*65536)
	r.until("posted", false, func() bool { return r.path.Stats().Posted == 21 })
	r.cards[0].SetPort(nic.PortDown)
	r.until("inactive", false, func() bool { return !r.path.nics[0].active })
	r.fabric.Release()
	r.finish(true, o)
	if len(o.errs) > 0 || r.sets[0].NIC().Active() {
		t.Errorf("%+v", o)
	}
	r.cards[0].SetPort(nic.PortActive)
	r.until("event read", false, func() bool { return r.path.nics[0].backAt != 0 })
	if limit := r.path.Arm(r.now()); limit <= 0 || limit > 30*time.Second {
		t.Errorf("the pump may sleep %v, want until the quarantine is over", limit)
	}
	r.clock.Add(int64(29 * time.Second))
	r.path.Step(r.now())
	if r.path.nics[0].active {
		t.Error("back before its quarantine is over")
	}
	r.clock.Add(int64(time.Second))
	r.path.Step(r.now())
	if want := []change{{"nic0", false}, {"nic0", true}}; len(seen) != 2 || seen[0] != want[0] || seen[1] != want[1] {
		t.Errorf("told %v, want %v", seen, want)
	}
	r.settled()
}

func TestAllNICsDown(t *testing.T) {
	r := newRig(t, 1, nil)
	m := r.peer("b:1", 1)
	r.cards[0].SetPort(nic.PortDown)
	r.until("inactive", false, func() bool { return !r.path.nics[0].active })
	o := r.submit(m, 100)
	if !o.done() {
		t.Fatal("waits for a NIC")
	}
	wantErr(t, o, xfer.ErrContext)
}

func TestNICThatKeepsFailing(t *testing.T) {
	r := newRig(t, 2, func(o *Options, _ *endpoint.Options) {
		o.Matrix = map[string][2][]string{"cuda:0": {{"nic0"}, {"nic1"}}}
	})
	m := r.peer("b:1", 1)
	r.failN("nic0", 1<<30, nic.StatusLocalProtection)
	for range 40 {
		o := r.submit(m, 100)
		r.finish(true, o)
		if len(o.errs) > 0 {
			t.Fatal(o.errs[0])
		}
		r.clock.Add(int64(time.Second))
	}
	if r.path.nics[0].active || r.path.Stats().Deactivations != 1 {
		t.Errorf("%+v", r.path.Stats())
	}
	r.fabric.Fault = nil
	r.clock.Add(int64(31 * time.Second))
	r.path.Step(r.now())
	if !r.path.nics[0].active {
		t.Error("inactive for good")
	}
}
