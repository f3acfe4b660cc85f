// Package relay is the serving end of PXN: it takes the pieces that other ranks
// of this host have put into our arena, and sends them by our own NICs.
//
//	doorbell seen -> route and queue pairs ready -> claim -> descriptor copied
//	once and checked -> slices posted -> all came back -> completion
//
// A claimed piece is bound to the queue pairs that were ready when it was
// claimed: its slices are never posted again, nor elsewhere. Whatever goes wrong
// is an error completion, once nothing of the piece is under way; its sender then
// sends it another way.
//
// All methods of [Relay] but [New] and Close belong to the pump. Routes and
// senders are looked up by goroutines of their own.
package relay

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/pump"
	"github.com/railhop/railhop/internal/tally"
	"github.com/railhop/railhop/internal/xfer"
)

// Sender is a rank that has claimed a lane of ours.
type Sender interface {
	Name() string
	// Suspected says that the sender should get nothing more.
	Suspected(now time.Duration) bool
	// Gone says that the process is dead and its descriptors are closed.
	Gone() bool
	// Wake rings the sender's pump if it sleeps.
	Wake()
	Close() error
}

// Route is a target that pieces are sent to.
type Route interface {
	// Pick says how an address is reached on a rail.
	Pick(addr uint64, rail string) (Hop, error)
	// Fences says that the target offers the fence of pxn.md 8.3.
	Fences() bool
}

// Hop is the way into a buffer of a target.
type Hop struct {
	Path       string // of the peer's NIC
	RKey       uint32
	Start, End uint64 // of the buffer
}

// Rail is one of our rails, with the queue pairs for relayed traffic.
type Rail struct {
	Name string
	Set  *endpoint.Set // toward targets that offer the fence
	LKey uint32        // of the arena
}

// Options configures a [Relay].
type Options struct {
	Lanes     []lane.Mem
	Geometry  lane.Geometry
	Arena     uint64 // address
	Rails     []Rail // in the order of the header
	Depth     int    // pieces at once
	SliceSize uint32 // bytes
	Credit    time.Duration
	Tally     *tally.Tally
	Logger    *slog.Logger
	Wake      func() // rings our pump
	// DeathCloses says that nothing we posted lands once our process is gone. Without
	// it only targets with the fence are served.
	DeathCloses bool
	// FindSender finds the rank that claimed a lane. It may block.
	FindSender func(ctx context.Context, lane int) (Sender, error)
	// ClearClaim frees a lane whose claimer is gone. It may block.
	ClearClaim func(lane int) error
	// FindRoute asks a target for the way to it, by its session. It may block.
	FindRoute func(ctx context.Context, session string) (Route, error)
}

// Relay serves the lanes of one rank. Use [New].
type Relay struct {
	opts    Options
	log     *slog.Logger
	lanes   []*inLane
	turn    int    // lane that is looked at first
	running int    // pieces claimed and not completed
	all     []*job // that were ever made, by index
	jobs    []*job // of them, those to be used again
	pool    pool
	wrs     []nic.WR
	done    [256]nic.Completion
	routes  map[string]*route
	stop    bool

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mail   *pump.Mail
}

