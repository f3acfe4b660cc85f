package tcp

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/xfer"
)

func TestLoopbackIsNotPaced(t *testing.T) {
	t.Parallel()
	var m registered
	near, far := heap(64), m.buffer(64)
	srv, to := serve(t, &m)
	r := newRig(t, Options{})
	r.mustRun(Work{Op: xfer.Write, Local: addressOf(near), Remote: addressOf(far), Length: 64, Target: to})

	var fd int
	if err := r.loop.Do(func() { fd = r.path.conns[0].fd }); err != nil {
		t.Fatal(err)
	}
	if got := congestion(t, fd); got != "reno" {
		t.Errorf("the sender's congestion control is %q, want reno", got)
	}
	srv.mu.Lock()
	defer srv.mu.Unlock()
	for x := range srv.sessions {
		x.raw.Control(func(fd uintptr) {
			if got := congestion(t, int(fd)); got != "reno" {
				t.Errorf("the server's congestion control is %q, want reno", got)
			}
		})
	}
}

func TestInsideThisMachine(t *testing.T) {
	t.Parallel()
	addr := func(s string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(s)} }
	for _, tt := range []struct {
		near, far string
		want      bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.0.0.2", true},
		{"::1", "::1", true},
		{"::ffff:10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "10.0.0.2", false},
		{"fd00::1", "fd00::2", false},
	} {
		if got := inside(addr(tt.near), addr(tt.far)); got != tt.want {
			t.Errorf("inside(%s, %s) = %v, want %v", tt.near, tt.far, got, tt.want)
		}
	}
	if inside(&net.UnixAddr{}, addr("::1")) {
		t.Error("what is not TCP counts as inside this machine")
	}
}

func congestion(t *testing.T, fd int) string {
	t.Helper()
	s, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
