package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/railhop/railhop/internal/fabric"
	"github.com/railhop/railhop/internal/worker"
)

// demoOptions are the flags of demo.
type demoOptions struct {
	soft  soft
	rates rates
	bytes uint64
	slot  uint64
	block uint64
	idle  float64 // seconds
	pairs int
	seed  uint64
}

func newDemoCmd(a *app) *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo --soft",
		Short: "Play a small rail fabric on this machine and show what the relay is good for",
		Long: `Play a small rail fabric on this machine, with real processes: two ranks on node A,
each with a GPU and a NIC on a rail of its own, and a target on node B with a NIC on
both rails. Rank 0 writes to the target in three ways:

  1. direct, same rail     from its own NIC to a buffer on its own rail
  2. direct, cross rail    from its own NIC to a buffer on rank 1's rail, relay off
  3. relayed               to the same buffer: rank 0 copies to rank 1's GPU, and
                           rank 1 sends from its NIC, on the target's own rail

Before each the target poisons its memory; afterwards it compares every byte with
what should be there. Bytes are counted at the target, by the NIC they came from. The
demo fails if one byte differs, if the relay was not used for all of 3, or if
anything fell back to another way.

NICs are capped at --link-rate, and at --cross-rate across rails, by the software NIC.
With --uncapped the demo shows the software's own speed instead: pairs of direct and
relayed streams in turn, and a plain TCP stream to compare with.`,
		Example: `  railhop demo --soft
  railhop demo --soft --bytes 2GiB --link-rate 800MB --cross-rate 200MB
  railhop demo --soft --uncapped
  railhop demo --soft --json | jq .paths`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.demo(cmd, o) },
	}
	o.soft.flag(cmd)
	o.rates.flags(cmd, 400e6, 100e6)
	slotFlag(cmd, &o.slot)
	o.bytes, o.block = 512<<20, 1<<20
	cmd.Flags().Var(size{&o.bytes, 1 << 20, 1 << 40}, "bytes", "bytes to write in each way, a multiple of 1MiB")
	cmd.Flags().Var(size{&o.block, 4 << 10, 64 << 20}, "block-size", "bytes of a request")
	cmd.Flags().Float64Var(&o.idle, "idle-seconds", 5, "how long to watch the CPU time of the idle processes, 0 to 600 seconds; 0 leaves it out")
	cmd.Flags().IntVar(&o.pairs, "pairs", 5, "pairs of direct and relayed streams with --uncapped, 1 to 100")
	cmd.Flags().Uint64Var(&o.seed, "seed", 1, "of the bytes that are written")
	return cmd
}

func (o *demoOptions) check(cmd *cobra.Command) error {
	switch {
	case o.bytes%(1<<20) != 0:
		return usagef("demo: --bytes %s: want a multiple of 1MiB", formatSize(o.bytes))
	case !(o.idle >= 0 && o.idle <= 600):
		return usagef("demo: --idle-seconds %v: want 0 to 600", o.idle)
	case o.pairs < 1 || o.pairs > 100:
		return usagef("demo: --pairs %d: want 1 to 100", o.pairs)
	}
	return errors.Join(checkSlot(cmd, o.slot), o.rates.check(cmd))
}

// demoPath is what went one way.
type demoPath struct {
	Bytes uint64  `json:"bytes"` // at the target
	GBps  float64 `json:"gbytes_per_s"`

	title string
	nic   string // that it has to come from
}

// demoResult is what demo --json prints. Scripts rely on its names.
type demoResult struct {
	VerifiedBytes   uint64               `json:"verified_bytes"`
	MismatchedBytes uint64               `json:"mismatched_bytes"`
	IdleCPU         float64              `json:"idle_cpu_percent"` // of a core, the busiest process
	IdleByProcess   map[string]float64   `json:"idle_cpu_percent_by_process,omitempty"`
	ParksPerSecond  float64              `json:"pump_parks_per_s"` // of the busiest process
	Fallbacks       map[string]uint64    `json:"fallbacks"`
	Paths           map[string]*demoPath `json:"paths"`
	Uncapped        *demoUncapped        `json:"uncapped,omitempty"`
	SlotSize        uint64               `json:"slot_size"`
}

const (
	sameRail  = "direct_same_rail"
	crossRail = "direct_cross_rail"
	relayed   = "relayed"
)

// ways is the order in which the ways are shown.
var ways = [...]string{sameRail, crossRail, relayed}

