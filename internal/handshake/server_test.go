package handshake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/railhop/railhop/internal/wire"
)

// start runs a server on the loopback for the length of the test.
func start(t *testing.T, opts Options) *Server {
	t.Helper()
	opts.BindAddr = "127.0.0.1"
	if opts.PortMin == 0 {
		opts.PortMin, opts.PortMax = 20000, 30000
	}
	s, err := Listen(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func (s *Server) name() string { return fmt.Sprintf("127.0.0.1:%d", s.Port()) }

// dial opens a raw connection to s.
func dial(t *testing.T, s *Server) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", s.name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn.(*net.TCPConn)
}

// talk sends text and returns all that comes back until the server shuts its
// side. A reset counts as nothing.
func talk(t *testing.T, s *Server, text string) string {
	t.Helper()
	conn := dial(t, s)
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the server neither answers nor closes")
	}
	return string(got)
}

func frame(t wire.Type, body string) string {
	return string(wire.AppendFrame(nil, wire.Frame{Type: t, Body: []byte(body)}))
}

func typeless(body string) string {
	return string(wire.AppendFrame(nil, wire.Frame{Typeless: true, Body: []byte(body)}))
}

// echo answers each kind of request with something of the request's.
func echo() Handlers {
	return Handlers{
		Connect: func(_ context.Context, h wire.HandShake) wire.HandShake {
			if h.PeerNICPath == "" {
				return wire.HandShake{ReplyMsg: "Invalid peer_nic_path in handshake: "}
			}
			return wire.HandShake{LocalNICPath: h.PeerNICPath, PeerNICPath: h.LocalNICPath, QPNum: h.QPNum}
		},
		Describe: func() []byte { return []byte(`{"name":"n","protocol":"tcp"}` + "\n") },
		Notify:   func(wire.Notification) {},
		Fence: func(_ context.Context, q wire.FenceRequest) wire.FenceReply {
			return wire.FenceReply{Closed: 2}
		},
	}
}

