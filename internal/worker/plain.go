package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// plainBlock is what a plain stream writes and reads at once.
const plainBlock = 1 << 20

// Listening is the event that tells where a plain stream is received.
type Listening struct {
	Addr string `json:"addr"`
}

// plainReceive reads a plain TCP stream into memory, round and round, as a
// transfer engine that did nothing but move bytes would.
func (h *host) plainReceive(ctx context.Context, a PlainArgs, emit func(any)) (Streamed, error) {
	buf, err := h.plainMemory(a)
	if err != nil {
		return Streamed{}, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(a.Host, "0"))
	if err != nil {
		return Streamed{}, fmt.Errorf("worker: plain stream: %w", err)
	}
	defer l.Close()
	emit(Listening{Addr: l.Addr().String()})
	defer context.AfterFunc(ctx, func() { l.Close() })()
	c, err := l.Accept()
	if err != nil {
		return Streamed{}, fmt.Errorf("worker: plain stream: %w", err)
	}
	return move(ctx, c, buf, a.Total, func(part []byte) error {
		_, err := io.ReadFull(c, part)
		return err
	})
}

func (h *host) plainSend(ctx context.Context, a PlainArgs, _ func(any)) (Streamed, error) {
	buf, err := h.plainMemory(a)
	if err != nil {
		return Streamed{}, err
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", a.Addr)
	if err != nil {
		return Streamed{}, fmt.Errorf("worker: plain stream: %w", err)
	}
	return move(ctx, c, buf, a.Total, func(part []byte) error {
		_, err := c.Write(part)
		return err
	})
}

func (h *host) plainMemory(a PlainArgs) ([]byte, error) {
	m, err := h.named(a.Memory)
	switch {
	case err != nil:
		return nil, err
	case m.host == nil:
		return nil, fmt.Errorf("worker: plain stream: memory %q is a GPU's: want memory of the process", a.Memory)
	case m.size%plainBlock != 0 || a.Total%plainBlock != 0:
		return nil, fmt.Errorf("worker: plain stream of %d bytes over %d: want multiples of %d", a.Total, m.size, plainBlock)
	}
	return m.host, nil
}

// move calls step for each block of buf, round and round.
func move(ctx context.Context, c net.Conn, buf []byte, total uint64, step func([]byte) error) (Streamed, error) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var s Streamed
	start := time.Now()
	for s.Bytes < total {
		at := s.Bytes % uint64(len(buf))
		if err := step(buf[at : at+plainBlock]); err != nil {
			return s, errors.Join(context.Cause(ctx), fmt.Errorf("worker: plain stream: %w", err))
		}
		s.Bytes += plainBlock
		s.Requests++
	}
	s.Nanoseconds = int64(time.Since(start))
	return s, nil
}
