package handshake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/wire"
)

func TestCloseEndsHandlersAndWaits(t *testing.T) {
	entered := make(chan struct{})
	done := false
	s := start(t, Options{Handlers: Handlers{
		Fence: func(ctx context.Context, q wire.FenceRequest) wire.FenceReply {
			close(entered)
			<-ctx.Done()
			done = true
			return wire.FenceReply{Error: "closing"}
		},
	}})
	silent := dial(t, s)
	asker := dial(t, s)
	io.WriteString(asker, frame(wire.Fence, `{"railhop_fence":{"epoch":"0000000000000007"}}`))
	<-entered
	s.Close()
	if !done {
		t.Error("Close returned before the handler")
	}
	if _, err := io.ReadAll(silent); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("Close left a connection open")
	}
	if err := s.Close(); err != nil {
		t.Error("second Close:", err)
	}
	if conn, err := net.Dial("tcp", s.name()); err == nil {
		conn.Close()
		t.Error("the port is still open")
	}
}

func TestListenPorts(t *testing.T) {
	a := start(t, Options{})
	if p := a.Port(); p < 20000 || p > 30000 {
		t.Errorf("port %d is out of range", p)
	}
	_, err := Listen(Options{BindAddr: "127.0.0.1", PortMin: a.Port(), PortMax: a.Port()})
	if want := fmt.Sprintf("no free port in %d-%[1]d after 1 tries", a.Port()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("range that is taken: error %v, want %q", err, want)
	}
	b := start(t, Options{PortMin: a.Port() - 1, PortMax: a.Port() + 1})
	if b.Port() == a.Port() {
		t.Errorf("two servers on port %d", b.Port())
	}
	for _, opts := range []Options{{PortMin: 2, PortMax: 1}, {PortMax: 7}} {
		if s, err := Listen(opts); err == nil {
			s.Close()
			t.Errorf("port range %d-%d is accepted", opts.PortMin, opts.PortMax)
		}
	}
	if s, err := Listen(Options{BindAddr: "192.0.2.1"}); err == nil {
		s.Close()
		t.Error("an address that is not ours is accepted")
	}
}

func TestIPv6ListenerTakesIPv4(t *testing.T) {
	s, err := Listen(Options{IPv6: true, PortMin: 20000, PortMax: 30000, Handlers: echo()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := (&Dialer{IPv6: true}).Probe(t.Context(), s.name()); err != nil {
		t.Error(err)
	}
}

func TestDraws(t *testing.T) {
	for _, n := range []int{1, 2, maxDraws, maxDraws + 1, 60000} {
		all := draws(n)
		seen := make(map[int]bool)
		for _, d := range all {
			if d < 0 || d >= n {
				t.Fatalf("draws(%d) has %d", n, d)
			}
			seen[d] = true
		}
		if len(all) != min(n, maxDraws) || n <= maxDraws && len(seen) != n {
			t.Errorf("draws(%d): %d tries of %d ports", n, len(all), len(seen))
		}
	}
}
