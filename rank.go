package railhop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/path/pxn"
	"github.com/railhop/railhop/internal/plan"
	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/relay"
	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// rank is this process as a member of a group: the arena that it lends, the
// lanes that it holds, and its entry in the registry. It is a stepper of the
// host's pump.
type rank struct {
	host  *host
	log   *slog.Logger
	hooks *Hooks
	env   config.PXN
	gpu   gpu.Device
	bus   string
	// detach undoes, on the pump's thread, what prepared it for the GPU; nil if
	// nothing did
	detach func() error
	rails  []string

	registry registry.Group
	entry    registry.OwnEntry
	watcher  io.Closer
	arena    uint64
	mrs      []nic.MR
	nics     []*device
	sets     []*endpoint.Set

	path  *pxn.Path
	relay *relay.Relay

	// Of the pump.
	turn   func() error
	now    time.Duration
	busy   bool
	beatAt time.Duration

	left bool // the GPU is lost: lanes are given back, and ours lent to nobody

	broken atomic.Bool   // our own block is gone
	lost   atomic.Bool   // the GPU is
	deaths atomic.Uint64 // told by the watcher
	wg     sync.WaitGroup
	beats  context.CancelFunc // ends the goroutine that beats; nil if there is none
	report reporter

	relays  sync.Map // by epoch, of relays that were claimed: how many rails they have
	fenceMu sync.Mutex
	fences  []*pxn.Fence // free ones
	// fenceless: the rank is closed, and nobody takes a fence any more
	fenceless bool
}

const lanesArena = shmabi.Lanes * shmabi.Slots

// rankOptions is what a rank is set up from.
type rankOptions struct {
	env     config.Env
	bus     string
	nics    []*device // those near the GPU, in the order of rails
	rails   []string
	root    string // of the registry
	deathOK bool   // the NICs' work dies with its process
	dialer  remoteDialer
	hooks   *Hooks
}

// newRank joins a group. On failure it says which degradation that is, and nothing
// is left behind.
func newRank(h *host, o rankOptions) (_ *rank, _ xfer.Reason, err error) {
	r := &rank{host: h, log: h.log, env: o.env.PXN, bus: o.bus, rails: o.rails, nics: o.nics, hooks: o.hooks}
	defer func() {
		if err != nil {
			r.free()
		}
	}()
	fail := func(why xfer.Reason, err error) (*rank, xfer.Reason, error) { return nil, why, err }
	if r.gpu, err = h.gpus.Open(o.bus); err != nil {
		return fail(xfer.NoGPU, err)
	}
	r.registry, err = o.hooks.group(registry.Options{
		Root: o.root, Group: r.env.GroupID, Logger: h.log, Now: h.loop.Now, HeartbeatTimeout: r.env.HeartbeatTimeout,
	})
	if err != nil {
		return fail(registryReason(err), err)
	}
	slot := uint64(r.env.SlotSize)
	if r.arena, err = r.gpu.Alloc(lanesArena * slot); err != nil {
		return fail(xfer.ArenaError, fmt.Errorf("railhop: arena of %d bytes: %w", lanesArena*slot, err))
	}
	for _, n := range r.nics {
		mr, err := n.pd.Register(r.arena, lanesArena*slot, nic.LocalWrite)
		if err != nil {
			return fail(xfer.RegisterError, fmt.Errorf("railhop: register the arena with %s: %w", n.Attr().Name, err))
		}
		r.mrs = append(r.mrs, mr)
	}
	handle, err := r.gpu.Export(r.arena)
	if err != nil {
		return fail(xfer.ExportError, err)
	}
	r.entry, err = r.registry.Publish(registry.EntryOptions{Rails: r.rails, SlotSize: slot, ArenaHandle: handle})
	if err != nil {
		return fail(registryReason(err), err)
	}
	if err = r.openRelay(o); err != nil {
		return fail(xfer.NoLocalRail, err)
	}
	r.openPath(o)
	r.watcher, err = r.registry.Watch(func() { r.deaths.Add(1); h.loop.Wake() })
	if err != nil {
		return fail(xfer.RegistryError, err)
	}
	r.turn = r.step
	if err = r.attach(); err != nil {
		return fail(xfer.GPUFatal, err)
	}
	if err = h.loop.SetWord(&r.entry.Block().Header.Wake); err != nil {
		return fail(xfer.RegistryError, err)
	}
	if o.hooks == nil || o.hooks.Turn == nil {
		var ctx context.Context
		ctx, r.beats = context.WithCancel(context.Background())
		r.wg.Go(func() { r.beat(ctx) })
	}
	if err = h.loop.Add(r); err != nil {
		return fail(xfer.RegistryError, err)
	}
	r.log.Info("PXN is on", "group", r.env.GroupID, "gpu", r.bus, "rails", r.rails, "arena", lanesArena*slot, "entry", r.entry.Name())
	return r, xfer.NoReason, nil
}

