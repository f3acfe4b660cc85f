package handshake

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// script serves one connection: it reads a frame's worth, hands it to reply, and
// writes what that returns. It returns its address and a channel that tells when
// the client has closed.
func script(t *testing.T, reply func(request []byte) []byte) (server string, closed <-chan struct{}) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		head := make([]byte, 8)
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		body := make([]byte, binary.LittleEndian.Uint64(head))
		if _, err := io.ReadFull(conn, body); err != nil {
			return
		}
		if out := reply(append(head, body...)); out != nil {
			conn.Write(out)
			io.Copy(io.Discard, conn) // until the client closes
		}
	}()
	return ln.Addr().String(), done
}

func TestDialerAgainstServer(t *testing.T) {
	desc := &wire.SegmentDesc{
		Name: "n", Protocol: "rdma", TCPProtoVersion: 1, FenceVersion: 1,
		Devices:        []wire.Device{{Name: "d", GID: wire.FormatGID([16]byte{15: 1})}},
		Buffers:        []wire.Buffer{{Name: "cpu:0", Addr: 1, Length: 2, LKey: []uint32{1}, RKey: []uint32{2}}},
		PriorityMatrix: map[string][2][]string{"cpu:0": {{"d"}, nil}},
	}
	h := echo()
	h.Describe = func() []byte { return wire.AppendSegmentDesc(nil, desc) }
	notified := make(chan wire.Notification, 1)
	h.Notify = func(n wire.Notification) { notified <- n }
	s := start(t, Options{Handlers: h})
	d, ctx := &Dialer{}, t.Context()

	if got, err := d.Describe(ctx, s.name()); err != nil || cmp.Diff(desc, got) != "" {
		t.Error("Describe:", err, cmp.Diff(desc, got))
	}
	n := wire.Notification{Name: "x", Msg: ""}
	if err := d.Notify(ctx, s.name(), n); err != nil || <-notified != n {
		t.Error("Notify:", err)
	}
	if err := d.Probe(ctx, s.name()); err != nil {
		t.Error("Probe:", err)
	}
	got, err := d.Fence(ctx, s.name(), wire.FenceRequest{Epoch: 9, Nonce: "z"})
	if want := (wire.FenceReply{Epoch: 9, Nonce: "z", Closed: 2}); err != nil || got != want {
		t.Errorf("Fence = %+v, %v, want %+v", got, err, want)
	}
	_, err = d.Connect(ctx, s.name(), wire.HandShake{})
	var rejected *RejectedError
	if !errors.As(err, &rejected) || !strings.Contains(err.Error(), "Invalid peer_nic_path") {
		t.Errorf("Connect without a path: %v, want a RejectedError", err)
	}
}

func TestDialerErrors(t *testing.T) {
	ctx := t.Context()
	d := &Dialer{}
	describe := func(server string) error { _, err := d.Describe(ctx, server); return err }
	connect := func(server string) error { _, err := d.Connect(ctx, server, wire.HandShake{}); return err }
	notify := func(server string) error { return d.Notify(ctx, server, wire.Notification{}) }
	probe := func(server string) error { return d.Probe(ctx, server) }
	hasty := func(server string) error { return (&Dialer{ReadTimeout: 50 * time.Millisecond}).Probe(ctx, server) }
	fence := func(server string) error {
		_, err := d.Fence(ctx, server, wire.FenceRequest{Epoch: 1, Nonce: "n"})
		return err
	}
	for _, tc := range []struct {
		name  string
		ask   func(string) error
		reply string // "" means none: close
		code  xfer.Code
		text  string
	}{
		{"closed without a reply", probe, "", xfer.ErrSocket, "closed the connection before its reply (request type 0x3)"},
		{"reply cut off", hasty, frame(3, "{}")[:9], xfer.ErrSocket, "no reply from"},
		{"another type", probe, frame(2, "{}"), xfer.ErrMalformedJSON, "the reply has type 0x2, want 0x3"},
		{"no type", connect, typeless("{}"), xfer.ErrMalformedJSON, "the reply has no type"},
		{"not JSON", connect, frame(0, "hello"), xfer.ErrMalformedJSON, "not JSON"},
		{"wrong member", connect, frame(0, `{"qp_num":"x"}`), xfer.ErrMalformedJSON, `qp_num is "x"`},
		{"rejected", connect, frame(0, `{"reply_msg":"no \u0000 way"}`), xfer.ErrRejectedHandshake, `the peer refuses: "no \x00 way"`},
		{"no segment", describe, frame(1, "null"), xfer.ErrMetadata, "no segment descriptor"},
		{"refused descriptor", describe, frame(1, `{"protocol":"ub"}`), xfer.ErrMetadata, `protocol is "ub"`},
		{"descriptor too long", describe, "\x01\x00\x10\x00\x00\x00\x00\x00", xfer.ErrMetadata,
			"1048577 bytes is over the reader's limit of 1048576 bytes: raise MC_HANDSHAKE_MAX_LENGTH"},
		{"not notified", notify, frame(2, "null"), xfer.ErrMetadata, "did not take the notification"},
		{"fence of another epoch", fence, frame(0x70, `{"railhop_fence":{"epoch":"0000000000000002","nonce":"n"}}`), xfer.ErrRejectedHandshake, "confirms epoch"},
		{"fence with another nonce", fence, frame(0x70, `{"railhop_fence":{"epoch":"0000000000000001","nonce":"m"}}`), xfer.ErrRejectedHandshake, "confirms epoch"},
		{"fence not done", fence, frame(0x70, `{"railhop_fence":{"epoch":"0000000000000001","error":"slow","nonce":"n"}}`), xfer.ErrRejectedHandshake, "slow"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server, _ := script(t, func([]byte) []byte {
				if tc.reply == "" {
					return nil
				}
				return []byte(tc.reply)
			})
			checkError(t, tc.ask(server), tc.code, tc.text)
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		s := start(t, Options{})
		s.Close()
		checkError(t, probe(s.name()), xfer.ErrSocket, "refused")
	})
	t.Run("no such host", func(t *testing.T) {
		checkError(t, probe("a:1:2"), xfer.ErrDNS, "more than one colon")
	})
	t.Run("canceled", func(t *testing.T) {
		server, _ := script(t, func([]byte) []byte { return []byte("\x10") })
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(ctx)
		time.AfterFunc(20*time.Millisecond, func() { cancel(gone) })
		err := (&Dialer{}).Probe(ctx, server)
		checkError(t, err, xfer.ErrSocket, "gone")
		if !errors.Is(err, gone) {
			t.Errorf("error %v does not wrap the context's cause", err)
		}
	})
}

