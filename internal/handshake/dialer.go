package handshake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// Dialer asks peers. The zero value is ready for use; it must not be changed
// while in use.
type Dialer struct {
	ConnectTimeout time.Duration // for each address; 0 means 5 s
	ReadTimeout    time.Duration // for the whole exchange after that; 0 means 60 s
	MaxLength      uint64        // of a reply, in bytes; 0 means 1 MiB
	DefaultPort    uint16        // of a server named without one; 0 means 12001
	// IPv6 looks names up as IPv6 first, then as IPv4. Without it names are looked
	// up as IPv4 only. Addresses are dialled as they are.
	IPv6 bool
}

// DefaultPort is the port of a server that is named without one.
const DefaultPort = 12001

// Connect sends a handshake and returns the reply. When the peer refuses, the
// error wraps a [*RejectedError] and the reply is returned too: it lists the
// peer's queue pairs.
func (d *Dialer) Connect(ctx context.Context, server string, h wire.HandShake) (wire.HandShake, error) {
	var reply wire.HandShake
	body := wire.AppendHandShake(nil, &h)
	err := d.ask(ctx, "connect", server, wire.Connection, body, func(body []byte) (err error) {
		if reply, err = wire.DecodeHandShake(body); err == nil && reply.ReplyMsg != "" {
			err = &RejectedError{Msg: reply.ReplyMsg}
		}
		return err
	})
	return reply, err
}

// Describe fetches the peer's segment descriptor.
func (d *Dialer) Describe(ctx context.Context, server string) (*wire.SegmentDesc, error) {
	var desc *wire.SegmentDesc
	err := d.ask(ctx, "describe", server, wire.Metadata, []byte(wire.MetadataRequest), func(body []byte) (err error) {
		desc, err = wire.DecodeSegmentDesc(body)
		return err
	})
	return desc, err
}

// Notify delivers a notification.
func (d *Dialer) Notify(ctx context.Context, server string, n wire.Notification) error {
	body := wire.AppendNotification(nil, &n)
	return d.ask(ctx, "notify", server, wire.Notify, body, func(body []byte) error {
		reply, err := wire.DecodeNotification(body)
		if err == nil && reply.Msg == "" {
			err = errNotNotified
		}
		return err
	})
}

var errNotNotified = errors.New("the peer did not take the notification")

// Probe reports whether a peer answers: any well-formed reply will do.
func (d *Dialer) Probe(ctx context.Context, server string) error {
	return d.ask(ctx, "probe", server, wire.Probe, []byte(wire.ProbeRequest), wire.CheckJSON)
}

// Fence asks the peer to close a relay epoch's queue pairs. Nil means that it has
// confirmed it for this epoch and nonce.
func (d *Dialer) Fence(ctx context.Context, server string, q wire.FenceRequest) (wire.FenceReply, error) {
	var reply wire.FenceReply
	body := wire.AppendFenceRequest(nil, &q)
	err := d.ask(ctx, "fence", server, wire.Fence, body, func(body []byte) (err error) {
		reply, err = wire.DecodeFenceReply(body)
		switch {
		case err != nil:
		case reply.Error != "":
			err = &RejectedError{Msg: reply.Error}
		case reply.Epoch != q.Epoch || reply.Nonce != q.Nonce:
			err = &RejectedError{Msg: fmt.Sprintf("confirms epoch %016x, nonce %q", reply.Epoch, reply.Nonce)}
		}
		return err
	})
	return reply, err
}