// attach prepares the pump's thread for the GPU. A loop that is turned by hand has no
// thread of its own.
func (r *rank) attach() error {
	a, ok := r.gpu.(gpu.Attacher)
	if !ok || r.hooks != nil && r.hooks.Turn != nil {
		return nil
	}
	var err error
	if stopped := r.host.loop.Do(func() { r.detach, err = a.Attach() }); stopped != nil {
		return stopped
	}
	return err
}

func registryReason(err error) xfer.Reason {
	switch {
	case errors.Is(err, registry.ErrBusy):
		return xfer.RegistryBusy
	case errors.Is(err, shm.ErrNoSpace), errors.Is(err, unix.EROFS), errors.Is(err, unix.ENOENT):
		return xfer.ShmError
	}
	return xfer.RegistryError
}

func (r *rank) openRelay(o rankOptions) error {
	g := r.geometry(uint64(r.env.SlotSize))
	opts := relay.Options{
		Geometry: g, Arena: r.arena, Depth: r.env.Depth, SliceSize: uint32(o.env.RDMA.SliceSize),
		Credit: r.env.CreditTimeout, Tally: r.host.tally, Logger: r.log, Wake: r.host.loop.Wake, DeathCloses: o.deathOK,
		FindSender: r.findSender,
		ClearClaim: func(int) error { _, err := r.entry.SweepClaims(); return err },
	}
	for i := range shmabi.Lanes {
		opts.Lanes = append(opts.Lanes, o.hooks.lane(RelayEnd, lane.Map(r.entry.Block(), i)))
	}
	for i, n := range r.nics {
		so := setOptions(o.env, r.host)
		so.NIC = &endpoint.NIC{Name: n.Attr().Name, Rail: r.rails[i], Index: i, Device: n.Device, PD: n.pd}
		so.Path, so.Dialer, so.RelayEpoch, so.Log = relayPath(r.entry.Epoch(), i), o.dialer, r.entry.Epoch(), r.log
		set, err := endpoint.NewSet(so)
		if err != nil {
			return err
		}
		r.sets = append(r.sets, set)
		opts.Rails = append(opts.Rails, relay.Rail{Name: r.rails[i], Set: set, LKey: r.mrs[i].LKey()})
	}
	to := &routes{source: o.dialer, rails: plan.NewRails(o.env.PXN.RailMap, localNICs(devicesOf(r.nics)))}
	opts.FindRoute = to.find
	r.relay = relay.New(opts)
	return nil
}

func (r *rank) openPath(o rankOptions) {
	ring := map[string]pxn.Doorbell{"cpu": pxn.RingCPU, "stream": pxn.RingStream, "kernel": pxn.RingStream}[r.env.Doorbell]
	r.path = pxn.New(pxn.Options{
		NoCut:  o.hooks.noCut(),
		Device: r.gpu, Epoch: r.entry.Epoch(), Find: r.find, Tally: r.host.tally, Logger: r.log, Wake: r.host.loop.Wake,
		BusOf:  func(addr uint64) string { return r.host.gpus.Classify(addr, 1).BusID },
		Credit: r.env.CreditTimeout, Ring: ring, RailPause: o.env.RDMA.RailPause, DeathCloses: o.deathOK,
		Guard: shm.Guard, Lost: r.lose,
		Hopeless: func(t *pxn.Target) bool {
			to := t.Ref.(*target)
			return to.engine.direct.Hopeless(to)
		},
		Direct: func(it pxn.Item, why xfer.Reason) error { return it.Target.Ref.(*target).engine.fallback(it, why) },
		Fence: func(ctx context.Context, t *pxn.Target, epoch uint64) error {
			session := string(t.Session)
			return o.hooks.fence(session, epoch, func() error {
				return r.fenceRelay(ctx, t.Ref.(*target), session, epoch)
			})
		},
	})
}

