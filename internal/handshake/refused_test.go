package handshake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

func TestRefused(t *testing.T) {
	t.Parallel()
	asked := func(err error) error {
		return fmt.Errorf("fence: %w", &Error{Op: "fence", Server: "node-b", Code: xfer.ErrSocket, Err: err})
	}
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	late := &net.OpError{Op: "dial", Err: syscall.ETIMEDOUT}
	for _, tc := range []struct {
		name string
		err  error
		want bool
	}{
		{"no error", nil, false},
		{"refused", asked(refused), true},
		{"not from a dialer", fmt.Errorf("sim: %w", syscall.ECONNREFUSED), true},
		{"refused by all addresses", asked(errors.Join(refused, refused)), true},
		{"one address does not answer", asked(errors.Join(refused, late)), false},
		{"given up before the second address", asked(errors.Join(refused, context.Canceled)), false},
		{"no answer", asked(late), false},
		{"the peer says no", asked(&RejectedError{Msg: "no"}), false},
	} {
		if got := Refused(tc.err); got != tc.want {
			t.Errorf("%s: %v, want %v: %v", tc.name, got, tc.want, tc.err)
		}
	}
}

func TestRefusedByNobody(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ask := func() error {
		d := &Dialer{ReadTimeout: 10 * time.Millisecond}
		_, err := d.Fence(ctx, ln.Addr().String(), wire.FenceRequest{Epoch: 1})
		return err
	}
	if err := ask(); Refused(err) {
		t.Errorf("a server that is silent has not refused: %v", err)
	}
	ln.Close()
	if err := ask(); !Refused(err) {
		t.Errorf("nobody listens any more: %v", err)
	}
}
