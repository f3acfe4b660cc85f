package railhop

import (
	"errors"
	"fmt"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/ledger"
	"github.com/railhop/railhop/internal/path/pxn"
	"github.com/railhop/railhop/internal/path/rdma"
	"github.com/railhop/railhop/internal/plan"
	"github.com/railhop/railhop/internal/xfer"
)

// submission is tasks on their way to the pump.
type submission struct {
	tasks []ledger.Task
	fence *pxn.Fence
	// wait: the direct way waits for the fence too, since the caller named a stream.
	wait bool
	why  xfer.Reason // why nothing of it can be relayed
}

// fenced is a share that goes direct once its source is ready.
type fenced struct {
	work  rdma.Work
	owner *ledger.Task
	fence *pxn.Fence
}

// submit leaves requests for the pump, which is still to be woken. stream is a stream of
// the caller's, if given.
func (e *Engine) submit(b *ledger.Batch, reqs []Request, stream uint64, given bool) error {
	for i := range reqs {
		if err := e.check(&reqs[i]); err != nil {
			return fmt.Errorf("request %d of %d: %w", i, len(reqs), err)
		}
	}
	s := submission{wait: given}
	if err := e.fenceSource(&s, stream, given); err != nil {
		return err
	}
	if err := e.handIn(b, reqs, &s); err != nil {
		if s.fence != nil {
			e.rank.Load().freeFence(s.fence)
		}
		return err
	}
	return nil
}

// handIn leaves a submission for the pump.
func (e *Engine) handIn(b *ledger.Batch, reqs []Request, s *submission) error {
	e.intakeMu.Lock()
	defer e.intakeMu.Unlock()
	if e.closed {
		return ErrClosed
	}
	tasks, err := b.Add(reqs)
	if err != nil {
		return err
	}
	s.tasks = tasks
	e.intake = append(e.intake, *s)
	e.hasMail.Store(true)
	return nil
}

func (e *Engine) check(r *Request) error {
	switch {
	case r.Op != Read && r.Op != Write:
		return fmt.Errorf("%v: want read or write: %w", r.Op, xfer.ErrInvalidArgument)
	case r.Source+r.Length < r.Source || r.TargetAddr+r.Length < r.TargetAddr:
		return fmt.Errorf("%d bytes at %#x and %#x run over the end of the address space: %w", r.Length, r.Source, r.TargetAddr, xfer.ErrInvalidArgument)
	case e.cache.Get(r.Target) == nil:
		return fmt.Errorf("segment %d is not open: %w", r.Target, xfer.ErrInvalidArgument)
	}
	return nil
}

// fenceSource marks on the caller's thread, before any hand-off, the point from
// which the sources are ready.
func (e *Engine) fenceSource(s *submission, stream uint64, given bool) error {
	r := e.rank.Load()
	if r == nil {
		if !given {
			return nil
		}
		return e.host.syncCaller(stream)
	}
	f, err := r.newFence(stream)
	switch {
	case err == nil:
		f.Wait = given
		s.fence = f
		return nil
	case errors.Is(err, gpu.ErrCapturing):
		s.why = xfer.Capturing
	case errors.Is(err, gpu.ErrFatal):
		s.why = xfer.GPUFatal
		r.lose(err)
	default:
		s.why = xfer.FenceError
	}
	if s.why == xfer.FenceError && r.gpu.SyncCaller(stream) == nil {
		return nil // waited for instead
	}
	if !given {
		return nil // the contract says that the bytes are there
	}
	e.host.tally.Because(s.why, 0, "err", err)
	return fmt.Errorf("railhop: order the transfer behind the stream: %w", err)
}

// Step implements [pump.Stepper].
func (e *Engine) Step(now time.Duration) (busy bool) {
	busy = e.drainIntake()
	if len(e.fenced) > 0 && e.stepFenced() {
		busy = true
	}
	if e.tcp != nil {
		return e.tcp.Step(now) || busy
	}
	return e.direct.Step(now) || busy
}

