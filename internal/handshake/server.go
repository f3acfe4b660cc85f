package handshake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/railhop/railhop/internal/wire"
)

// Options configures a [Server]. The zero value listens on all IPv4 addresses, as
// Mooncake does.
type Options struct {
	// PortMin and PortMax bound the port, which is drawn at random. Zero means
	// 15000 and 17000.
	PortMin, PortMax uint16
	BindAddr         string // an address to listen on; "" means all
	IPv6             bool   // all IPv6 addresses too, if BindAddr is ""
	Backlog          int    // connections not yet accepted; 0 means 128

	MaxLength     uint64        // of a request, in bytes; 0 means 1 MiB
	ReadTimeout   time.Duration // for a whole request; 0 means 5 s
	WriteTimeout  time.Duration // for a whole reply; 0 means 60 s
	CloseTimeout  time.Duration // for the client to close after the reply; 0 means 5 s
	MaxInProgress int           // requests at once, others wait; 0 means 256

	Logger   *slog.Logger // nil means none
	Handlers Handlers     // see also [Server.Handle]
}

func (o Options) withDefaults() Options {
	if o.PortMin == 0 && o.PortMax == 0 {
		o.PortMin, o.PortMax = 15000, 17000
	}
	o.Backlog = cmp.Or(o.Backlog, 128)
	o.MaxLength = cmp.Or(o.MaxLength, wire.DefaultMaxLength)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 5*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 60*time.Second)
	o.CloseTimeout = cmp.Or(o.CloseTimeout, 5*time.Second)
	o.MaxInProgress = cmp.Or(o.MaxInProgress, 256)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// maxLingering is how many connections may wait, after their reply, for the
// client to close; beyond it they are closed at once.
const maxLingering = 1024

// Server answers peers' requests.
type Server struct {
	opts     Options
	ln       *net.TCPListener
	handlers atomic.Pointer[Handlers]
	log      quietLog
	stats    counters

	ctx       context.Context // ends with Close; handlers' contexts come from it
	stop      context.CancelFunc
	slots     chan struct{} // one is taken for each request in progress
	lingering atomic.Int64
	wg        sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // open ones; nil once closed
}

// Listen starts a server on a random free port of the range. Requests that have
// no handler yet are answered with null.
func Listen(opts Options) (*Server, error) {
	opts = opts.withDefaults()
	ln, err := listen(opts)
	if err != nil {
		return nil, err
	}
	s := &Server{
		opts:  opts,
		ln:    ln,
		log:   quietLog{logger: opts.Logger},
		slots: make(chan struct{}, opts.MaxInProgress),
		conns: make(map[net.Conn]struct{}),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.Handle(opts.Handlers)
	s.wg.Go(s.accept)
	return s, nil
}

// maxDraws is how many ports are tried, Mooncake's number.
const maxDraws = 500

func listen(opts Options) (*net.TCPListener, error) {
	lo, hi := int(opts.PortMin), int(opts.PortMax)
	if lo == 0 || lo > hi {
		return nil, fmt.Errorf("handshake: port range %d-%d: want 1 <= min <= max <= 65535", lo, hi)
	}
	network, host := "tcp4", "0.0.0.0"
	switch {
	case opts.BindAddr != "":
		network, host = "tcp", opts.BindAddr
	case opts.IPv6:
		network, host = "tcp", "::" // takes IPv4 too
	}
	var last error
	for i, n := range draws(hi - lo + 1) {
		ln, err := net.Listen(network, net.JoinHostPort(host, strconv.Itoa(lo+n)))
		if err == nil {
			tcp := ln.(*net.TCPListener)
			setBacklog(tcp, opts.Backlog)
			return tcp, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("handshake: listen: %w", err)
		}
		last = fmt.Errorf("handshake: no free port in %d-%d after %d tries: %w", lo, hi, i+1, err)
	}
	return nil, last
}

// draws returns which of n ports to try: each once if they are few.
func draws(n int) []int {
	if n <= maxDraws {
		return rand.Perm(n)
	}
	all := make([]int, maxDraws)
	for i := range all {
		all[i] = rand.IntN(n)
	}
	return all
}

// setBacklog replaces the backlog that package net chose. Failing that, net's
// stays.
func setBacklog(ln *net.TCPListener, backlog int) {
	if raw, err := ln.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = syscall.Listen(int(fd), backlog) })
	}
}

