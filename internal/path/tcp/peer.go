package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/xfer"
)

const (
	// laneBusy is how many bytes are under way on a connection before another is
	// made, and laneFull before no more are given to it.
	laneBusy = 1 << 20
	laneFull = 4 << 20

	maxPeers     = 1024 // remembered without work for them
	maxLosses    = 8    // connections lost in a row, without an answer ever, before their work fails
	maxTries     = 3    // connections lost with a piece's answer due next, before it fails
	dialPause    = time.Second
	fetchTimeout = 70 * time.Second
)

// peer is a target, and the connections to it.
type peer struct {
	Target
	open    int // pieces
	queue   list
	waiting bool // in Path.waiting
	flying  int  // pieces on connections

	conns   []*conn // not closing
	dialing bool
	pause   time.Duration // no further connection is made until then
	losses  int

	awaiting list // pieces that wait for a descriptor
	fetching bool
	begun    time.Duration // the last fetch, or when it will begin
	fetched  time.Duration
	fetches  int
}

func (p *Path) peer(t Target) *peer {
	if pr := p.peers[t]; pr != nil {
		return pr
	}
	if len(p.peers) >= maxPeers {
		for t, pr := range p.peers {
			if pr.open == 0 && !pr.dialing && !pr.fetching && len(pr.conns) == 0 && !pr.waiting {
				delete(p.peers, t)
			}
		}
	}
	pr := &peer{Target: t}
	p.peers[t] = pr
	return pr
}

func (p *Path) serveAll(now time.Duration) {
	all := p.waiting
	p.waiting, p.served = p.served[:0], nil
	for _, pr := range all {
		pr.waiting = false
		p.serve(pr, now)
	}
	clear(all)
	p.served = all[:0]
}

// serve hands a peer's queue to its connections, the least busy first, and makes
// more of them if they are not enough.
func (p *Path) serve(pr *peer, now time.Duration) {
	for pr.queue.n > 0 && pr.flying < p.opts.Window {
		c := pr.best()
		if (c == nil || c.bytes >= laneBusy && len(pr.conns) < p.opts.Lanes && now >= pr.pause) && !pr.dialing {
			p.dial(pr)
		}
		if c == nil || c.bytes >= laneFull {
			return
		}
		p.assign(c, p.pop(&pr.queue))
	}
}

// best returns the connection with the least under way, or nil.
func (pr *peer) best() *conn {
	var best *conn
	for _, c := range pr.conns {
		if best == nil || c.bytes < best.bytes {
			best = c
		}
	}
	return best
}

// assign puts a piece on a connection.
func (p *Path) assign(c *conn, i int32) {
	s := &p.pieces[i]
	s.where, s.conn = flying, c
	c.peer.flying++
	c.bytes += s.length
	p.push(&c.fifo, i)
	if c.tx == none {
		c.tx, c.sent = i, 0
	}
	p.enlist(c)
}

// dial makes a connection in the background.
func (p *Path) dial(pr *peer) {
	if p.closed {
		return
	}
	pr.dialing = true
	p.counts.dials.Add(1)
	p.wg.Go(func() {
		c, err := p.connect(pr)
		p.post(letter{dialled: pr, conn: c, err: err})
	})
}

// connect connects to a target. If that fails, its descriptor is fetched anew: it may
// have moved to another port.
func (p *Path) connect(pr *peer) (*conn, error) {
	route, err := pr.Route(p.ctx)
	var c *conn
	if err == nil {
		c, err = p.connectTo(pr, route)
	}
	if err == nil || p.ctx.Err() != nil {
		return c, err
	}
	ctx, cancel := context.WithTimeout(p.ctx, fetchTimeout)
	defer cancel()
	if ferr := pr.Refetch(ctx); ferr != nil {
		return nil, fmt.Errorf("%w; its descriptor cannot be fetched anew: %v", err, ferr)
	}
	p.counts.fetches.Add(1)
	again, rerr := pr.Route(ctx)
	if rerr != nil || again == route {
		return nil, err
	}
	p.opts.Log.Info("tcp: the target has moved", "segment", pr.Name(), "port", again.Port)
	return p.connectTo(pr, again)
}

func (p *Path) connectTo(pr *peer, r Route) (*conn, error) {
	if r.Port < 1 || r.Port > 65535 {
		return nil, fmt.Errorf("tcp: target %s: data port %d: want 1 to 65535: %w", pr.Name(), r.Port, xfer.ErrMetadata)
	}
	d := net.Dialer{Timeout: p.opts.ConnectTimeout, KeepAliveConfig: keepAlive}
	nc, err := d.DialContext(p.ctx, "tcp", net.JoinHostPort(r.Host, strconv.Itoa(r.Port)))
	if err != nil {
		code := xfer.ErrSocket
		if _, ok := errors.AsType[*net.DNSError](err); ok {
			code = xfer.ErrDNS
		}
		return nil, fmt.Errorf("tcp: target %s: %w: %w", pr.Name(), code, err)
	}
	defer nc.Close()
	unpaced(nc.(*net.TCPConn))
	fd, err := dup(nc.(*net.TCPConn))
	if err != nil {
		return nil, fmt.Errorf("tcp: target %s: %w: %w", pr.Name(), xfer.ErrSocket, err)
	}
	c := &conn{peer: pr, fd: fd, v2: r.Version >= 2 && !p.opts.ForceV1, proves: r.Proves, tx: none, stage: make([][statusSize]byte, maxBatch)}
	return c, nil
}

