package tcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/iov"
	"github.com/railhop/railhop/internal/xfer"
)

const (
	maxIOV   = 1024    // runs of one system call, the kernel's limit
	maxBatch = 512     // requests sent, or answers read, by one call
	turnSize = 1 << 20 // bytes moved in a turn and connection
)

// Path moves work over connections.
type Path struct {
	opts Options

	epfd   int
	events [64]unix.EpollEvent
	parks  uint64 // of the poller, when the sockets were looked at last

	pieces  []piece
	free    int32
	open    int // pieces
	peers   map[Target]*peer
	conns   []*conn // by slot
	ready   []*conn // with something to do now
	waiting []*peer // with a queue to serve
	served  []*peer // spare room for waiting
	timerAt time.Duration
	lastIO  time.Duration
	closed  bool

	iov     [maxIOV]iov.Vec
	headers [2 * maxBatch][headerSize]byte
	msg     iov.Msg
	sink    [4096]byte

	toStage list
	stages  stages
	copies  copier

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	hasMail atomic.Bool
	mailMu  sync.Mutex
	mail    []letter
	spare   []letter

	counts counters
}

// letter is a goroutine's result. One of the first three is set.
type letter struct {
	dialled *peer // to whom a connection was made
	fetched *peer // whose descriptor was fetched
	copied  bool

	conn  *conn
	piece int32
	err   error
}

// New returns a path without connections.
func New(opts Options) (*Path, error) {
	if opts.Poller == nil {
		return nil, errors.New("tcp: path: the pump's poller is needed")
	}
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("tcp: path: %w", err)
	}
	if err := opts.Poller.add(epfd); err != nil {
		unix.Close(epfd)
		return nil, err
	}
	p := &Path{opts: opts.withDefaults(), epfd: epfd, free: none, peers: make(map[Target]*peer)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.copies.init(p)
	return p, nil
}

// Submit cuts a request into pieces and queues them. It keeps w.Target and
// w.Owner, not w. It fails only for what can never work, and then has opened
// nothing. A target address that the descriptor does not know makes it fetch a new
// one first.
func (p *Path) Submit(w *Work) error {
	if p.closed {
		return ErrClosed
	}
	if w.Op != xfer.Write && w.Op != xfer.Read {
		return fmt.Errorf("tcp: submit: %v: %w", w.Op, xfer.ErrInvalidArgument)
	}
	if w.Local+w.Length < w.Local || w.Remote+w.Length < w.Remote {
		return fmt.Errorf("tcp: submit: %d bytes at %#x to %#x wrap around: %w", w.Length, w.Local, w.Remote, xfer.ErrInvalidArgument)
	}
	if w.Length == 0 {
		w.Owner.Opened(1)
		w.Owner.Closed(0, nil)
		return nil
	}
	pr := p.peer(w.Target)
	if w.Target.Holds(w.Remote, w.Length) != nil {
		i := p.newPiece(w, pr)
		p.pieces[i].where, p.pieces[i].since = awaiting, p.opts.Now()
		p.demand(pr)
		p.push(&pr.awaiting, i)
		w.Owner.Opened(1)
		return nil
	}
	p.cut(w, pr)
	return nil
}

// cut makes pieces of a request and sends them on their way.
func (p *Path) cut(w *Work, pr *peer) {
	dev := p.opts.Device(w.Local, w.Length)
	size := p.opts.PieceSize
	if dev != nil {
		size = p.opts.StageSize
	}
	n := int((w.Length-1)/size + 1)
	w.Owner.Opened(n)
	part := *w
	for rest := w.Length; rest > 0; rest -= part.Length {
		part.Length = min(size, rest)
		i := p.newPiece(&part, pr)
		part.Local += part.Length
		part.Remote += part.Length
		s := &p.pieces[i]
		if s.dev = dev; dev != nil {
			s.where = toStage
			p.push(&p.toStage, i)
		} else {
			p.enqueue(i)
		}
	}
}

// enqueue puts a piece at the end of its peer's queue.
func (p *Path) enqueue(i int32) {
	s := &p.pieces[i]
	s.where, s.conn = queued, nil
	p.push(&s.peer.queue, i)
	p.wait(s.peer)
}

// wait has a peer's queue served.
func (p *Path) wait(pr *peer) {
	if !pr.waiting {
		pr.waiting = true
		p.waiting = append(p.waiting, pr)
	}
}

// Step does a bounded amount of work and reports whether there was any, or an answer
// is looked for.
func (p *Path) Step(now time.Duration) (busy bool) {
	busy = p.readMail(now)
	if p.toStage.n > 0 && p.startCopies() {
		busy = true
	}
	if p.open > 0 || p.parks != p.opts.Poller.parks.Load() {
		p.look()
	}
	if len(p.waiting) > 0 {
		p.serveAll(now)
		busy = true
	}
	if len(p.ready) > 0 {
		busy = true
		p.lastIO = now
		p.turn(now)
	}
	if p.timerAt != 0 && now >= p.timerAt {
		p.expire(now)
	}
	return busy || p.open > 0 && now-p.lastIO < p.opts.Spin
}

// Arm returns for how long the pump may sleep, 0 for without limit. It is followed by
// one more Step.
func (p *Path) Arm(now time.Duration) (limit time.Duration) {
	p.parks = p.opts.Poller.parks.Load() - 1 // look once more, now that all else is done
	if p.timerAt != 0 {
		return max(p.timerAt-now, time.Microsecond)
	}
	return 0
}