func TestServerAnswers(t *testing.T) {
	s := start(t, Options{Handlers: echo()})
	const hs = `{"local_gid":"","local_lid":0,"local_nic_path":"b@c","payload":"","peer_nic_path":"a@d","qp_num":[7],"reply_msg":""}` + "\n"
	const rejected = `{"local_gid":"","local_lid":0,"local_nic_path":"","payload":"","peer_nic_path":"","qp_num":[],"reply_msg":"Invalid peer_nic_path in handshake: "}` + "\n"
	for _, tc := range []struct{ name, request, want string }{
		{"probe", "\x03\x00\x00\x00\x00\x00\x00\x00\x03{}", "\x16\x00\x00\x00\x00\x00\x00\x00\x03{\"status\":\"success\"}\n"},
		{"metadata", frame(wire.Metadata, "{}"), frame(wire.Metadata, `{"name":"n","protocol":"tcp"}`+"\n")},
		{"notify", frame(wire.Notify, `{"name":"x","notify_msg":""}`), "\x24\x00\x00\x00\x00\x00\x00\x00\x02{\"name\":\"\",\"notify_msg\":\"success\"}\n"},
		{"connection", frame(wire.Connection, `{"local_nic_path":"a@d","peer_nic_path":"b@c","qp_num":[7]}`), frame(wire.Connection, hs)},
		{"typeless connection", typeless(`{"local_nic_path":"a@d","peer_nic_path":"b@c","qp_num":[7]}`), typeless(hs)},
		{"typeless and empty", "\x02\x00\x00\x00\x00\x00\x00\x00{}", typeless(rejected)},
		{
			"fence", frame(wire.Fence, `{"railhop_fence":{"epoch":"0000000000000007","nonce":"n"}}`),
			frame(wire.Fence, `{"railhop_fence":{"closed":2,"epoch":"0000000000000007","error":"","nonce":"n"}}`+"\n"),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := talk(t, s, tc.request); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestServerAnswersInPieces(t *testing.T) {
	s := start(t, Options{Handlers: echo()})
	conn := dial(t, s)
	conn.SetNoDelay(true)
	if _, err := io.Copy(conn, iotest.OneByteReader(strings.NewReader(frame(wire.Probe, "{}")))); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if want := frame(wire.Probe, wire.ProbeReply); string(got) != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestServerRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, request string
		reply         string // part of it; "" means closed without one
		count         func(*Stats) *uint64
	}{
		{"length 0", "\x00\x00\x00\x00\x00\x00\x00\x00", "", func(s *Stats) *uint64 { return &s.BadFrame }},
		{"length 1", "\x01\x00\x00\x00\x00\x00\x00\x00\x03", "", func(s *Stats) *uint64 { return &s.BadFrame }},
		{"1 MiB and 1", "\x01\x00\x10\x00\x00\x00\x00\x00", "", func(s *Stats) *uint64 { return &s.TooLong }},
		{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "", func(s *Stats) *uint64 { return &s.HTTPProbe }},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01", "", func(s *Stats) *uint64 { return &s.TLSProbe }},
		{"type 4", frame(4, "{}"), "", func(s *Stats) *uint64 { return &s.BadFrame }},
		{"type 0xff", frame(0xff, "{}"), "", func(s *Stats) *uint64 { return &s.BadFrame }},
		{"not JSON", frame(wire.Connection, "hello"), "", func(s *Stats) *uint64 { return &s.BadFrame }},
		{"metadata that is not JSON", frame(wire.Metadata, "<xml>"), "", func(s *Stats) *uint64 { return &s.BadFrame }},
		{"fence without an epoch", frame(wire.Fence, "{}"), "", func(s *Stats) *uint64 { return &s.BadFrame }},
		{"array", frame(wire.Connection, "[]"), `body is [], want an object`, func(s *Stats) *uint64 { return &s.Rejected }},
		{"wrong type", frame(wire.Connection, `{"qp_num":["x"]}`), `qp_num[0] is \"x\", want an integer`, func(s *Stats) *uint64 { return &s.Rejected }},
		{"notify with a wrong type", frame(wire.Notify, `{"name":[]}`), `"notify_msg":""`, func(s *Stats) *uint64 { return &s.Rejected }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := start(t, Options{Handlers: echo()})
			got := talk(t, s, tc.request)
			if tc.reply == "" && got != "" || !strings.Contains(got, tc.reply) {
				t.Errorf("reply %q, want %q in it", got, tc.reply)
			}
			s.Close() // the counts are final
			st := s.Stats()
			if n := *tc.count(&st); n != 1 {
				t.Errorf("the cause is counted %d times: %+v", n, st)
			}
		})
	}
}

func TestServerWithoutHandlers(t *testing.T) {
	s := start(t, Options{})
	for _, tc := range []struct{ request, want string }{
		{frame(wire.Metadata, "{}"), frame(wire.Metadata, "null\n")},
		{frame(wire.Notify, "{}"), frame(wire.Notify, "null\n")},
		{frame(wire.Probe, "{}"), frame(wire.Probe, wire.ProbeReply)},
	} {
		if got := talk(t, s, tc.request); got != tc.want {
			t.Errorf("%q: got %q, want %q", tc.request, got, tc.want)
		}
	}
	if got := talk(t, s, frame(wire.Connection, "{}")); !strings.Contains(got, "No RDMA transport") {
		t.Errorf("handshake is answered with %q", got)
	}
	if got := talk(t, s, frame(wire.Fence, `{"railhop_fence":{"epoch":"0000000000000007"}}`)); !strings.Contains(got, `"error":"no fence`) {
		t.Errorf("fence is answered with %q", got)
	}
	s.Handle(echo())
	if got := talk(t, s, frame(wire.Metadata, "{}")); !strings.Contains(got, "tcp") {
		t.Errorf("with handlers, metadata is answered with %q", got)
	}
}

func TestHandlerPanics(t *testing.T) {
	boom := func() { panic("boom") }
	s := start(t, Options{Handlers: Handlers{
		Connect:  func(context.Context, wire.HandShake) wire.HandShake { boom(); return wire.HandShake{} },
		Describe: func() []byte { boom(); return nil },
		Notify:   func(wire.Notification) { boom() },
		Fence:    func(context.Context, wire.FenceRequest) wire.FenceReply { boom(); return wire.FenceReply{} },
	}})
	for _, tc := range []struct{ request, want string }{
		{frame(wire.Connection, "{}"), `"reply_msg":"internal error"`},
		{frame(wire.Metadata, "{}"), "null"},
		{frame(wire.Notify, "{}"), `"notify_msg":""`},
		{frame(wire.Fence, `{"railhop_fence":{"epoch":"0000000000000007"}}`), `"error":"internal error"`},
	} {
		if got := talk(t, s, tc.request); !strings.Contains(got, tc.want) {
			t.Errorf("%q: got %q, want %q in it", tc.request, got, tc.want)
		}
	}
	if n := s.Stats().Panics; n != 4 {
		t.Errorf("%d panics counted, want 4", n)
	}
}

// A storm of rubbish does not disturb a client that behaves.
func TestServerSurvivesRubbish(t *testing.T) {
	s := start(t, Options{Handlers: echo()})
	rubbish := []string{frame(4, "{}"), frame(0xff, "{}"), frame(0, "x"), frame(0, "[]"), "GET / HTTP/1.0\r\n\r\n", "\x00"}
	for i := range 100 {
		conn := dial(t, s)
		io.WriteString(conn, rubbish[i%len(rubbish)])
		conn.Close()
		if i%10 == 0 {
			if err := (&Dialer{}).Probe(t.Context(), s.name()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Silent, dripping and lingering clients delay nobody, and are cut in the end.
func TestSlowClientsAreCut(t *testing.T) {
	s := start(t, Options{Handlers: echo(), ReadTimeout: time.Second, CloseTimeout: time.Second})
	silent, started, dripping, lingering := dial(t, s), dial(t, s), dial(t, s), dial(t, s)
	io.WriteString(started, "\x0a\x00\x00\x00\x00\x00\x00\x00\x00{}x")
	io.WriteString(lingering, frame(wire.Probe, "{}"))
	dripped := make(chan error, 1)
	go func() {
		for {
			if _, err := dripping.Write([]byte("\x10")[:1]); err != nil {
				dripped <- err
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	for range 20 {
		if err := (&Dialer{}).Probe(t.Context(), s.name()); err != nil {
			t.Fatal(err)
		}
	}
	for name, conn := range map[string]net.Conn{"silent": silent, "started": started} {
		if got, err := io.ReadAll(conn); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: got %q, %v, want to be cut", name, got, err)
		}
	}
	if err := <-dripped; errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("dripping client: %v, want to be cut", err)
	}
	// The server's close of its other half shows as a reset of what we write.
	if _, err := io.ReadAll(lingering); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := lingering.Write([]byte("x")); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("lingering client: %v, want to be cut", err)
			}
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if st := s.Stats(); st.Timeouts < 2 {
		t.Errorf("%d timeouts counted: %+v", st.Timeouts, st)
	}
}

func TestRequestsInProgressAreBounded(t *testing.T) {
	const most, clients = 3, 12
	entered, leave := make(chan struct{}, clients), make(chan struct{})
	s := start(t, Options{MaxInProgress: most, Handlers: Handlers{
		Connect: func(context.Context, wire.HandShake) wire.HandShake {
			entered <- struct{}{}
			<-leave
			return wire.HandShake{}
		},
	}})
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			if _, err := (&Dialer{}).Connect(t.Context(), s.name(), wire.HandShake{}); err != nil {
				t.Error(err)
			}
		})
	}
	for range most {
		<-entered
	}
	if n := s.Stats().InProgress; n != most {
		t.Errorf("%d in progress, want %d", n, most)
	}
	select {
	case <-entered:
		t.Errorf("more than %d handlers at once", most)
	case <-time.After(50 * time.Millisecond):
	}
	close(leave)
	wg.Wait()
	if n := s.Stats().Connections; n != clients {
		t.Errorf("%d served, want %d", n, clients)
	}
}

// A storm of peers (D20) is served in full.
func TestHandshakeStorm(t *testing.T) {
	s := start(t, Options{Handlers: echo(), MaxInProgress: 16})
	var wg sync.WaitGroup
	for i := range 240 {
		wg.Go(func() {
			want := wire.HandShake{LocalNICPath: "b@c", PeerNICPath: fmt.Sprintf("a%d@d", i), QPNum: []uint32{uint32(i)}}
			got, err := (&Dialer{}).Connect(t.Context(), s.name(), wire.HandShake{
				LocalNICPath: want.PeerNICPath, PeerNICPath: "b@c", QPNum: want.QPNum,
			})
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
	wg.Wait()
}

// Whatever a frame holds, it gets a reply or is closed, and no handler is blamed.
func FuzzAnswer(f *testing.F) {
	for _, t := range []wire.Type{wire.Connection, wire.Metadata, wire.Notify, wire.Probe, wire.Fence, 4} {
		f.Add(byte(t), []byte(`{"railhop_fence":{"epoch":"0000000000000007"},"qp_num":[1],"notify_msg":"x"}`))
		f.Add(byte(t), []byte("[]"))
		f.Add(byte(t), []byte("x"))
	}
	s := &Server{opts: Options{}.withDefaults()}
	s.log.logger = s.opts.Logger
	s.Handle(echo())
	f.Fuzz(func(t *testing.T, kind byte, body []byte) {
		reply, err := s.answer(wire.Frame{Type: wire.Type(kind), Body: body})
		if err == nil && wire.CheckJSON(reply) != nil {
			t.Errorf("type %#x, body %q: reply %q", kind, body, reply)
		}
		if n := s.stats.panics.Load(); n != 0 {
			t.Errorf("%d panics", n)
		}
	})
}