// New returns the serving end for all lanes.
func New(opts Options) *Relay {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Relay{opts: opts, log: opts.Logger, routes: make(map[string]*route), mail: pump.NewMail(opts.Wake)}
	for i, mem := range opts.Lanes {
		rx := lane.NewRelay(mem, opts.Geometry, len(opts.Rails))
		r.lanes = append(r.lanes, &inLane{relay: r, index: i, rx: rx})
	}
	perPiece := opts.Geometry.MaxSpans + int(opts.Geometry.SlotSize/uint64(opts.SliceSize))
	r.pool.free = opts.Depth * perPiece
	r.wrs = make([]nic.WR, 0, 256)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Step does what there is to do, without blocking.
func (r *Relay) Step(now time.Duration) (busy bool) {
	busy = r.mail.Read()
	for i := range r.opts.Rails {
		if r.poll(now, r.opts.Rails[i].Set) {
			busy = true
		}
	}
	for _, l := range r.lanes {
		if l.reap() {
			busy = true
		}
	}
	n := len(r.lanes)
	for k := range n {
		l := r.lanes[(r.turn+k)%n]
		if l.attend(now) {
			busy = true
		}
	}
	if r.take(now) {
		busy = true
	}
	return busy
}

// take visits the lanes round robin, a piece a visit, until nothing is left or
// enough is running.
func (r *Relay) take(now time.Duration) (busy bool) {
	n := len(r.lanes)
	for again := true; again; {
		again = false
		for range n {
			l := r.lanes[r.turn]
			r.turn = (r.turn + 1) % n
			if l.take(now) {
				busy, again = true, true
			}
		}
	}
	return busy
}

// full reports whether a lane must wait: depth pieces at once in all, and one
// lane at most all but one while others have work.
func (r *Relay) full(l *inLane) bool {
	if r.running >= r.opts.Depth {
		return true
	}
	if l.running < r.opts.Depth-1 || r.opts.Depth == 1 {
		return false
	}
	return slices.ContainsFunc(r.lanes, func(o *inLane) bool { return o != l && o.state == active && o.rx.Underway() })
}

// poll takes the ends of slices from a rail's queue.
func (r *Relay) poll(now time.Duration, set *endpoint.Set) (busy bool) {
	busy = set.Step(now)
	for {
		n, err := set.CQ().Poll(r.done[:])
		if err != nil {
			set.Drop(err)
			break
		}
		for i := range r.done[:n] {
			c := &r.done[i]
			j := r.jobOf(c.ID &^ endpoint.RunEnd)
			if j == nil {
				continue
			}
			k := j.ep.Ended(c)
			if c.Status != nic.StatusSuccess {
				j.fail(xfer.ErrEndpoint)
				j.ep.Fail(&nic.CompletionError{Device: set.NIC().Name, Peer: j.ep.Path(), Op: nic.OpWrite, Status: c.Status, Vendor: c.Vendor})
				switch c.Status {
				case nic.StatusRemoteInvalid, nic.StatusRemoteAccess, nic.StatusRemoteOperation:
					r.outdated(j)
				}
			}
			r.end(j, k)
		}
		if n > 0 {
			busy = true
		}
		if n < len(r.done) {
			break
		}
	}
	for ep := set.Reap(); ep != nil; ep = set.Reap() {
		busy = true
		for _, j := range r.all {
			if j.ep == ep && j.open > 0 {
				j.fail(xfer.ErrEndpoint)
				r.end(j, j.open)
				j.gen++ // what is still reported of it is late
			}
		}
	}
	return busy
}

// Arm asks the queues to ring, and returns how long the pump may sleep: at most
// a millisecond while a piece is under way, since a GPU that rings cannot wake
// anyone.
func (r *Relay) Arm(now time.Duration) (limit time.Duration) {
	least := func(d time.Duration) {
		if d > 0 && (limit == 0 || d < limit) {
			limit = d
		}
	}
	for i := range r.opts.Rails {
		set := r.opts.Rails[i].Set
		d, err := set.Arm(now)
		if err != nil {
			d = time.Millisecond
		}
		least(d)
	}
	for _, l := range r.lanes {
		switch {
		case l.state == active && l.rx.Underway():
			least(time.Millisecond)
		case l.state == claiming:
			least(100 * time.Millisecond)
		}
	}
	return limit
}

// Stop takes no more pieces. Step goes on until Idle.
func (r *Relay) Stop() { r.stop = true }

// Rouse wakes the senders that hold lanes, so that they look at what we say of
// ourselves: one that has nothing to send would sleep on.
func (r *Relay) Rouse() {
	for _, l := range r.lanes {
		if l.sender != nil {
			l.sender.Wake()
		}
	}
}

// Idle reports whether no lane is held by a sender.
func (r *Relay) Idle() bool {
	return !slices.ContainsFunc(r.lanes, func(l *inLane) bool { return l.state != free })
}

// Held reports whether a sender has a lane, or is claiming one, that Step may not have
// seen yet.
func (r *Relay) Held() bool {
	return slices.ContainsFunc(r.lanes, func(l *inLane) bool { return l.rx.Held() })
}

// Served is how many bytes went out for each lane since the relay began.
func (r *Relay) Served() []uint64 {
	served := make([]uint64, len(r.lanes))
	for i, l := range r.lanes {
		served[i] = l.served.Load()
	}
	return served
}

// Close ends the goroutines. The pump no longer steps the relay.
func (r *Relay) Close() {
	r.cancel()
	r.wg.Wait()
	r.mail.Read()
	for _, l := range r.lanes {
		if l.sender != nil {
			l.sender.Close()
		}
	}
}

// resolve returns the route to a session once it is known. Until then it is
// looked up off the pump.
func (r *Relay) resolve(now time.Duration, session []byte) *route {
	rt := r.routes[string(session)]
	if rt == nil {
		if len(r.routes) >= maxRoutes {
			maps.DeleteFunc(r.routes, func(_ string, o *route) bool { return !o.asking })
		}
		name := string(session)
		rt = &route{session: name}
		if len(r.routes) == maxRoutes {
			return rt // as many are being looked up
		}
		r.routes[name] = rt
	}
	if rt.to == nil && !rt.asking && now >= rt.again {
		r.ask(now, rt)
	}
	return rt
}

// outdated forgets the route of a piece whose target answered, and said no: it may have
// registered its memory anew, or be another process under the same name.
func (r *Relay) outdated(j *job) {
	if rt := r.routes[string(j.body.Session)]; rt != nil && rt.to == j.to {
		rt.to = nil
	}
}

func (r *Relay) ask(now time.Duration, rt *route) {
	rt.asking, rt.again = true, now+routePause
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		to, err := r.opts.FindRoute(r.ctx, rt.session)
		r.mail.Post(func() {
			rt.asking = false
			rt.to = to
			if err != nil {
				r.log.Debug("no route", "session", rt.session, "err", err)
			}
		})
	}()
}

// routePause is the least time between two look-ups of a session.
const routePause = 100 * time.Millisecond

// maxRoutes is how many routes are remembered: targets that restart come back under
// other names.
const maxRoutes = 1024

type route struct {
	session string
	to      Route // nil until found, and once it has been refused
	asking  bool
	again   time.Duration
}
