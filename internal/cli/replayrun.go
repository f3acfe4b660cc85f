package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/railhop/railhop/internal/fabric"
	"github.com/railhop/railhop/internal/report"
	"github.com/railhop/railhop/internal/worker"
	"github.com/railhop/railhop/internal/workload"
)

// replay is a run: it starts the ranks, lets the prefill ranks send, has the
// decode ranks check what has arrived, and allows what overwrites it only then.
type replay struct {
	app    *app
	opts   replayOptions
	trace  replayTrace
	work   workload.Options
	plan   *workload.Plan
	fabric *fabric.Fabric
	layers int // of the whole model

	prefill, decode []*fabric.Rank
	pools           []uint64 // addresses of the decode ranks' pools
	started         time.Time
	elapsed         time.Duration
	checks          []chan worker.ReplayLanded // by flow
	bar             bar

	mu       sync.Mutex
	open     []int // flows that have not finished a chunk, by chunk
	received int   // chunks up to here are received and checked
	allow    []chan struct{}
	requests map[int]*requestTimes
	verify   report.Verify
	wrong    []error

	samples []sample
	stats   []worker.Stats // of the prefill ranks, in the end
	arrived uint64         // bytes, as the decode ranks' NICs have counted
	idle    idleUse
}

// requestTimes is when a request was sent and received, from the start of the
// trace.
type requestTimes struct {
	at, sent, landed time.Duration
	flows            int // that have received all of it
}

// traceStart is how long after the ranks were told the trace begins.
const traceStart = 50 * time.Millisecond

func newReplay(a *app, o replayOptions, t replayTrace, w workload.Options, plan *workload.Plan, f *fabric.Fabric, layers int) *replay {
	r := &replay{
		app: a, opts: o, trace: t, work: w, plan: plan, fabric: f, layers: layers,
		open: make([]int, plan.Chunks()), received: -1, requests: make(map[int]*requestTimes),
	}
	for i := range r.open {
		r.open[i] = len(plan.Flows())
	}
	for range plan.Flows() {
		r.checks = append(r.checks, make(chan worker.ReplayLanded, 256))
	}
	for i := range plan.Flows() {
		r.verify.Of += plan.FlowBytes(i)
	}
	for range o.prefill {
		r.allow = append(r.allow, make(chan struct{}, 1))
	}
	return r
}

func (r *replay) run(ctx context.Context) error {
	r.introduce()
	if err := r.start(ctx); err != nil {
		return err
	}
	r.bar = r.app.newBar("replaying", r.verify.Of)
	err := r.play(ctx)
	r.bar.done()
	if err != nil {
		return err
	}
	if err := r.collect(ctx); err != nil {
		return err
	}
	if r.opts.idle > 0 {
		r.idle, err = watchIdle(ctx, append(append([]*fabric.Rank(nil), r.prefill...), r.decode...), r.opts.idle)
	}
	return err
}

// introduce says what is going to be done.
func (r *replay) introduce() {
	if r.app.json {
		return
	}
	w := r.app.out
	fmt.Fprintf(w, "Replaying %s: %s.\n", r.trace.name, r.what())
	fmt.Fprintln(w, r.plan.Scale())
	if n := r.trace.summary.Skipped; n > 0 {
		fmt.Fprintf(w, "%s left out: they do not parse.\n", plural(n, "line"))
	}
	if r.opts.relay {
		fmt.Fprintf(w, "Slots are small here: MC_PXN_SLOT_SIZE=%s, so that the arena that each rank lends has %s instead of 1008MiB.\n",
			formatSize(r.opts.slot), formatSize(126*r.opts.slot))
		fmt.Fprintln(w, "A relay is given 10 s in place of 1 s before a piece goes another way (MC_PXN_CREDIT_TIMEOUT_MS): all share these cores.")
	}
	if reqs := r.work.Requests; r.opts.speed > 0 && r.plan.Requests() > 0 {
		span := time.Duration(float64(reqs[r.plan.Requests()-1].At()-reqs[0].At()) / r.opts.speed)
		fmt.Fprintf(w, "The trace goes on for %v at this speed; --speed 0 replays as fast as it goes.\n", span.Round(time.Second))
	}
	fmt.Fprintln(w)
}

