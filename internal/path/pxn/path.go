// Package pxn is the relayed way: through a peer GPU's arena on this host, and
// out by that peer's NIC, on the target's own rail.
//
//	Submit -> queue of a rail -> piece -> descriptor, commit, head
//	       -> copy to the slot, doorbell -> (the relay sends) -> completion
//
// A piece that cannot go this way goes direct, but only after this way is
// closed: it was revoked before the relay claimed it, or the relay has completed
// it, or the relay's queue pairs at the target are fenced off, or the relay is
// gone and its NIC with it (pxn.md 8).
//
// All methods of [Path] but [New] and Close belong to the pump. Attaching to a
// peer and fencing are done by goroutines of their own, which hand their results
// over in a mailbox and ring the pump.
package pxn

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/pump"
	"github.com/railhop/railhop/internal/tally"
	"github.com/railhop/railhop/internal/xfer"
)

// Peer is another rank of this host that relays for us.
type Peer interface {
	// Name is for people.
	Name() string
	Epoch() uint64
	// Suspected says whether the peer should get nothing more, and why.
	Suspected(now time.Duration) (bool, xfer.Reason)
	// Gone says that the process is dead and its descriptors are closed.
	Gone() bool
	// Watched says that Gone can be known at all.
	Watched() bool
	// Leaving returns a reason if the peer takes no new pieces: it is stopping, or
	// switched off.
	Leaving() xfer.Reason
	// Wake rings the peer's pump if it sleeps.
	Wake()
	// Fault tells the peer that its memory was gone under us.
	Fault(err error)
	Close() error
}

// Claim is a lane of a peer, claimed for us.
type Claim struct {
	Peer Peer
	// Held says that the peer is one that we hold a lane in; nothing was claimed.
	Held     bool
	Mem      lane.Mem
	Lane     int
	Geometry lane.Geometry
	Handle   gpu.Handle
	Arena    uint64            // bytes
	Rails    map[string]uint32 // the peer's rails by name
	// DoorbellPage is the mapped pages that hold the lane's doorbell, DoorbellAt
	// the doorbell's address.
	DoorbellPage []byte
	DoorbellAt   uint64
}

// Finder claims a lane of a live peer on a rail, or finds one that is held: there
// is one lane for each sender and relay, for all rails. held says of a peer's
// epoch whether we hold a lane in it. It may block.
type Finder func(ctx context.Context, rail string, held func(epoch uint64) bool) (*Claim, xfer.Reason, error)

// Options configures a [Path].
type Options struct {
	Device gpu.Device
	BusOf  func(addr uint64) string // bus id of the GPU that memory lies on
	Epoch  uint64                   // our own registry epoch
	Find   Finder
	Tally  *tally.Tally
	Logger *slog.Logger
	Wake   func() // rings our pump
	Credit time.Duration
	Ring   Doorbell
	Retry  time.Duration // between attempts to attach after one failed; 0 means 250 ms
	NoCut  bool          // pieces fill slots whatever the load
	// RailPause is how long at most a target is kept off a lane whose relay's NIC
	// failed. Zero means 30 s.
	RailPause time.Duration
	// DeathCloses says that nothing a relay posted lands once it is gone.
	DeathCloses bool
	// Direct sends a share the direct way, or says why it cannot. It opens shares
	// of its own, and takes over the fence.
	Direct func(Item, xfer.Reason) error
	// Hopeless says that direct cannot reach a target, so that a piece should
	// rather wait. Nil means never.
	Hopeless func(*Target) bool
	// Lost is told that the GPU is lost. Nil means that nobody needs to know.
	Lost func(error)
	// Guard runs f and returns an error if shared memory was gone under it. Nil
	// means that it is never gone.
	Guard func(f func() error) error
	// Fence asks a target to close all queue pairs of a relay epoch. It may
	// block. No error means that it is done, or that the target is gone.
	Fence func(ctx context.Context, t *Target, relayEpoch uint64) error
}

// Doorbell says who rings.
type Doorbell uint8

const (
	RingAuto   Doorbell = iota // the stream, if the devices can
	RingStream                 // the stream, or not at all
	RingCPU                    // the CPU, after the copy's event
)

// Path is the relayed way of one process. Use [New].
type Path struct {
	opts   Options
	log    *slog.Logger
	rails  []*rail // in the order of their first use
	recent *rail   // the one that was asked for last
	filled *load   // of recent, that the last share went to; nil once anything but Submit has run
	conns  []*conn // all, also those that only wait to be closed
	free   []*piece
	items  pool
	left   xfer.Reason // why all lanes were given back

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mail   *pump.Mail

	dialing chan struct{} // holds a token during an attempt: one at a time
	dialed  map[uint64]*conn
}