// keepAlive finds out about hosts that are gone, which no answer tells of.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 6}

// dup returns a descriptor of our own for a connection's socket, which does not block.
func dup(nc *net.TCPConn) (fd int, err error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return -1, err
	}
	cerr := raw.Control(func(f uintptr) {
		fd, err = unix.FcntlInt(f, unix.F_DUPFD_CLOEXEC, 0)
	})
	return fd, errors.Join(cerr, err)
}

// dialled takes a dial's result.
func (p *Path) dialled(pr *peer, c *conn, err error, now time.Duration) {
	pr.dialing = false
	if err == nil && (p.closed || !p.adopt(c)) {
		unix.Close(c.fd)
		c.fd = -1
		err = ErrClosed
	}
	if err == nil {
		pr.conns = append(pr.conns, c)
		p.wait(pr)
		return
	}
	p.counts.dialFailures.Add(1)
	p.opts.Log.Debug("tcp: no connection", "segment", pr.Name(), "error", err)
	pr.pause = now + dialPause
	if len(pr.conns) > 0 {
		return
	}
	all := pr.queue.take()
	for all.n > 0 {
		p.end(p.pop(&all), err)
	}
}

// adopt has the poller look after a connection.
func (p *Path) adopt(c *conn) bool {
	c.slot = -1
	for k := range p.conns {
		if p.conns[k] == nil {
			c.slot = k
			break
		}
	}
	if c.slot < 0 {
		c.slot = len(p.conns)
		p.conns = append(p.conns, nil)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET&0xffffffff, Fd: int32(c.slot), Pad: Mark}
	if unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, c.fd, &ev) != nil {
		return false
	}
	p.conns[c.slot] = c
	return true
}

// refetch begins to fetch a descriptor anew, unless that was done just now. It
// reports whether it is under way.
func (p *Path) refetch(pr *peer) bool {
	if pr.fetching {
		return true
	}
	if p.closed || pr.fetches > 0 && p.opts.Now()-pr.fetched < p.opts.FetchEvery {
		return false
	}
	p.fetch(pr, 0)
	return true
}

// demand fetches a descriptor for an address that the known one lacks: the target may
// have registered the memory since. Unlike refetch it waits for its turn.
func (p *Path) demand(pr *peer) {
	if pr.fetching {
		return
	}
	pause := time.Duration(0)
	if pr.fetches > 0 {
		pause = max(pr.fetched+p.opts.FetchEvery-p.opts.Now(), 0)
	}
	p.fetch(pr, pause)
}

func (p *Path) fetch(pr *peer, pause time.Duration) {
	pr.fetching, pr.begun = true, p.opts.Now()+pause
	p.counts.fetches.Add(1)
	p.wg.Go(func() {
		if pause > 0 {
			timer := time.NewTimer(pause)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-p.ctx.Done():
			}
		}
		ctx, cancel := context.WithTimeout(p.ctx, fetchTimeout)
		defer cancel()
		p.post(letter{fetched: pr, err: pr.Refetch(ctx)})
	})
}

// fetchedAnew goes on with what waited for a descriptor.
func (p *Path) fetchedAnew(pr *peer, err error, now time.Duration) {
	pr.fetching, pr.fetched = false, now
	pr.fetches++
	if err != nil {
		p.opts.Log.Debug("tcp: descriptor not fetched", "segment", pr.Name(), "error", err)
	}
	begun, all := pr.begun, pr.awaiting.take()
	for all.n > 0 {
		i := p.pop(&all)
		s := &p.pieces[i]
		lost := s.cause
		if lost == nil {
			lost = pr.Holds(s.remote, s.length)
		}
		switch {
		case lost != nil && s.cause == nil && begun < s.since && !p.closed:
			// The fetch was under way already when the request came.
			p.push(&pr.awaiting, i)
			p.demand(pr)
		case lost != nil:
			p.end(i, fmt.Errorf("tcp: target %s: %w", pr.Name(), lost))
		case s.fresh:
			p.enqueue(i)
		default:
			// It stands for a whole request that is still to be cut.
			w := Work{Op: s.op, Local: s.local, Remote: s.remote, Length: s.length, Target: pr.Target, Owner: s.owner}
			p.cut(&w, pr)
			p.pieces[i].length = 0
			p.end(i, nil)
		}
	}
}