func (r *replay) what() string {
	return fmt.Sprintf("%s of %s from %s to %s, rails %s", plural(r.plan.Requests(), "request"), r.work.Model.Name,
		plural(r.opts.prefill, "prefill rank"), plural(r.opts.decode, "decode rank"), r.work.Mapping)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%s %ss", group(uint64(n)), noun)
}

// start starts the ranks. Each works the plan out for itself.
func (r *replay) start(ctx context.Context) error {
	var members []fabric.Member
	for i := range r.opts.prefill {
		members = append(members, fabric.Member{Name: fmt.Sprintf("prefill %d", i), Node: 1, Rails: []int{i}, PXN: r.opts.relay})
	}
	rails := make([]int, r.opts.decode)
	for _, f := range r.plan.Flows() {
		rails[f.To] = f.ToRail
	}
	for j, rail := range rails {
		members = append(members, fabric.Member{Name: fmt.Sprintf("decode %d", j), Node: 2, Rails: []int{rail}})
	}
	ranks, err := r.fabric.StartAll(ctx, members...)
	if err != nil {
		return err
	}
	r.prefill, r.decode = ranks[:r.opts.prefill], ranks[r.opts.prefill:]
	r.pools = make([]uint64, r.opts.decode)
	errs := make([]error, len(ranks))
	fabric.Each(len(ranks), func(i int) {
		content, bytes := worker.FillArgs{Memory: worker.ReplayMemory, Seed: r.plan.ContentSeed(i)}, r.plan.PrefillBytes()
		j := i - r.opts.prefill
		if j >= 0 {
			content, bytes = worker.FillArgs{Memory: worker.ReplayMemory, Poison: true, Value: demoPoison}, r.plan.DecodeBytes()
		}
		var addr uint64
		if addr, errs[i] = r.prepare(ctx, ranks[i], bytes, content); j >= 0 {
			r.pools[j] = addr
		}
	})
	return errors.Join(errs...)
}

// prepare gives a rank its pools, and returns where they are.
func (r *replay) prepare(ctx context.Context, rank *fabric.Rank, bytes uint64, content worker.FillArgs) (uint64, error) {
	made, err := rank.ReplayLoad(ctx, r.work)
	if err != nil {
		return 0, err
	}
	if made.PrefillBytes != r.plan.PrefillBytes() || made.DecodeBytes != r.plan.DecodeBytes() || made.Chunks != r.plan.Chunks() {
		return 0, fmt.Errorf("%s has made another plan: %+v", rank.Name, made)
	}
	addr, err := rank.Alloc(ctx, worker.AllocArgs{Memory: worker.ReplayMemory, Bytes: bytes})
	if err != nil {
		return 0, err
	}
	if err := rank.Register(ctx, worker.RegisterArgs{Engine: fabric.Engine, Memory: worker.ReplayMemory}); err != nil {
		return 0, err
	}
	return addr, rank.Fill(ctx, content)
}

// play sends everything, until all is received and checked.
func (r *replay) play(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	links, err := r.connect(ctx)
	if err != nil {
		return err
	}
	now, err := r.prefill[0].Usage(ctx)
	if err != nil {
		return err
	}
	start := now.Now + int64(traceStart)
	r.started = time.Now().Add(traceStart)

	var senders, checkers, others sync.WaitGroup
	done := make(chan struct{})
	others.Go(func() { r.watch(ctx, done) })
	for i := range r.prefill {
		others.Go(func() { r.allowing(ctx, cancel, i) })
	}
	for flow := range r.checks {
		checkers.Go(func() { r.check(ctx, cancel, flow) })
	}
	for i, rank := range r.prefill {
		senders.Go(func() {
			_, err := rank.ReplaySend(ctx, worker.ReplaySendArgs{
				Engine: fabric.Engine, Rank: i, Segments: links[i], Addrs: r.pools, Start: start, Requests: r.opts.batch, Window: r.opts.window,
			}, func(l worker.ReplayLanded) {
				select {
				case r.checks[l.Flow] <- l:
				case <-ctx.Done():
				}
			})
			if err != nil {
				cancel(err)
			}
		})
	}
	senders.Wait()
	r.elapsed = time.Since(r.started)
	for _, c := range r.checks {
		close(c)
	}
	checkers.Wait()
	for _, c := range r.allow {
		close(c)
	}
	close(done)
	others.Wait()
	return context.Cause(ctx)
}

