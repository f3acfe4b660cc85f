package nicfault_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/nicfault"
	"github.com/railhop/railhop/internal/nic/nictest"
	"github.com/railhop/railhop/internal/nic/softnic"
)

func provider(t testing.TB, hook nicfault.Hook) nic.Provider {
	t.Helper()
	p, err := softnic.New(softnic.Options{Devices: []softnic.DeviceConfig{
		{Name: "soft0", Addr: netip.MustParseAddr("127.0.0.1")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return nicfault.Wrap(p, hook)
}

func quiet(*nicfault.Call) error { return nil }

func TestConformance(t *testing.T) {
	nictest.Run(t, func(t testing.TB) nictest.Setup {
		return nictest.Setup{Provider: provider(t, quiet), DevA: "soft0", DevB: "soft0", Alloc: alloc}
	})
}

// use does one of each call and returns the first error.
func use(t *testing.T, p nic.Provider) (nic.Completion, error) {
	var done [1]nic.Completion
	d, err := p.Open("soft0")
	if err != nil {
		return done[0], err
	}
	t.Cleanup(func() { d.Close() })
	if _, ok := nicfault.Unwrap(d).(*softnic.Device); !ok {
		t.Error("Unwrap does not give the device")
	}
	dom, err := d.NewPD()
	if err != nil {
		return done[0], err
	}
	cq, err := d.NewCQ(8, nil)
	if err != nil {
		return done[0], err
	}
	addr, _ := alloc(t, 64)
	mr, err := dom.Register(addr, 64, nic.LocalWrite|nic.RemoteWrite)
	if err != nil {
		return done[0], err
	}
	q, err := dom.NewQP(nic.QPOptions{CQ: cq})
	if err != nil {
		return done[0], err
	}
	at := d.Port()
	if at.State != nic.PortActive {
		return done[0], errDown
	}
	for _, a := range []nic.QPAttr{
		{State: nic.Init, Access: nic.RemoteWrite},
		{State: nic.RTR, RemoteQPN: q.Num(), RemoteGID: at.GID, RemoteLID: at.LID},
		{State: nic.RTS},
	} {
		if err := q.Modify(a); err != nil {
			return done[0], err
		}
	}
	w := nic.WR{ID: 5, Op: nic.OpWrite, Signaled: true, LKey: mr.LKey(), RKey: mr.RKey(), Length: 32, LocalAddr: addr, RemoteAddr: addr + 32}
	if _, err := q.Post([]nic.WR{w}); err != nil {
		return done[0], err
	}
	for n := 0; n == 0; time.Sleep(50 * time.Microsecond) {
		if n, err = cq.Poll(done[:]); err != nil {
			return done[0], err
		}
		if n == 1 {
			break
		}
	}
	if err := q.Close(t.Context()); err != nil {
		return done[0], err
	}
	return done[0], mr.Close()
}

var errDown = errors.New("port is down")

func TestFail(t *testing.T) {
	injected := errors.New("injected")
	for _, tc := range []struct {
		op nicfault.Op
		n  int
	}{
		{nicfault.Open, 1}, {nicfault.NewPD, 1}, {nicfault.NewCQ, 1}, {nicfault.Register, 1}, {nicfault.NewQP, 1},
		{nicfault.Modify, 3}, {nicfault.Post, 1}, {nicfault.Poll, 1}, {nicfault.CloseQP, 1}, {nicfault.CloseMR, 1},
	} {
		t.Run(string(tc.op), func(t *testing.T) {
			if _, err := use(t, provider(t, nicfault.Nth(tc.op, "", tc.n, nicfault.Fail(injected)))); !errors.Is(err, injected) {
				t.Errorf("error %v, want the injected one", err)
			}
			if _, err := use(t, provider(t, nicfault.Nth(tc.op, "soft1", tc.n, nicfault.Fail(injected)))); err != nil {
				t.Errorf("another device's fault: %v", err)
			}
			if _, err := use(t, provider(t, nicfault.Nth(tc.op, "soft0", 1<<30, nicfault.Fail(injected)))); err != nil {
				t.Errorf("a later call's fault: %v", err)
			}
		})
	}
}

func TestPortDown(t *testing.T) {
	if _, err := use(t, provider(t, nicfault.Nth(nicfault.Port, "", 1, nicfault.Fail(errors.New("injected"))))); err != errDown {
		t.Errorf("error %v, want %v", err, errDown)
	}
}

func TestCompleteAs(t *testing.T) {
	c, err := use(t, provider(t, nicfault.All(quiet, nicfault.Nth(nicfault.Complete, "soft0", 1, nicfault.As(nic.StatusRemoteOperation)))))
	if err != nil || c.ID != 5 || c.Status != nic.StatusRemoteOperation {
		t.Errorf("completion %+v, %v", c, err)
	}
}

func TestHold(t *testing.T) {
	reached, release := make(chan struct{}, 1), make(chan struct{})
	p := provider(t, nicfault.Nth(nicfault.Post, "", 1, nicfault.Hold(reached, release)))
	ended := make(chan error)
	go func() {
		_, err := use(t, p)
		ended <- err
	}()
	<-reached
	select {
	case err := <-ended:
		t.Errorf("the held call returned: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(release)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