func (r *rank) geometry(slot uint64) lane.Geometry {
	return lane.Geometry{Slots: shmabi.Slots, SlotSize: slot, MaxSpans: shmabi.MaxSpans}
}

// Step implements [pump.Stepper].
func (r *rank) Step(now time.Duration) bool {
	r.now = now
	if r.lost.Load() && !r.left {
		r.leave()
	}
	busy := r.path.Step(now)
	if r.broken.Load() {
		return busy
	}
	if err := shm.Guard(r.turn); err != nil {
		r.breakBlock(err)
		return true
	}
	return busy || r.busy
}

// breakBlock ends what needs our own block, which is gone: nothing is relayed any
// more, for us or for others.
func (r *rank) breakBlock(err error) {
	r.broken.Store(true)
	r.host.tally.Because(xfer.ShmError, 0, "err", err)
	r.path.Release(r.now, xfer.ShmError)
}

// leave ends what needs the GPU, which is lost.
func (r *rank) leave() {
	r.left = true
	r.path.Release(r.now, xfer.GPUFatal)
	if r.broken.Load() {
		return
	}
	r.relay.Stop()
	r.wg.Go(func() {
		if err := r.entry.Withdraw(); err != nil {
			r.log.Warn("entry not withdrawn", "entry", r.entry.Name(), "err", err)
		}
		r.host.loop.Do(r.relay.Rouse)
	})
}

func (r *rank) step() error {
	if r.now >= r.beatAt {
		r.beatAt = r.now + r.env.Beat()
		if err := r.entry.Beat(r.now); err != nil {
			return err
		}
		if r.beats == nil {
			r.reportStats(r.now)
		}
	}
	r.busy = r.relay.Step(r.now)
	return nil
}

// Arm implements [pump.Stepper].
func (r *rank) Arm(now time.Duration) time.Duration {
	if r.broken.Load() {
		return r.path.Arm(now)
	}
	var limit time.Duration
	if r.beats == nil {
		limit = max(r.beatAt-now, time.Microsecond)
	}
	var lanes time.Duration
	if err := shm.Guard(func() error { lanes = r.relay.Arm(now); return nil }); err != nil {
		return time.Millisecond // the next step finds out
	}
	for _, d := range [...]time.Duration{r.path.Arm(now), lanes} {
		if d > 0 && (limit == 0 || d < limit) {
			limit = d
		}
	}
	return limit
}

// beat beats for a pump that sleeps: one that is awake beats itself, and one that
// hangs does not. A thread that comes back from a futex costs an idle process
// thirty times what a goroutine does that comes back from a timer, since Go then
// looks for 10 ms whether the thread goes on.
func (r *rank) beat(ctx context.Context) {
	loop := r.host.loop
	t := time.NewTicker(r.env.Beat())
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		loop.Recall()
		if loop.Asleep() {
			if err := r.entry.Beat(loop.Now()); err != nil {
				r.log.Debug("no beat", "entry", r.entry.Name(), "err", err)
			}
		}
		r.reportStats(loop.Now())
	}
}

// off says why nothing is relayed at all at present, if so.
func (r *rank) off() xfer.Reason {
	switch {
	case r.lost.Load():
		return xfer.GPUFatal
	case r.broken.Load():
		return xfer.ShmError
	case r.entry.Off():
		return xfer.PXNSwitched
	}
	return xfer.NoReason
}