// Idle reports whether there is nothing to do, and nothing under way.
func (p *Path) Idle() bool {
	return p.open == 0 && len(p.ready) == 0 && len(p.waiting) == 0 && !p.hasMail.Load()
}

// look asks which sockets can be read or written.
func (p *Path) look() {
	p.parks = p.opts.Poller.parks.Load()
	n, _ := unix.EpollWait(p.epfd, p.events[:], 0)
	for i := range max(n, 0) {
		ev := &p.events[i]
		c := p.conns[ev.Fd]
		if c == nil {
			continue
		}
		if ev.Events&^uint32(unix.EPOLLOUT) != 0 {
			c.readable = true
			c.hungUp = c.hungUp || ev.Events&^uint32(unix.EPOLLOUT|unix.EPOLLIN) != 0
		}
		if ev.Events&unix.EPOLLOUT != 0 {
			c.blocked = false
		}
		p.enlist(c)
	}
}

// enlist has a connection looked at in this step.
func (p *Path) enlist(c *conn) {
	if !c.listed {
		c.listed = true
		p.ready = append(p.ready, c)
	}
}

// turn reads from and writes to the connections that have something to do, once each.
func (p *Path) turn(now time.Duration) {
	n := len(p.ready)
	for k := range n {
		c := p.ready[k]
		c.listed = false
		if c.readable && c.fd >= 0 {
			p.read(c, now)
		}
		if c.fd >= 0 && c.tx != none && !c.blocked {
			p.write(c, now)
		}
		if c.fd >= 0 && (c.readable || c.tx != none && !c.blocked) {
			p.enlist(c)
		}
	}
	left := copy(p.ready, p.ready[n:])
	clear(p.ready[left:])
	p.ready = p.ready[:left]
}

// remind has expire called at a time.
func (p *Path) remind(at time.Duration) {
	if p.timerAt == 0 || at < p.timerAt {
		p.timerAt = at
	}
}

// expire ends what has waited too long.
func (p *Path) expire(now time.Duration) {
	p.timerAt = 0
	for _, c := range p.conns {
		if c == nil || c.fd < 0 {
			continue
		}
		switch at := p.expiry(c); {
		case at == 0:
		case now < at:
			p.remind(at)
		case c.closing:
			p.finish(c, false, nil)
		default:
			s := &p.pieces[c.fifo.head]
			s.cause = fmt.Errorf("tcp: no answer from %s within %v: %w", c.peer.Name(), p.opts.StatusTimeout, xfer.ErrSocket)
			p.counts.timeouts.Add(1)
			p.shut(c, now)
		}
	}
}

// Abort stops everything of the owners that match. What was not sent is closed with
// cause at once. What was, ends the connection for writing, and is closed once the
// peer has left the memory; what others had under way there is sent again by another.
// It looks at all pieces, so that a batch is stopped by one call.
func (p *Path) Abort(match func(Owner) bool, cause error) {
	now := p.opts.Now()
	found := false
	for i := range p.pieces {
		if s := &p.pieces[i]; s.where != nowhere && s.cause == nil && match(s.owner) {
			s.cause, found = cause, true
		}
	}
	if !found {
		return
	}
	p.purge(&p.toStage)
	for _, pr := range p.peers {
		p.purge(&pr.queue)
		p.purge(&pr.awaiting)
	}
	for _, c := range p.conns {
		if c != nil && c.fd >= 0 {
			p.abortOn(c, now)
		}
	}
}

// Close closes everything that is left with [ErrClosed], or an error that says what
// may still land, and the connections. It must not run beside Step, and
// may be called twice.
func (p *Path) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	p.stop()
	p.copies.close()
	p.wg.Wait()
	p.readMail(p.opts.Now())
	for i := range p.pieces {
		if s := &p.pieces[i]; s.where != nowhere && s.cause == nil {
			s.cause = ErrClosed
		}
	}
	p.purge(&p.toStage)
	for _, pr := range p.peers {
		p.purge(&pr.queue)
		p.purge(&pr.awaiting)
	}
	for _, c := range p.conns {
		if c != nil && c.fd >= 0 {
			p.finish(c, false, nil)
		}
	}
	for _, pr := range p.peers {
		p.purge(&pr.queue)
	}
	p.opts.Poller.remove(p.epfd)
	return unix.Close(p.epfd)
}

// post leaves a letter for the pump.
func (p *Path) post(l letter) {
	p.mailMu.Lock()
	p.mail = append(p.mail, l)
	p.hasMail.Store(true)
	p.mailMu.Unlock()
	p.opts.Wake()
}

func (p *Path) readMail(now time.Duration) bool {
	if !p.hasMail.Load() {
		return false
	}
	p.mailMu.Lock()
	mail := p.mail
	p.mail, p.spare = p.spare[:0], nil
	p.hasMail.Store(false)
	p.mailMu.Unlock()
	for i := range mail {
		switch l := &mail[i]; {
		case l.dialled != nil:
			p.dialled(l.dialled, l.conn, l.err, now)
		case l.fetched != nil:
			p.fetchedAnew(l.fetched, l.err, now)
		case l.copied:
			p.copied(l.piece, l.err)
		}
	}
	clear(mail)
	p.spare = mail[:0]
	return true
}