// connect opens the decode ranks' segments in all prefill ranks.
func (r *replay) connect(ctx context.Context) ([][]uint64, error) {
	links, errs := make([][]uint64, len(r.prefill)), make([]error, len(r.prefill))
	fabric.Each(len(r.prefill), func(i int) {
		for _, d := range r.decode {
			id, err := r.prefill[i].Proc.Segment(ctx, fabric.Engine, d.Segment)
			if err != nil {
				errs[i] = err
				return
			}
			links[i] = append(links[i], id)
		}
	})
	return links, errors.Join(errs...)
}

// check has the receiver of a flow check each batch that has landed.
func (r *replay) check(ctx context.Context, cancel context.CancelCauseFunc, flow int) {
	f := r.plan.Flows()[flow]
	every := max(1, int(math.Round(1/r.opts.verify)))
	for l := range r.checks[flow] {
		if ctx.Err() != nil {
			continue
		}
		v, err := r.decode[f.To].ReplayCheck(ctx, worker.ReplayCheckArgs{Flow: flow, Every: every})
		if err != nil {
			cancel(err)
			continue
		}
		r.note(l, v, f)
	}
}

// note takes the outcome of a batch down.
func (r *replay) note(l worker.ReplayLanded, v worker.Verified, f workload.Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.verify.Checked += v.Bytes
	r.verify.Mismatched += v.Mismatched
	if v.Mismatched > 0 && len(r.wrong) < 10 {
		r.wrong = append(r.wrong, fmt.Errorf("request %d, prefill %d to decode %d: %d of %d bytes differ, the first at offset %d", l.Request, f.From, f.To, v.Mismatched, v.Bytes, v.First))
	}
	t := r.requests[l.Request]
	if t == nil {
		t = &requestTimes{at: time.Duration(l.At), sent: time.Duration(l.Sent)}
		r.requests[l.Request] = t
	}
	t.sent, t.landed = min(t.sent, time.Duration(l.Sent)), max(t.landed, time.Duration(l.Landed))
	if !l.Final {
		return
	}
	if l.Ends {
		t.flows++
	}
	r.open[l.Chunk]--
	was := r.received
	for r.received+1 < len(r.open) && r.open[r.received+1] == 0 {
		r.received++
	}
	if r.received == was {
		return
	}
	for _, c := range r.allow {
		select {
		case c <- struct{}{}:
		default: // it has not looked yet
		}
	}
}

// allowing tells a prefill rank how far it may overwrite.
func (r *replay) allowing(ctx context.Context, cancel context.CancelCauseFunc, rank int) {
	for range r.allow[rank] {
		r.mu.Lock()
		chunk := r.received
		r.mu.Unlock()
		if ctx.Err() != nil {
			continue
		}
		if err := r.prefill[rank].ReplayAllow(ctx, chunk); err != nil {
			cancel(err)
		}
	}
}

// collect asks for the final counters of both sides.
func (r *replay) collect(ctx context.Context) error {
	var err error
	if r.stats, err = r.allStats(ctx); err != nil {
		return err
	}
	r.end(r.stats)
	for _, d := range r.decode {
		counters, err := d.Counters(ctx)
		if err != nil {
			return err
		}
		for _, c := range counters {
			r.arrived += c.WroteHere
		}
	}
	return nil
}

// verdict is what is wrong with the outcome, if anything.
func (r *replay) verdict() error {
	errs := r.wrong
	if r.arrived != r.verify.Of {
		errs = append(errs, fmt.Errorf("the decode ranks have counted %d bytes: want %d", r.arrived, r.verify.Of))
	}
	if r.received+1 < r.plan.Chunks() {
		errs = append(errs, fmt.Errorf("%d of %d chunks were received", r.received+1, r.plan.Chunks()))
	}
	var failed uint64
	for _, s := range r.stats {
		failed += s.Failed.Ops
	}
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%d writes failed", failed))
	}
	return errors.Join(errs...)
}
