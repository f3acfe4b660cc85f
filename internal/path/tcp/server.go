package tcp

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/railhop/railhop/internal/gpu"
)

// Memory is what a [Server] serves. It may be called by any goroutine.
type Memory interface {
	// Find reports whether one buffer that peers may use holds the whole range, and
	// the GPU that it lies on, nil for host memory.
	Find(addr, length uint64) (dev gpu.Device, ok bool)
}

// ServerOptions configures a [Server].
type ServerOptions struct {
	// PortMin and PortMax bound the port, which is drawn at random; 0 means any.
	PortMin, PortMax int
	Log              *slog.Logger // nil discards
}

// Server answers peers' requests. There is no time limit on an idle connection:
// Mooncake's pool notices a closed one only by failing the next transfer.
type Server struct {
	opts   ServerOptions
	memory Memory
	ln     *net.TCPListener
	start  time.Time
	wg     sync.WaitGroup
	big    sync.Pool // stages of sessions with much to do

	mu       sync.Mutex
	sessions map[*session]struct{} // nil once closed

	counts serverCounters
}

type serverCounters struct {
	accepted, reads, writes, readBytes, writeBytes, refused, stale atomic.Uint64
}

// ServerStats is what a server has done so far.
type ServerStats struct {
	Accepted              uint64 // connections
	Open                  int
	Reads, Writes         uint64 // requests
	ReadBytes, WriteBytes uint64
	Refused               uint64 // requests for memory that is not registered
	Stale                 uint64 // connections whose peer had gone before its write was copied into place
}

// Listen takes a random free port of the range, for IPv6 and IPv4 where there is IPv6.
// Peers are answered once Serve is called.
func Listen(opts ServerOptions) (*Server, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	ln, err := listen(opts.PortMin, opts.PortMax)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, ln: ln, start: time.Now(), sessions: make(map[*session]struct{})}
	s.big.New = func() any { return new([bigStage]byte) }
	return s, nil
}

// Serve begins to answer. It does not block, and is called once.
func (s *Server) Serve(m Memory) {
	s.memory = m
	s.wg.Go(s.accept)
}

// maxDraws is how many ports are tried, Mooncake's number.
const maxDraws = 500

func listen(lo, hi int) (*net.TCPListener, error) {
	if lo < 0 || lo > hi || hi > 65535 {
		return nil, fmt.Errorf("tcp: port range %d-%d: want 0 <= min <= max <= 65535", lo, hi)
	}
	var err error
	for range maxDraws {
		var ln net.Listener
		ln, err = net.Listen("tcp", ":"+strconv.Itoa(lo+rand.IntN(hi-lo+1)))
		if err == nil {
			return ln.(*net.TCPListener), nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("tcp: listen: %w", err)
		}
	}
	return nil, fmt.Errorf("tcp: no free port in %d-%d after %d tries: %w", lo, hi, maxDraws, err)
}

// now is the server's clock.
func (s *Server) now() time.Duration { return time.Since(s.start) }

// Port returns the port that was drawn.
func (s *Server) Port() int { return s.ln.Addr().(*net.TCPAddr).Port }

// Stats returns the counters.
func (s *Server) Stats() ServerStats {
	c := &s.counts
	s.mu.Lock()
	open := len(s.sessions)
	s.mu.Unlock()
	return ServerStats{
		Accepted: c.accepted.Load(), Open: open,
		Reads: c.reads.Load(), Writes: c.writes.Load(),
		ReadBytes: c.readBytes.Load(), WriteBytes: c.writeBytes.Load(),
		Refused: c.refused.Load(), Stale: c.stale.Load(),
	}
}

// Close stops the server, cuts all connections and waits until none uses the memory
// any more. It may be called twice.
func (s *Server) Close() error {
	s.ln.Close()
	s.mu.Lock()
	for x := range s.sessions {
		x.cut()
	}
	s.sessions = nil
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// Revoke waits until no peer reads or writes the range any more; the connections of those that do
// are cut. [Memory] must have ceased to find it.
func (s *Server) Revoke(addr, length uint64) {
	s.mu.Lock()
	var users []*session
	for x := range s.sessions {
		if x.uses(addr, length) {
			users = append(users, x)
		}
	}
	s.mu.Unlock()
	for _, x := range users {
		x.cut()
		<-x.done
	}
}

func (s *Server) accept() {
	pause := time.Millisecond
	for {
		conn, err := s.ln.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, mostly: it passes.
			s.opts.Log.Warn("tcp: cannot accept", "err", err)
			time.Sleep(pause)
			pause = min(2*pause, 100*time.Millisecond)
			continue
		}
		pause = time.Millisecond
		s.counts.accepted.Add(1)
		conn.SetKeepAliveConfig(keepAlive)
		unpaced(conn)
		x, err := newSession(s, conn)
		if err != nil {
			conn.Close()
			continue
		}
		s.mu.Lock()
		if s.sessions == nil {
			s.mu.Unlock()
			conn.Close()
			return
		}
		s.sessions[x] = struct{}{}
		s.wg.Go(x.run)
		s.mu.Unlock()
	}
}

func (s *Server) forget(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x)
}