// Port returns the port that was drawn.
func (s *Server) Port() uint16 { return uint16(s.ln.Addr().(*net.TCPAddr).Port) }

// Addr returns the address listened on.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Handle replaces the handlers, for requests that come from now on. A peer's
// segment name contains the port, so handlers are often made after Listen.
func (s *Server) Handle(h Handlers) { s.handlers.Store(&h) }

// Close stops the server, cuts all connections, ends the handlers' contexts and
// waits for the handlers. It may be called twice.
func (s *Server) Close() error {
	s.stop()
	s.ln.Close()
	s.mu.Lock()
	for conn := range s.conns {
		conn.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

func (s *Server) accept() {
	pause := time.Millisecond
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		conn, err := s.ln.AcceptTCP()
		if err != nil {
			<-s.slots
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, mostly: it passes.
			s.log.warn(logAccept, "handshake: cannot accept", "err", err)
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		s.stats.accepted.Add(1)
		if !s.track(conn) {
			<-s.slots
			return
		}
		s.wg.Go(func() { s.serve(conn) })
	}
}

// track notes an open connection, so that Close can cut it.
func (s *Server) track(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		conn.Close()
		return false
	}
	s.conns[conn] = struct{}{}
	return true
}

func (s *Server) serve(conn *net.TCPConn) {
	defer func() {
		conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	replied := s.serveOne(conn)
	<-s.slots
	if replied {
		s.linger(conn)
	}
}

// serveOne reads a request and writes its reply. It reports whether there was
// one.
func (s *Server) serveOne(conn *net.TCPConn) bool {
	s.stats.inProgress.Add(1)
	defer s.stats.inProgress.Add(-1)
	conn.SetReadDeadline(time.Now().Add(s.opts.ReadTimeout))
	request, err := wire.ReadFrame(conn, s.opts.MaxLength)
	if err != nil {
		s.refuse(conn, err)
		return false
	}
	s.stats.frames.Add(1)
	body, err := s.answer(request)
	if err != nil {
		s.refuse(conn, err)
		return false
	}
	reply := wire.Frame{Type: request.Type, Typeless: request.Typeless, Body: body}
	conn.SetWriteDeadline(time.Now().Add(s.opts.WriteTimeout))
	pieces := net.Buffers{wire.AppendFrameHead(nil, reply), body} // a descriptor may be large: no copy
	if _, err := pieces.WriteTo(conn); err != nil {
		s.stats.writeErrors.Add(1)
		return false
	}
	return conn.CloseWrite() == nil
}

// linger waits for the client to close first.
func (s *Server) linger(conn *net.TCPConn) {
	if s.lingering.Add(1) <= maxLingering {
		conn.SetReadDeadline(time.Now().Add(s.opts.CloseTimeout))
		var drop [512]byte
		for {
			if _, err := conn.Read(drop[:]); err != nil {
				break
			}
		}
	}
	s.lingering.Add(-1)
}

// refuse counts a request that is closed without a reply.
func (s *Server) refuse(conn net.Conn, err error) {
	peer := conn.RemoteAddr().String()
	var frame *wire.FrameError
	switch {
	case errors.As(err, &frame):
		switch frame.Problem {
		case wire.HTTPProbe:
			s.stats.httpProbe.Add(1)
			s.log.info(logProbe, "handshake: HTTP probe", "peer", peer)
		case wire.TLSProbe:
			s.stats.tlsProbe.Add(1)
			s.log.info(logProbe, "handshake: TLS probe", "peer", peer)
		case wire.FrameTooLong:
			s.stats.tooLong.Add(1)
			s.log.warn(logTooLong, "handshake: request is too long", "peer", peer, "err", err)
		default:
			s.stats.badFrame.Add(1)
			s.log.info(logBadFrame, "handshake: bad frame", "peer", peer, "err", err)
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.stats.timeouts.Add(1)
		s.log.info(logTimeout, "handshake: request was not complete in time", "peer", peer, "timeout", s.opts.ReadTimeout)
	case errors.Is(err, io.EOF):
		s.stats.empty.Add(1) // somebody looked whether the port is open
	case errors.Is(err, net.ErrClosed):
	default:
		s.stats.badFrame.Add(1)
		s.log.info(logBadFrame, "handshake: bad frame", "peer", peer, "err", err)
	}
}