func checkError(t *testing.T, err error, code xfer.Code, text string) {
	t.Helper()
	var got xfer.Code
	if !errors.As(err, &got) || got != code || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v (code %d), want code %d and %q", err, got, code, text)
	}
}

// A peer that refuses still lists its queue pairs.
func TestRejectionKeepsTheReply(t *testing.T) {
	server, _ := script(t, func([]byte) []byte { return []byte(frame(0, `{"qp_num":[1,2,3],"reply_msg":"QP count mismatch"}`)) })
	reply, err := (&Dialer{}).Connect(t.Context(), server, wire.HandShake{})
	if err == nil || len(reply.QPNum) != 3 {
		t.Errorf("reply %+v, error %v, want both", reply, err)
	}
}

// The client sends the old daemon what it wants and lets go at once.
func TestClientClosesAfterTheReply(t *testing.T) {
	var request []byte
	server, closed := script(t, func(b []byte) []byte {
		request = b
		return []byte(frame(wire.Probe, wire.ProbeReply))
	})
	if err := (&Dialer{}).Probe(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	<-closed
	if want := []byte("\x03\x00\x00\x00\x00\x00\x00\x00\x03{}"); !bytes.Equal(request, want) {
		t.Errorf("request %q, want %q", request, want)
	}
}

func TestResolve(t *testing.T) {
	for _, tc := range []struct {
		dialer Dialer
		server string
		want   string // the first address; "" means an error
	}{
		{Dialer{}, "127.0.0.1:7", "127.0.0.1:7"},
		{Dialer{}, "127.0.0.1", "127.0.0.1:12001"},
		{Dialer{DefaultPort: 9}, "127.0.0.1", "127.0.0.1:9"},
		{Dialer{}, "[::1]:7", "[::1]:7"},
		{Dialer{}, "localhost:7", "127.0.0.1:7"},
		{Dialer{}, "", ""},
		{Dialer{}, "127.0.0.1:70000", ""},
	} {
		got, err := tc.dialer.resolve(t.Context(), tc.server)
		if tc.want == "" {
			if err == nil {
				t.Errorf("%q resolves to %v", tc.server, got)
			}
			continue
		}
		if err != nil || got[0].String() != tc.want {
			t.Errorf("%q resolves to %v, %v, want %s", tc.server, got, err, tc.want)
		}
	}
	// With the IPv6 switch on, IPv4 addresses are still among those tried.
	addrs, err := (&Dialer{IPv6: true}).resolve(t.Context(), "localhost:7")
	if err != nil || !addrs[len(addrs)-1].Addr().Is4() {
		t.Errorf("localhost resolves to %v, %v, want an IPv4 address at the end", addrs, err)
	}
}

func TestLargeDescriptor(t *testing.T) {
	d := &wire.SegmentDesc{Name: "n", Protocol: "tcp", TCPProtoVersion: 2}
	for i := range 15000 {
		d.Buffers = append(d.Buffers, wire.Buffer{Name: "some-node.example:15000", Addr: 1<<40 + uint64(i)<<30, Length: 1 << 30})
	}
	text := wire.AppendSegmentDesc(nil, d)
	if err := wire.CheckLength(text, wire.DefaultMaxLength); err == nil {
		t.Fatalf("a descriptor of %d bytes fits the default limit", len(text))
	}
	s := start(t, Options{Handlers: Handlers{Describe: func() []byte { return text }}})
	_, err := (&Dialer{}).Describe(t.Context(), s.name())
	checkError(t, err, xfer.ErrMetadata, "MC_HANDSHAKE_MAX_LENGTH")
	got, err := (&Dialer{MaxLength: 4 << 20}).Describe(t.Context(), s.name())
	if err != nil || len(got.Buffers) != len(d.Buffers) {
		t.Errorf("with a raised limit: %v", err)
	}
}