// Arm implements [pump.Stepper].
func (e *Engine) Arm(now time.Duration) time.Duration {
	if e.tcp != nil {
		return e.tcp.Arm(now)
	}
	limit := e.direct.Arm(now)
	if len(e.fenced) > 0 && (limit == 0 || limit > time.Millisecond) {
		limit = time.Millisecond
	}
	return limit
}

func (e *Engine) drainIntake() bool {
	if !e.hasMail.Load() {
		return false
	}
	e.intakeMu.Lock()
	e.intake, e.taken = e.taken[:0], e.intake
	e.hasMail.Store(false)
	e.intakeMu.Unlock()
	now := e.host.loop.Now()
	for i := range e.taken {
		s := &e.taken[i]
		s.fence.Hold()
		if len(s.tasks) > 0 {
			e.active[s.tasks[0].Batch()] = struct{}{}
		}
		for j := range s.tasks {
			e.route(now, &s.tasks[j], s)
		}
		s.fence.Drop()
	}
	clear(e.taken)
	e.prune()
	return true
}

// prune forgets batches that are closed, once there are many.
func (e *Engine) prune() {
	if len(e.active) < 1024 {
		return
	}
	for b := range e.active {
		if b.Closed() {
			delete(e.active, b)
		}
	}
}

// route sends a task on its way.
func (e *Engine) route(now time.Duration, t *ledger.Task, s *submission) {
	t.Opened(1)
	e.host.tally.Submitted(t.Req.Length)
	to := e.target(t.Req.Target)
	if e.tcp != nil {
		t.Closed(0, e.goTCP(t, to))
		return
	}
	if s.why == xfer.NoReason && to.outdated(now, t) {
		s.fence.Hold()
		to.waiting = append(to.waiting, waiting{t, s.fence, s.wait})
		return
	}
	e.choose(now, t, to, s)
}

// choose sends a task through a relay, or direct.
func (e *Engine) choose(now time.Duration, t *ledger.Task, to *target, s *submission) {
	why := s.why
	if why == xfer.NoReason {
		why = e.relay(now, t, to, s)
	}
	if why == xfer.NoReason {
		return
	}
	if why != xfer.PXNOff {
		e.because(why, t.Req.Length, to)
	}
	t.Closed(0, e.goDirect(t, to, t.Req, s.fence, s.wait, why))
}

// relay tries to send a task through a relay, or says why it should not be.
func (e *Engine) relay(now time.Duration, t *ledger.Task, to *target, s *submission) xfer.Reason {
	r := e.rank.Load()
	off, own, bus := xfer.Reason(e.off.Load()), e.own, ""
	if r != nil {
		off, own, bus = r.off(), r.rails, r.bus
	} else if off == xfer.PXNOff {
		return off
	}
	d := to.remote.Desc()
	to.relay.Fences = d.FenceVersion >= 1 // a restarted target may be another build
	to.relay.Handshakes = !to.relay.Fences && fencedByHandshake(d.SegmentDesc)
	facts := plan.Task{Op: t.Req.Op, Length: t.Req.Length, Session: len(d.Name), Source: e.sourceOf(bus, &t.Req)}
	var rails [16]string
	if facts.Source == plan.OwnGPU && facts.Op == Write {
		devices, preferred, err := d.Candidates(t.Req.TargetAddr, 1)
		if err == nil {
			names := to.named.of(e.rails, d)
			facts.Preferred = preferred
			facts.Rails = namesOf(rails[:0], names, devices)
		} else if errors.Is(err, xfer.ErrAddressNotFound) {
			return xfer.NoTargetDevice
		}
	}
	rail, why := plan.Choose(facts, own)
	if why != xfer.NoReason {
		return why
	}
	if off != xfer.NoReason {
		return off
	}
	it := &pxn.Item{
		Span:  xfer.Span{Source: t.Req.Source, Dest: t.Req.TargetAddr, Length: t.Req.Length},
		Owner: t, Target: to.relay, Fence: s.fence,
	}
	return r.path.Submit(now, rail, it)
}