// ask sends one request to server and hands the reply's body to decode. It tries
// all addresses of the server, until one gives an answer, good or bad.
func (d *Dialer) ask(ctx context.Context, op, server string, t wire.Type, body []byte, decode func([]byte) error) error {
	addrs, err := d.resolve(ctx, server)
	if err != nil {
		return &Error{Op: op, Server: server, Code: xfer.ErrDNS, Err: err}
	}
	request := wire.Frame{Type: t, Body: body}
	var failures []error
	for i, addr := range addrs {
		reply, err := d.exchange(ctx, addr, request)
		if err == nil {
			err = decode(reply.Body)
		}
		if err == nil {
			return nil
		}
		code := codeOf(t, err)
		if code != xfer.ErrSocket {
			return &Error{Op: op, Server: server, Code: code, Err: err}
		}
		failures = append(failures, err)
		if ctx.Err() != nil {
			if i+1 < len(addrs) {
				failures = append(failures, context.Cause(ctx))
			}
			break
		}
	}
	err = errors.Join(failures...)
	if len(failures) == 1 {
		err = failures[0]
	}
	return &Error{Op: op, Server: server, Code: xfer.ErrSocket, Err: err}
}

// codeOf gives an exchange's error its number.
func codeOf(t wire.Type, err error) xfer.Code {
	var (
		rejected *RejectedError
		syntax   *wire.SyntaxError
		field    *wire.FieldError
		frame    *wire.FrameError
		replied  *replyTypeError
	)
	switch {
	case errors.As(err, &rejected):
		return xfer.ErrRejectedHandshake
	case errors.As(err, &syntax), errors.As(err, &replied):
		return xfer.ErrMalformedJSON
	case errors.As(err, &field), errors.As(err, &frame):
		if t == wire.Metadata {
			return xfer.ErrMetadata
		}
		return xfer.ErrMalformedJSON
	case errors.Is(err, wire.ErrNoSegment), errors.Is(err, errNotNotified):
		return xfer.ErrMetadata
	}
	return xfer.ErrSocket
}

// resolve returns the addresses to try, in order; there is at least one.
func (d *Dialer) resolve(ctx context.Context, server string) ([]netip.AddrPort, error) {
	host, port, err := wire.ParseServer(server, cmp.Or(d.DefaultPort, DefaultPort))
	if err != nil {
		return nil, err
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a, port)}, nil
	}
	network := "ip4"
	if d.IPv6 {
		network = "ip"
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(d.ConnectTimeout, connectTimeout))
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, network, host)
	if err != nil {
		return nil, err
	}
	var addrs []netip.AddrPort
	for _, ip := range ips {
		if a := netip.AddrPortFrom(ip.Unmap(), port); !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("host %q has no address", host)
	}
	slices.SortStableFunc(addrs, func(a, b netip.AddrPort) int {
		return b.Addr().BitLen() - a.Addr().BitLen() // IPv6 first
	})
	return addrs, nil
}

const (
	connectTimeout = 5 * time.Second
	readTimeout    = 60 * time.Second
)

// exchange connects to addr, writes the request in one piece, reads the reply and
// closes at once: a Mooncake peer serves nobody else until then.
func (d *Dialer) exchange(ctx context.Context, addr netip.AddrPort, request wire.Frame) (wire.Frame, error) {
	dialer := net.Dialer{Timeout: cmp.Or(d.ConnectTimeout, connectTimeout), KeepAlive: -1}
	conn, err := dialer.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return wire.Frame{}, err
	}
	defer conn.Close()
	timeout := cmp.Or(d.ReadTimeout, readTimeout)
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return wire.Frame{}, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	reply, err := roundTrip(conn, request, cmp.Or(d.MaxLength, wire.DefaultMaxLength))
	switch {
	case err == nil:
		return reply, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("no reply from %v within %v: %w", addr, timeout, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("%v closed the connection before its reply (request type %#x): %w", addr, uint8(request.Type), err)
	}
	return wire.Frame{}, err
}

func roundTrip(conn net.Conn, request wire.Frame, limit uint64) (wire.Frame, error) {
	if _, err := conn.Write(wire.AppendFrame(nil, request)); err != nil {
		return wire.Frame{}, err
	}
	reply, err := wire.ReadFrame(conn, limit)
	if err != nil {
		return wire.Frame{}, err
	}
	if reply.Typeless || reply.Type != request.Type {
		return wire.Frame{}, &replyTypeError{got: reply, want: request}
	}
	return reply, nil
}
