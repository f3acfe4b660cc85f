package endpoint

import (
	"errors"
	"time"
)

// maxPeers bounds what is remembered of peers without an endpoint.
const maxPeers = 4096

// peer is what outlives a peer's endpoints.
type peer struct {
	qps       int // queue pairs that the peer asked for, 0 if unknown
	connected bool
	failures  int // dials that failed since the last success
	cause     error
	notBefore time.Duration // no dial earlier
	logged    bool
	lastLog   time.Duration
	unlogged  int
}

// peer returns what is known of path. s.mu is held.
func (s *Set) peer(path string) *peer {
	p := s.peers[path]
	if p == nil {
		if len(s.peers) >= maxPeers {
			now := s.opts.Now()
			for k, q := range s.peers {
				if s.store.byKey[key{0, k}] == nil && q.notBefore <= now {
					delete(s.peers, k)
				}
			}
		}
		p = &peer{}
		s.peers[path] = p
	}
	return p
}

// Trouble describes a peer that cannot be connected.
type Trouble struct {
	Failures int           // dials that failed since the last success
	Cause    error         // of the first of them
	Until    time.Duration // no dial earlier, on the clock of [Options.Now]
}

// Trouble returns how dials to path have failed lately.
func (s *Set) Trouble(path string) Trouble {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[path]
	if p == nil {
		return Trouble{}
	}
	return Trouble{Failures: p.failures, Cause: p.cause, Until: p.notBefore}
}

// connected lets e become CONNECTED, unless it is not in from any more, and notes
// the success before anybody can note how it ended.
func (s *Set) connected(e *Endpoint, from State) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !e.state.CompareAndSwap(uint32(from), uint32(Connected)) {
		return false
	}
	s.stats.Connects++
	if e.epoch != 0 {
		return true
	}
	p := s.peer(e.path)
	if p.connected {
		s.stats.Reconnects++
	}
	p.connected, p.failures, p.cause = true, 0, nil
	return true
}

// Benign reports whether an endpoint that died of cause did so for no fault of
// its own: what was flushed with it may be posted again as if nothing had been.
func Benign(cause error) bool {
	for _, e := range []error{ErrClosed, ErrEvicted, ErrReplaced, ErrFenced, ErrQPFatal, ErrWithdrawn} {
		if errors.Is(cause, e) {
			return true
		}
	}
	return false
}

// forget takes a dead endpoint out of the store and notes why it died. It reports
// whether that is to be logged, and how many were not since the last that was.
func (s *Set) forget(e *Endpoint) (log bool, unlogged int) {
	cause := *e.cause.Load()
	now := s.opts.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.remove(e)
	if e.epoch != 0 {
		return false, 0
	}
	if Benign(cause) {
		if p := s.peers[e.path]; p != nil && p.failures == 0 {
			p.notBefore = 0
		}
		return false, 0
	}
	s.stats.Failures++
	p := s.peer(e.path)
	if e.dialFailed.Load() {
		p.failures++
		if p.cause == nil {
			p.cause = cause
		}
		p.notBefore = max(p.notBefore, now+s.opts.Pause<<min(max(p.failures-3, 0), 4))
	}
	if p.logged && now-p.lastLog < time.Second {
		p.unlogged++
		return false, 0
	}
	unlogged = p.unlogged
	p.logged, p.lastLog, p.unlogged = true, now, 0
	return true, unlogged
}
