package softnic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

const (
	dialWait = 2 * time.Second // for one attempt
	retryMin = 2 * time.Millisecond
	retryMax = 20 * time.Millisecond
)

// connect opens the connection to the peer's device, as often as it takes within
// the budget.
func (q *qp) connect(ctx context.Context) (*net.TCPConn, reply, error) {
	deadline := time.Now().Add(q.budget)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	h := hello{
		kind: kindData, src: end{q.d.gid, q.d.lid, q.num}, dstQPN: q.peer.qpn,
		name: q.d.cfg.Name, rail: q.d.cfg.Rail,
	}
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		if q.d.Port().State != nic.PortActive {
			return nil, reply{}, errPortDown
		}
		conn, rep, err := ask(ctx, q.peer, &h)
		switch {
		case err == nil && rep.verdict == verdictOK:
			return conn, rep, nil
		case err == nil:
			conn.Close()
			err = fmt.Errorf("refused with verdict %d", rep.verdict)
			if rep.verdict != verdictNotReady {
				return nil, rep, err
			}
		case errors.Is(err, errGone), errors.Is(err, errForeign), errors.Is(err, errMalformed):
			return nil, reply{}, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, reply{}, errors.Join(err, context.Cause(ctx))
		}
	}
}

// ask says hello to the device at to and returns its reply and the connection. It
// fails with errGone if nothing listens there.
func ask(ctx context.Context, to end, h *hello) (*net.TCPConn, reply, error) {
	dialer := net.Dialer{Timeout: dialWait}
	c, err := dialer.DialContext(ctx, "tcp", addrOf(to.gid, to.port).String())
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, reply{}, errGone
	}
	if err != nil {
		return nil, reply{}, err
	}
	conn := c.(*net.TCPConn)
	unwatch := context.AfterFunc(ctx, func() { conn.Close() })
	b := make([]byte, replyBytes)
	_, err = conn.Write(h.encode())
	if err == nil {
		_, err = io.ReadFull(conn, b)
	}
	var rep reply
	if err == nil {
		rep, err = parseReply(b)
	}
	if !unwatch() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, reply{}, err
	}
	return conn, rep, nil
}
