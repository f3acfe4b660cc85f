package softnic

import (
	"context"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/iov"
	"github.com/railhop/railhop/internal/nic"
)

const patience = 30 * time.Second

func openSoft(t testing.TB, c DeviceConfig) *Device {
	t.Helper()
	if !c.Addr.IsValid() {
		c.Addr = netip.MustParseAddr("127.0.0.1")
	}
	p, err := New(Options{Devices: []DeviceConfig{c}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Open(c.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d.(*Device)
}

// rig is a device with a queue pair and a region.
type rig struct {
	t    testing.TB
	d    *Device
	cq   nic.CQ
	wake chan struct{}
	q    *qp
	mr   nic.MR
	addr uint64
	mem  []byte
}

const rigAccess = nic.LocalWrite | nic.RemoteWrite | nic.RemoteRead

func newRig(t testing.TB, c DeviceConfig, memory int) *rig {
	t.Helper()
	r := &rig{t: t, d: openSoft(t, c), wake: make(chan struct{}, 1)}
	pd, err := r.d.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	if r.cq, err = r.d.NewCQ(64, func() { r.wake <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	q, err := pd.NewQP(nic.QPOptions{CQ: r.cq})
	if err != nil {
		t.Fatal(err)
	}
	r.q = q.(*qp)
	r.mem = make([]byte, memory)
	t.Cleanup(func() { runtime.KeepAlive(r.mem) })
	r.addr = uint64(iov.Of(r.mem).Base)
	if r.mr, err = pd.Register(r.addr, uint64(memory), rigAccess); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) connect(to end) {
	r.t.Helper()
	for _, a := range []nic.QPAttr{
		{State: nic.Init, Access: rigAccess},
		{State: nic.RTR, RemoteQPN: to.qpn, RemoteGID: to.gid, RemoteLID: to.port},
		{State: nic.RTS, Timeout: time.Second, Retries: 7},
	} {
		if err := r.q.Modify(a); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) end() end { return end{r.d.gid, r.d.lid, r.q.num} }

func (r *rig) post(wrs ...nic.WR) {
	r.t.Helper()
	if n, err := r.q.Post(wrs); n != len(wrs) || err != nil {
		r.t.Fatalf("Post took %d of %d: %v", n, len(wrs), err)
	}
}

// wait polls for n completions.
func (r *rig) wait(n int) []nic.Completion {
	r.t.Helper()
	got := make([]nic.Completion, n)
	for k, end := 0, time.Now().Add(patience); k < n; time.Sleep(100 * time.Microsecond) {
		m, err := r.cq.Poll(got[k:])
		if err != nil || time.Now().After(end) {
			r.t.Fatalf("%d of %d completions: %v, %v", k, n, got[:k], err)
		}
		k += m
	}
	return got
}

func (r *rig) want(status ...nic.Status) {
	r.t.Helper()
	for i, c := range r.wait(len(status)) {
		if c.Status != status[i] {
			r.t.Errorf("completion %d: %v, want %v", i, c.Status, status[i])
		}
	}
}

// quiet checks that there are no completions, now and a little later.
func (r *rig) quiet() {
	r.t.Helper()
	var c [8]nic.Completion
	for range 30 {
		if n, _ := r.cq.Poll(c[:]); n > 0 {
			r.t.Fatalf("reported %v before the peer has closed", c[:n])
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (r *rig) wr(kind nic.Op, id uint64, n int) nic.WR {
	return nic.WR{ID: id, Op: kind, Signaled: true, LKey: r.mr.LKey(), RKey: 1, Length: uint32(n), LocalAddr: r.addr, RemoteAddr: 1}
}

// script is a peer device that is played by the test.
type script struct {
	t   testing.TB
	lis *net.TCPListener
}

func newScript(t testing.TB) *script {
	t.Helper()
	lis, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lis.Close() })
	return &script{t, lis}
}

func (s *script) end() end {
	at := s.lis.Addr().(*net.TCPAddr).AddrPort()
	return end{nic.GID(at.Addr().As16()), at.Port(), 77}
}

// next takes the next connection and its hello.
func (s *script) next(kind uint16) *net.TCPConn {
	s.t.Helper()
	s.lis.SetDeadline(time.Now().Add(patience))
	c, err := s.lis.AcceptTCP()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	b := make([]byte, helloBytes)
	if _, err := io.ReadFull(c, b); err != nil {
		s.t.Fatal(err)
	}
	h, err := parseHello(b)
	if err != nil || h.kind != kind {
		s.t.Fatalf("hello %+v, %v; want kind %d", h, err, kind)
	}
	return c
}

func (s *script) reply(c *net.TCPConn, verdict uint16) {
	s.t.Helper()
	if _, err := c.Write((&reply{verdict: verdict, name: "script", rail: "r"}).encode()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *script) frame(c *net.TCPConn, f frame, payload ...byte) {
	b := make([]byte, frameBytes)
	putFrame(b, f)
	c.Write(append(b, payload...))
}

// say opens a connection to d and says hello; it returns the verdict too.
func say(t testing.TB, d *Device, h hello) (*net.TCPConn, uint16) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, rep, err := ask(ctx, end{d.gid, d.lid, h.dstQPN}, &h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, rep.verdict
}
