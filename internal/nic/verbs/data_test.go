package verbs_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

// rig is a queue pair that is connected to another one of the same or another device.
type rig struct {
	a, b nic.Device
	cq   nic.CQ
	qp   nic.QP
	wr   nic.WR
}

func newRig(t *testing.T, wake func()) *rig {
	t.Helper()
	p, devices := provider(t)
	r := &rig{}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	r.a, err = p.Open(devices[0])
	must(err)
	t.Cleanup(func() { r.a.Close() })
	r.b, err = p.Open(devices[len(devices)-1])
	must(err)
	t.Cleanup(func() { r.b.Close() })
	const all = nic.LocalWrite | nic.RemoteRead | nic.RemoteWrite
	ends := [2]nic.Device{r.a, r.b}
	var qps [2]nic.QP
	var mrs [2]nic.MR
	var at [2]uint64
	for i, d := range ends {
		pd, err := d.NewPD()
		must(err)
		cq, err := d.NewCQ(512, wake)
		must(err)
		if i == 0 {
			r.cq = cq
		}
		at[i], _ = alloc(t, 1<<20)
		mrs[i], err = pd.Register(at[i], 1<<20, all|nic.RelaxedOrdering)
		must(err)
		qps[i], err = pd.NewQP(nic.QPOptions{CQ: cq})
		must(err)
	}
	for i, q := range qps {
		port := ends[1-i].Port()
		must(q.Modify(nic.QPAttr{State: nic.Init, Access: all}))
		must(q.Modify(nic.QPAttr{State: nic.RTR, RemoteQPN: qps[1-i].Num(), RemoteGID: port.GID, RemoteLID: port.LID}))
		must(q.Modify(nic.QPAttr{State: nic.RTS}))
	}
	r.qp = qps[0]
	r.wr = nic.WR{Op: nic.OpWrite, Signaled: true, LKey: mrs[0].LKey(), RKey: mrs[1].RKey(), Length: 64, LocalAddr: at[0], RemoteAddr: at[1]}
	return r
}

// TestDataPathAllocatesNothing posts chains and polls them.
func TestDataPathAllocatesNothing(t *testing.T) {
	r := newRig(t, nil)
	wrs, done := make([]nic.WR, 32), make([]nic.Completion, 64)
	for i := range wrs {
		wrs[i] = r.wr
		wrs[i].ID, wrs[i].Signaled = uint64(i), i%4 == 3
	}
	round := func() {
		if n, err := r.qp.Post(wrs); n != len(wrs) || err != nil {
			t.Fatalf("Post took %d: %v", n, err)
		}
		for left := len(wrs) / 4; left > 0; {
			n, err := r.cq.Poll(done)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range done[:n] {
				if c.Status != nic.StatusSuccess {
					t.Fatalf("%+v", c)
				}
			}
			left -= n
		}
	}
	round()
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("a round of %d requests allocates %v times", len(wrs), n)
	}
}

// TestIdleQueueSleeps arms a queue on which nothing happens, and then something.
func TestIdleQueueSleeps(t *testing.T) {
	wakes := make(chan struct{}, 16)
	r := newRig(t, func() { wakes <- struct{}{} })
	if err := r.cq.Arm(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-wakes:
		t.Fatal("woken for nothing")
	case <-time.After(100 * time.Millisecond):
	}
	if n, err := r.qp.Post([]nic.WR{r.wr}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	select {
	case <-wakes:
	case <-time.After(20 * time.Second):
		t.Fatal("not woken")
	}
	done := make([]nic.Completion, 4)
	if n, err := r.cq.Poll(done); n != 1 || err != nil || done[0].Status != nic.StatusSuccess {
		t.Errorf("Poll: %v, %v", done[:n], err)
	}
}

func addrOf(g nic.GID) netip.Addr { return netip.AddrFrom16(g).Unmap() }

// TestEvents pulls the cable and takes the address away.
func TestEvents(t *testing.T) {
	r := newRig(t, nil)
	name := r.a.Attr().Name
	number, soft := strings.CutPrefix(name, "rxe")
	if !soft {
		t.Skipf("%s is not Soft-RoCE, whose cable can be pulled", name)
	}
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	want := func(kind nic.EventType) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for {
			select {
			case e := <-r.a.Events():
				if e.Type == kind {
					return
				}
			case <-deadline:
				t.Fatalf("no event of type %d", kind)
			}
		}
	}
	ip("link", "set", "port"+number, "down")
	defer ip("link", "set", "port"+number, "up")
	want(nic.PortLost)
	if p := r.a.Port(); p.State != nic.PortDown {
		t.Errorf("port %+v, want it down", p)
	}
	ip("link", "set", "port"+number, "up")
	want(nic.PortUp)
	was := r.a.Port()
	if was.State != nic.PortActive || !was.Subnet.IsValid() {
		t.Errorf("port %+v, want it active", was)
	}
	// Another address in the place of the one that is used.
	dev := "net" + number
	ip("addr", "add", "10.99.7.7/24", "dev", dev)
	ip("addr", "del", addrOf(was.GID).String()+"/24", "dev", dev)
	defer ip("addr", "add", addrOf(was.GID).String()+"/24", "dev", dev)
	want(nic.GIDChanged)
	if now := r.a.Port(); now.GID == was.GID || addrOf(now.GID).String() != "10.99.7.7" {
		t.Errorf("GID %v, want that of 10.99.7.7", now.GID)
	}
	ip("addr", "del", "10.99.7.7/24", "dev", dev)
}