func (a *app) demo(cmd *cobra.Command, o demoOptions) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	if err := o.soft.want(cmd); err != nil {
		return err
	}
	f, err := a.newFabric("railhop-demo", o.rates, o.slot)
	if err != nil {
		return err
	}
	d := &demo{app: a, opts: o, fabric: f, result: demoResult{
		SlotSize: o.slot, Fallbacks: make(map[string]uint64), Paths: make(map[string]*demoPath),
	}}
	err = d.run(cmd.Context())
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if a.json {
		enc := json.NewEncoder(a.out)
		enc.SetIndent("", "  ")
		err = enc.Encode(&d.result)
	} else {
		err = d.table()
	}
	if err != nil {
		return fmt.Errorf("demo: print: %w", err)
	}
	if err := d.verdict(); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

// demo is a run.
type demo struct {
	app    *app
	opts   demoOptions
	fabric *fabric.Fabric
	result demoResult
	wrong  []error // what the run has shown that should not be

	rank0, rank1, target *fabric.Rank
	buffers              [2]uint64 // their addresses in the target, by rail
	window               uint64    // bytes of a buffer
	plain                uint64    // the target's segment, in rank 0's engine without PXN
	pxn                  uint64    // and in the one with it
}

const (
	plainEngine = "plain" // rank 0's second engine, without PXN
	demoSource  = "source"
	demoPoison  = 0xdb
	// demoWindow bounds the buffers; more bytes than that go in several laps.
	demoWindow = 512 << 20
)

func demoBuffer(rail int) string { return "buffer " + fabric.Rail(rail) }

func (d *demo) run(ctx context.Context) error {
	d.draw()
	if err := d.start(ctx); err != nil {
		return err
	}
	if d.opts.rates.uncapped {
		if err := d.pairs(ctx); err != nil {
			return err
		}
	}
	phases := []demoPhase{
		{way: sameRail, engine: fabric.Engine, segment: d.pxn, rail: 0, from: d.rank0, title: "1. direct, same rail"},
		{way: crossRail, engine: plainEngine, segment: d.plain, rail: 1, from: d.rank0, title: "2. direct, cross rail"},
		{way: relayed, engine: fabric.Engine, segment: d.pxn, rail: 1, from: d.rank1, title: "3. relayed"},
	}
	for _, p := range phases {
		if err := d.phase(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p.title, err)
		}
	}
	if err := d.watchIdle(ctx); err != nil {
		return err
	}
	return d.collect(ctx)
}

// start starts the processes and connects what is to be connected.
func (d *demo) start(ctx context.Context) error {
	ranks, err := d.fabric.StartAll(ctx,
		fabric.Member{Name: "rank 0", Node: 1, Rails: []int{0}, PXN: true},
		fabric.Member{Name: "rank 1", Node: 1, Rails: []int{1}, PXN: true},
		fabric.Member{Name: "target", Node: 2, Rails: []int{0, 1}},
	)
	if err != nil {
		return err
	}
	d.rank0, d.rank1, d.target = ranks[0], ranks[1], ranks[2]
	d.window = min(d.opts.bytes, demoWindow)
	var send, receive error
	fabric.Each(2, func(i int) {
		if i == 0 {
			send = d.prepareSender(ctx)
		} else {
			receive = d.prepareTarget(ctx)
		}
	})
	if err := errors.Join(send, receive); err != nil {
		return err
	}
	if d.pxn, err = d.rank0.Proc.Segment(ctx, fabric.Engine, d.target.Segment); err != nil {
		return err
	}
	d.plain, err = d.rank0.Proc.Segment(ctx, plainEngine, d.target.Segment)
	return err
}

func (d *demo) prepareSender(ctx context.Context) error {
	r := d.rank0
	off := r.Member
	off.PXN = false
	if _, err := r.Open(ctx, worker.OpenArgs{Engine: plainEngine, Host: fabric.Host(1), Env: d.fabric.Env(off)}); err != nil {
		return err
	}
	if _, err := r.Alloc(ctx, worker.AllocArgs{Memory: demoSource, Bytes: d.window}); err != nil {
		return err
	}
	for _, e := range []string{fabric.Engine, plainEngine} {
		if err := r.Register(ctx, worker.RegisterArgs{Engine: e, Memory: demoSource}); err != nil {
			return err
		}
	}
	return r.Fill(ctx, worker.FillArgs{Memory: demoSource, Seed: d.opts.seed})
}

// prepareTarget gives the target a buffer near each of its NICs.
func (d *demo) prepareTarget(ctx context.Context) error {
	for rail := range d.buffers {
		addr, err := d.target.Alloc(ctx, worker.AllocArgs{Memory: demoBuffer(rail), GPU: rail, Bytes: d.window})
		if err != nil {
			return err
		}
		d.buffers[rail] = addr
		if err := d.target.Register(ctx, worker.RegisterArgs{Engine: fabric.Engine, Memory: demoBuffer(rail)}); err != nil {
			return err
		}
	}
	return nil
}