// because counts why a task is not relayed.
func (e *Engine) because(why xfer.Reason, bytes uint64, to *target) {
	if e.host.tally.Count(why) > 0 {
		e.host.tally.Because(why, bytes)
		return
	}
	e.host.tally.Because(why, bytes, "target", to.Name())
}

// ended accounts for a task that has failed. If the direct way has not reached the
// target, the error says why no relay served it.
func (e *Engine) ended(t *ledger.Task) {
	e.host.tally.Failed(t.Missing())
	link, ok := errors.AsType[*rdma.LinkError](t.Err())
	if !ok || link.Refused() || t.Why == xfer.NoReason {
		return
	}
	if link.LocalRail != link.PeerRail {
		e.host.tally.Because(xfer.DirectImpossible, t.Req.Length, "err", link, "relay", t.Why)
	}
	t.Explain(fmt.Errorf("%w; no relay served it: %v", t.Err(), t.Why))
}

// namesOf appends the rails of devices, as many as there is room for.
func namesOf(dst, rails []string, devices []uint16) []string {
	for _, d := range devices[:min(len(devices), cap(dst))] {
		dst = append(dst, rails[d])
	}
	return dst
}

// sourceOf says what the driver said of a source when it was registered. bus is our
// GPU, "" for any.
func (e *Engine) sourceOf(bus string, q *Request) plan.Source {
	b, err := e.local.Find(&e.cursor, q.Source, q.Length)
	if err != nil || b.Memory.Kind != gpu.DeviceMemory {
		return plan.NotGPU
	}
	if bus != "" && b.Memory.BusID != bus {
		return plan.OtherGPU
	}
	return plan.OwnGPU
}

// goDirect sends a share of a task the direct way, once its source is ready. In
// strict mode what should have been relayed is an error instead.
func (e *Engine) goDirect(t *ledger.Task, to *target, q Request, f *pxn.Fence, wait bool, why xfer.Reason) error {
	t.Why = why
	if e.cfg.Settings.PXN.Strict && why.Class() == xfer.Degraded {
		return fmt.Errorf("railhop: MC_PXN_STRICT is set and the relay cannot be used: %v: %w", why, xfer.ErrContext)
	}
	if e.gone {
		return ErrClosed
	}
	w := rdma.Work{Op: q.Op, Local: q.Source, Remote: q.TargetAddr, Length: q.Length, Target: to, Owner: t, Retry: t.Mark}
	if wait && f != nil {
		done, err := f.Event.Done()
		if err != nil {
			return sourceLost(err)
		}
		if !done {
			f.Hold()
			t.Opened(1)
			e.fenced = append(e.fenced, fenced{w, t, f})
			return nil
		}
	}
	return e.direct.Submit(&w)
}

// fallback implements the relayed way's Direct.
func (e *Engine) fallback(it pxn.Item, why xfer.Reason) error {
	t, to := it.Owner.(*ledger.Task), it.Target.Ref.(*target)
	q := Request{Op: Write, Source: it.Span.Source, TargetAddr: it.Span.Dest, Length: it.Span.Length}
	err := e.goDirect(t, to, q, it.Fence, it.Fence != nil && it.Fence.Wait, why)
	it.Fence.Drop()
	return err
}

// sourceLost is why a source never becomes ready: nobody knows what it holds.
func sourceLost(err error) error {
	return fmt.Errorf("railhop: the stream that the source waits for has failed: %w", err)
}

// stepFenced sends what has become ready.
func (e *Engine) stepFenced() (busy bool) {
	keep := e.fenced[:0]
	for _, f := range e.fenced {
		done, err := f.fence.Event.Done()
		if !done && err == nil {
			keep = append(keep, f)
			continue
		}
		busy = true
		if err != nil {
			err = sourceLost(err)
		} else {
			err = e.direct.Submit(&f.work)
		}
		f.fence.Drop()
		f.owner.Closed(0, err)
	}
	clear(e.fenced[len(keep):])
	e.fenced = keep
	return busy
}