// rail is what the path knows of a rail that is not ours.
type rail struct {
	name      string
	conn      *conn  // nil if not attached
	index     uint32 // of the rail, in the peer's list
	attaching bool
	waiting   queue         // items that came while attaching
	since     time.Duration // of the attempt
	retryAt   time.Duration
	why       xfer.Reason // of the last failure
}

// New returns the relayed way.
func New(opts Options) *Path {
	if opts.Retry == 0 {
		opts.Retry = 250 * time.Millisecond
	}
	if opts.RailPause == 0 {
		opts.RailPause = 30 * time.Second
	}
	if opts.Guard == nil {
		opts.Guard = func(f func() error) error { return f() }
	}
	if opts.Lost == nil {
		opts.Lost = func(error) {}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Path{opts: opts, log: opts.Logger, dialing: make(chan struct{}, 1), dialed: make(map[uint64]*conn), mail: pump.NewMail(opts.Wake)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Submit takes a share, which its owner has open, on its way to a rail. It returns
// [xfer.NoReason] if it took it over, else why the share should go direct. A share
// that was taken may still go direct later. It may change the item, and does not
// keep it.
func (p *Path) Submit(now time.Duration, name string, it *Item) xfer.Reason {
	if l := p.filled; l != nil && l.target == it.Target && it.Target.Fences && l.takes(&it.Span) && p.recent.name == name {
		it.Fence.Hold()
		l.add(it, it.Span.Length)
		return xfer.NoReason
	}
	p.filled = nil
	if n := it.Span.Length; n == 0 || it.Span.Source > ^n || it.Span.Dest-1 >= ^n { // empty, wraps, or to address 0
		return xfer.BadPieces
	}
	if p.left != xfer.NoReason {
		return p.left
	}
	r := p.recent
	if r == nil || r.name != name {
		r = p.rail(name)
	}
	c := r.conn
	if c == nil {
		return p.submitLater(now, r, it)
	}
	if c.quarantined || c.closing > 0 || len(c.avoid) > 0 || !it.Target.Fences { // rarely
		if why := c.refuses(now, it.Target); why != xfer.NoReason {
			return why
		}
	}
	it.Fence.Hold()
	p.filled = c.queue.push(it, r.index)
	return xfer.NoReason
}

// submitLater is Submit to a rail where no lane is held.
func (p *Path) submitLater(now time.Duration, r *rail, it *Item) xfer.Reason {
	switch {
	case r.attaching || now >= r.retryAt:
		if !r.attaching {
			p.attach(now, r)
		}
		if r.why != xfer.NoReason {
			return r.why // it failed before: try again in the background
		}
		it.Fence.Hold()
		r.waiting.push(it, 0)
	default:
		return r.why
	}
	return xfer.NoReason
}

func (p *Path) rail(name string) *rail {
	i := slices.IndexFunc(p.rails, func(r *rail) bool { return r.name == name })
	if i < 0 {
		i = len(p.rails)
		p.rails = append(p.rails, &rail{name: name, waiting: queue{pool: &p.items, slot: math.MaxUint64}})
	}
	p.recent = p.rails[i]
	return p.recent
}

// attach looks for a peer on the rail, off the pump.
func (p *Path) attach(now time.Duration, r *rail) {
	r.attaching, r.since = true, now
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		c, why, err := p.dial(r.name)
		p.mail.Post(func() { p.attached(r, c, why, err) })
	}()
}

func (p *Path) attached(r *rail, c *conn, why xfer.Reason, err error) {
	r.attaching = false
	if c != nil && c.quarantined {
		c, why = nil, c.why // the lane that is held is spent: another once it is given back
	}
	if c == nil {
		r.why = why
		r.retryAt = r.since + p.opts.Retry
		for r.waiting.n > 0 {
			it := r.waiting.pop()
			p.direct(it, why, "rail", r.name, "err", err)
		}
		return
	}
	r.why = xfer.NoReason
	r.conn, r.index = c, c.claim.Rails[r.name]
	if !slices.Contains(p.conns, c) {
		p.conns = append(p.conns, c)
	}
	if p.left != xfer.NoReason {
		c.release(p.left)
	}
	for r.waiting.n > 0 {
		it := r.waiting.pop()
		if why := c.refuses(c.now, it.Target); why != xfer.NoReason {
			p.direct(it, why, "rail", r.name)
			continue
		}
		c.queue.push(&it, r.index)
	}
}

// direct sends a share that the path had taken the direct way.
func (p *Path) direct(it Item, why xfer.Reason, attrs ...any) {
	p.opts.Tally.Because(why, it.Span.Length, attrs...)
	err := p.opts.Direct(it, why)
	it.Owner.Closed(0, err)
}

// Step does what there is to do, without blocking.
func (p *Path) Step(now time.Duration) (busy bool) {
	p.filled = nil
	busy = p.mail.Read()
	for _, r := range p.rails {
		if r.attaching && r.waiting.n > 0 && now-r.since > p.opts.Credit {
			for r.waiting.n > 0 {
				it := r.waiting.pop()
				p.direct(it, xfer.NoCredit, "rail", r.name, "step", "attach")
			}
			r.why, busy = xfer.NoPeer, true
		}
	}
	for i := 0; i < len(p.conns); i++ {
		c := p.conns[i]
		if c.guarded(now) {
			busy = true
		}
		if c.ended {
			p.conns = append(p.conns[:i], p.conns[i+1:]...)
			i--
		}
	}
	return busy
}

// Arm returns how long the pump may sleep: at most a millisecond while a piece is
// under way or a copy may still read a source, since a GPU cannot wake anyone, and
// while a peer has not been looked at since the pump was woken, perhaps for its sake.
func (p *Path) Arm(time.Duration) (limit time.Duration) {
	for _, r := range p.rails {
		if r.waiting.n > 0 {
			limit = 10 * time.Millisecond
		}
	}
	for _, c := range p.conns {
		switch {
		case c.tx.InFlight() > 0 || c.queue.n > 0 || c.head != nil || len(c.linger) > 0 || c.unlooked:
			return time.Millisecond
		case c.quarantined:
			limit = 10 * time.Millisecond
		}
	}
	return limit
}

// Abort stops the shares of owners that match: they end with cause, and go no other
// way. Those that a relay has claimed end once their way is closed; match may be asked
// until then.
func (p *Path) Abort(now time.Duration, match func(Owner) bool, cause error) {
	p.filled = nil
	drop := func(it Item) {
		it.Fence.Drop()
		it.Owner.Closed(0, cause)
	}
	for _, r := range p.rails {
		r.waiting.remove(match, drop)
	}
	for _, c := range p.conns {
		c.queue.remove(match, drop)
		if err := p.opts.Guard(func() error { c.abort(now, match, cause); return nil }); err != nil {
			c.gone(err)
		}
	}
}

// Release gives all lanes back, sending what is queued the direct way, and takes
// nothing more. Step goes on until Idle.
func (p *Path) Release(now time.Duration, why xfer.Reason) {
	p.left, p.filled = why, nil
	for _, c := range p.conns {
		c.release(why)
	}
}

// Idle reports whether no lane is held.
func (p *Path) Idle() bool {
	for _, r := range p.rails {
		if r.attaching {
			return false
		}
	}
	return len(p.conns) == 0
}

// Status describes a lane that the path holds.
type Status struct {
	Peer        string
	Lane        int
	InFlight    int
	Queued      int
	Quarantined bool
	CPUDoorbell bool
}

// Status describes the lanes that the path holds.
func (p *Path) Status() []Status {
	all := make([]Status, 0, len(p.conns))
	for _, c := range p.conns {
		all = append(all, Status{c.claim.Peer.Name(), c.claim.Lane, c.tx.InFlight(), c.queue.n, c.quarantined, c.cpu})
	}
	return all
}

// Close ends the goroutines and frees what is spare. The pump no longer steps the
// path.
func (p *Path) Close() error {
	p.cancel()
	p.wg.Wait()
	p.mail.Read()
	var err error
	for _, pc := range p.free {
		err = errors.Join(err, pc.done.Close())
	}
	p.free = nil
	return err
}

func (p *Path) newPiece() (*piece, error) {
	if n := len(p.free); n > 0 {
		pc := p.free[n-1]
		p.free = p.free[:n-1]
		return pc, nil
	}
	e, err := p.opts.Device.NewEvent()
	if err != nil {
		return nil, err
	}
	return &piece{done: e}, nil
}

func (p *Path) freePiece(pc *piece) {
	p.items.put(pc.items)
	pc.reset()
	p.free = append(p.free, pc)
}