// demoPhase is one way of writing.
type demoPhase struct {
	way, title, engine string
	segment            uint64
	rail               int          // of the buffer
	from               *fabric.Rank // whose NIC the bytes have to come from
}

// phase writes all bytes one way, lap by lap: the target poisons its buffer,
// rank 0 writes, the target compares.
func (d *demo) phase(ctx context.Context, p demoPhase) error {
	buffer := demoBuffer(p.rail)
	path := &demoPath{title: p.title, nic: p.from.Name + "'s " + fabric.NIC(p.from.Rails[0])}
	d.result.Paths[p.way] = path
	bar := d.app.newBar(p.title, d.opts.bytes)
	defer bar.done()
	before, err := d.arrived(ctx)
	if err != nil {
		return err
	}
	var spent time.Duration
	var differ uint64
	first := int64(-1)
	for left := d.opts.bytes; left > 0; {
		lap := min(left, d.window)
		if err := d.target.Poison(ctx, buffer, demoPoison); err != nil {
			return err
		}
		s, err := d.stream(ctx, p, lap, func(done uint64) { bar.set(d.opts.bytes - left + done) })
		if err != nil {
			return err
		}
		spent += time.Duration(s.Nanoseconds)
		v, err := d.target.Verify(ctx, worker.FillArgs{Memory: buffer, Length: lap, Seed: d.opts.seed})
		if err != nil {
			return err
		}
		d.result.VerifiedBytes += v.Bytes - v.Mismatched
		d.result.MismatchedBytes += v.Mismatched
		if differ += v.Mismatched; v.Mismatched > 0 {
			first = v.First
		}
		left -= lap
	}
	after, err := d.arrived(ctx)
	if err != nil {
		return err
	}
	for s, n := range before {
		after[s] -= n
	}
	from := source{fabric.Addr(p.from.Node, p.from.Rails[0]), fabric.NIC(p.from.Rails[0])}
	path.Bytes = after[from]
	path.GBps = float64(d.opts.bytes) / spent.Seconds() / 1e9
	d.judge(p.title, from, after, d.opts.bytes, differ, first)
	return nil
}

// judge notes what should not be: bytes that differ, and bytes that did not come
// from the NIC that they should have come from.
func (d *demo) judge(title string, from source, came map[source]uint64, bytes, differ uint64, first int64) {
	if differ > 0 {
		d.wrong = append(d.wrong, fmt.Errorf("%s: %d of %d bytes differ, the first at offset %d", title, differ, bytes, first))
	}
	for s, n := range came {
		if n > 0 && s != from {
			d.wrong = append(d.wrong, fmt.Errorf("%s: %d bytes came from %s at %s: want all from %s at %s", title, n, s.nic, s.addr, from.nic, from.addr))
		}
	}
	if n := came[from]; n != bytes {
		d.wrong = append(d.wrong, fmt.Errorf("%s: the target has counted %d bytes from %s at %s: want %d", title, n, from.nic, from.addr, bytes))
	}
}

func (d *demo) stream(ctx context.Context, p demoPhase, bytes uint64, progress func(done uint64)) (worker.Streamed, error) {
	return d.rank0.Stream(ctx, worker.StreamArgs{
		Engine: p.engine, Segment: p.segment, Memory: demoSource, Addr: d.buffers[p.rail], Length: d.window, Total: bytes,
		Block: d.opts.block, Batch: 8, Window: 4,
	}, func(s worker.Streamed) {
		if progress != nil {
			progress(s.Bytes)
		}
	})
}

// source is a NIC of a node.
type source struct{ addr, nic string }

// arrived is what has been written at the target, by the NIC that it came from.
func (d *demo) arrived(ctx context.Context) (map[source]uint64, error) {
	counters, err := d.target.Counters(ctx)
	if err != nil {
		return nil, err
	}
	bytes := make(map[source]uint64)
	for _, c := range counters {
		bytes[source{c.PeerAddr, c.Peer}] += c.WroteHere
	}
	return bytes, nil
}

// collect asks for what fell back, on both sides of the relay.
func (d *demo) collect(ctx context.Context) error {
	for _, r := range []*fabric.Rank{d.rank0, d.rank1, d.target} {
		s, err := r.Stats(ctx, fabric.Engine)
		if err != nil {
			return err
		}
		for reason, f := range s.Fallbacks {
			d.result.Fallbacks[reason] += f.Ops
		}
	}
	return nil
}

// verdict is what is wrong with the outcome, if anything.
func (d *demo) verdict() error {
	for reason, n := range d.result.Fallbacks {
		d.wrong = append(d.wrong, fmt.Errorf("fell back %d times: %s", n, reason))
	}
	return errors.Join(d.wrong...)
}