// newFence returns a fence recorded on a stream of the caller's. It runs on the
// caller's thread.
func (r *rank) newFence(stream uint64) (*pxn.Fence, error) {
	r.fenceMu.Lock()
	var f *pxn.Fence
	if n := len(r.fences); n > 0 {
		f = r.fences[n-1]
		r.fences = r.fences[:n-1]
	}
	r.fenceMu.Unlock()
	if f == nil {
		e, err := r.gpu.NewEvent()
		if err != nil {
			return nil, err
		}
		f = pxn.NewFence(e, r.freeFence)
	}
	f.Recorded = false
	if err := r.gpu.RecordCaller(stream, f.Event); err != nil {
		r.freeFence(f)
		return nil, err
	}
	f.Recorded = true
	return f, nil
}

func (r *rank) freeFence(f *pxn.Fence) {
	r.fenceMu.Lock()
	defer r.fenceMu.Unlock()
	if r.fenceless {
		f.Event.Close()
		return
	}
	r.fences = append(r.fences, f)
}

// lose switches PXN off for the process: the GPU is lost.
func (r *rank) lose(err error) {
	if !r.lost.Swap(true) {
		r.host.tally.Because(xfer.GPUFatal, 0, "gpu", r.bus, "err", err, "pxn", "off for this process")
		r.host.loop.Wake()
	}
}

// close gives all lanes back and leaves the group. The arena is freed only if no
// sender can still write to it.
func (r *rank) close(wait time.Duration) error {
	loop := r.host.loop
	loop.Do(func() {
		r.path.Release(loop.Now(), xfer.PXNOff)
		r.relay.Stop()
	})
	err := r.entry.Withdraw()
	idle := false
	for end := time.Now().Add(wait); !idle && time.Now().Before(end); {
		loop.Do(func() { idle = r.path.Idle() && r.relay.Idle() && !r.held() })
		if !idle {
			loop.Do(r.relay.Rouse) // again and again: who has just looked does not look again
			time.Sleep(2 * time.Millisecond)
		}
	}
	if !idle {
		r.log.Warn("arena leaked: lanes are still held", "entry", r.entry.Name(), "bytes", lanesArena*r.env.SlotSize)
		r.arena = 0
	}
	err = errors.Join(err, loop.Remove(r), loop.SetWord(nil))
	return errors.Join(err, r.free())
}

// held reports whether a lane of ours is taken. Nobody holds one of a block that is
// gone.
func (r *rank) held() (held bool) {
	if shm.Guard(func() error { held = r.relay.Held(); return nil }) != nil {
		return false
	}
	return held
}

// free undoes newRank, as far as it got. The pump no longer steps the rank.
func (r *rank) free() error {
	var err error
	r.report.close()
	if r.beats != nil {
		r.beats()
	}
	r.wg.Wait()
	if r.detach != nil {
		var detach error
		stopped := r.host.loop.Do(func() { detach = r.detach() })
		err = errors.Join(detach, stopped)
	}
	if r.path != nil {
		err = errors.Join(err, r.path.Close())
	}
	if r.relay != nil {
		r.relay.Close()
	}
	for _, s := range r.sets {
		err = errors.Join(err, s.Close())
	}
	if r.watcher != nil {
		err = errors.Join(err, r.watcher.Close())
	}
	if r.entry != nil {
		err = errors.Join(err, r.entry.Close())
	}
	if r.registry != nil {
		err = errors.Join(err, r.registry.Close())
	}
	for _, mr := range r.mrs {
		err = errors.Join(err, mr.Close())
	}
	if r.arena != 0 {
		if free := r.gpu.Free(r.arena); !errors.Is(free, gpu.ErrFatal) {
			err = errors.Join(err, free)
		}
	}
	r.fenceMu.Lock()
	r.fenceless = true
	for _, f := range r.fences {
		err = errors.Join(err, f.Event.Close())
	}
	r.fences = nil
	r.fenceMu.Unlock()
	if r.gpu != nil {
		err = errors.Join(err, r.gpu.Close())
	}
	return errors.Join(err, r.host.release(r.nics))
}
