package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/railhop/railhop/internal/trace"
	"github.com/railhop/railhop/internal/workload"
)

// replayOptions are the flags of replay.
type replayOptions struct {
	soft     soft
	rates    rates
	slot     uint64
	relay    bool
	requests int
	model    string
	scale    float64
	maxBytes uint64
	pool     uint64
	prefill  int
	decode   int
	mapping  string
	rails    int
	speed    float64
	reuse    bool
	verify   float64
	seed     uint64
	report   string
	idle     float64 // seconds
	batch    int
	window   int
}

func newReplayCmd(a *app) *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay [TRACE] --soft",
		Short: "Replay the KV transfers of a production trace on a played fabric",
		Long: `Replay a trace of LLM serving: each request becomes the writes that carry its KV
cache from the prefill ranks to the decode ranks, page by page, or token by token where
their tensor parallel sizes differ. Every rank is a process of its own, with a GPU and
a NIC on its own rail.

TRACE is a file in Mooncake's JSONL form, one request a line:

  {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, ...]}

Lines that do not parse are told of, counted and left out. Without a file a trace of
the same shape is generated from --seed.

The number of layers is lowered until the run moves at most --max-bytes: sizes and
pattern of the spans stay those of the full model. Decode ranks compare a share of the
spans (--verify) with what should be there before their pages are used again. A table
is printed in the end, and a page with charts written to --report.

Latency is from a request's arrival until its last byte is in place; with --speed 0,
from when its first write is handed to the engine.`,
		Example: `  railhop replay --soft
  railhop replay conversation_trace.jsonl --soft --requests 200 --prefill-tp 4 --decode-tp 2
  railhop replay --soft --relay=false --report direct.html
  railhop replay --soft --model tiny --speed 0 --json | jq .latency_ms`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("replay: %d arguments: want one trace at most, got also %q", len(args), args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.replay(cmd, args, o) },
	}
	o.soft.flag(cmd)
	o.rates.flags(cmd, 400e6, 50e6)
	slotFlag(cmd, &o.slot)
	o.maxBytes, o.pool = workload.DefaultMaxBytes, workload.DefaultPoolBytes
	f := cmd.Flags()
	f.BoolVar(&o.relay, "relay", true, "use the relay; --relay=false shows the run without it")
	f.IntVar(&o.requests, "requests", 200, "requests to replay at most; 0: all of the trace")
	f.StringVar(&o.model, "model", workload.DefaultModel, "one of "+strings.Join(workload.ModelNames(), ", "))
	f.Float64Var(&o.scale, "scale", 1, "share of the model's layers to replay, above 0 and up to 1")
	f.Var(size{&o.maxBytes, 1 << 10, 1 << 50}, "max-bytes", "bytes to move at most")
	f.Var(size{&o.pool, 64 << 10, 1 << 40}, "pool-bytes", "KV pools of a rank at most")
	f.IntVar(&o.prefill, "prefill-tp", 4, "prefill ranks")
	f.IntVar(&o.decode, "decode-tp", 2, "decode ranks")
	f.StringVar(&o.mapping, "mapping", workload.Rotated.String(), "on which rails the decode ranks lie: "+strings.Join(workload.MappingNames(), ", "))
	f.IntVar(&o.rails, "rails", 0, "rails of the fabric; 0: as many as the larger side has ranks")
	f.Float64Var(&o.speed, "speed", 1, "how many times as fast as the trace; 0: as fast as it goes")
	f.BoolVar(&o.reuse, "reuse", false, "leave out blocks that the decode side holds already, by their hash ids")
	f.Float64Var(&o.verify, "verify", 0.1, "share of the spans to compare, above 0 and up to 1")
	f.Uint64Var(&o.seed, "seed", 1, "of the generated trace, of the pages and of their bytes")
	f.StringVar(&o.report, "report", "report.html", `where to write the page with charts; "" leaves it out`)
	f.Float64Var(&o.idle, "idle-seconds", 3, "how long to watch the CPU time of the idle processes, 0 to 600 seconds; 0 leaves it out")
	f.IntVar(&o.batch, "batch-size", 8192, "requests of a batch of the engine, 1 to 65536")
	f.IntVar(&o.window, "in-flight", 4, "batches that a prefill rank has in flight, 1 to 64")
	return cmd
}

func (o *replayOptions) check(cmd *cobra.Command) error {
	switch {
	case o.requests < 0:
		return usagef("replay: --requests %d: want 1 or more, or 0 for all", o.requests)
	case !(o.scale > 0 && o.scale <= 1):
		return usagef("replay: --scale %v: want a share above 0 and up to 1", o.scale)
	case !(o.verify > 0 && o.verify <= 1):
		return usagef("replay: --verify %v: want a share above 0 and up to 1", o.verify)
	case !(o.idle >= 0 && o.idle <= 600):
		return usagef("replay: --idle-seconds %v: want 0 to 600", o.idle)
	case o.batch < 1 || o.batch > 65536:
		return usagef("replay: --batch-size %d: want 1 to 65536", o.batch)
	case o.window < 1 || o.window > 64:
		return usagef("replay: --in-flight %d: want 1 to 64", o.window)
	}
	return errors.Join(checkSlot(cmd, o.slot), o.rates.check(cmd), o.checkReport())
}

// checkReport finds out before the run whether the page can be written.
func (o *replayOptions) checkReport() error {
	if o.report == "" {
		return nil
	}
	if info, err := os.Stat(o.report); err == nil && info.IsDir() {
		return usagef("replay: --report %q is a directory: want a file", o.report)
	}
	dir := filepath.Dir(o.report)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return usagef("replay: --report %q: want a file in a directory that exists", o.report)
	}
	return nil
}

// workload is what is to be replayed. It is not worked out yet.
func (o *replayOptions) workload(requests []trace.Request) (workload.Options, error) {
	w := workload.Options{
		PrefillTP: o.prefill, DecodeTP: o.decode, Rails: o.rails, Requests: requests, Speed: o.speed, Seed: o.seed,
		Reuse: o.reuse, MaxBytes: o.maxBytes, PoolBytes: o.pool,
	}
	var err error
	if w.Model, err = workload.ModelByName(o.model); err != nil {
		return w, err
	}
	w.Mapping, err = workload.ParseMapping(o.mapping)
	return w, err
}

// replayTrace is the requests, and where they are from.
type replayTrace struct {
	name     string
	requests []trace.Request
	summary  trace.Summary
}

// trace reads the trace, or makes one up.
func (a *app) trace(args []string, o *replayOptions) (replayTrace, error) {
	if len(args) == 0 {
		n := o.requests
		if n == 0 {
			n = 200
		}
		return replayTrace{name: fmt.Sprintf("a generated trace of seed %d", o.seed), requests: trace.Generate(o.seed, n)}, nil
	}
	t := replayTrace{name: filepath.Base(args[0])}
	f, err := os.Open(args[0])
	if errors.Is(err, fs.ErrNotExist) {
		return t, usagef("replay: trace %q: no such file", args[0])
	}
	if err != nil {
		return t, usagef("replay: trace: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return t, usagef("replay: trace %q is a directory: want a file", args[0])
	}
	t.requests, t.summary, err = trace.ReadAll(f, o.requests)
	for _, bad := range t.summary.First {
		fmt.Fprintf(a.errOut, "railhop: %s: %s\n", args[0], oneLine(bad))
	}
	if more := t.summary.Skipped - len(t.summary.First); more > 0 {
		fmt.Fprintf(a.errOut, "railhop: %s: and %d more lines that do not parse\n", args[0], more)
	}
	if errors.Is(err, trace.ErrNoRequests) {
		return t, usagef("replay: trace %s: %d of %d lines do not parse: want one JSON request a line; see replay --help", args[0], t.summary.Skipped, t.summary.Lines)
	}
	if err != nil {
		return t, fmt.Errorf("replay: trace %s: %w", args[0], err)
	}
	return t, nil
}

func (a *app) replay(cmd *cobra.Command, args []string, o replayOptions) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	t, err := a.trace(args, &o)
	if err != nil {
		return err
	}
	w, err := o.workload(t.requests)
	if err != nil {
		return usagef("replay: %w", err)
	}
	full := w.Model.Layers
	w.Model.Layers = max(1, int(float64(full)*o.scale))
	plan, err := workload.New(w)
	if err != nil {
		return usagef("replay: %w", err)
	}
	if err := o.soft.want(cmd); err != nil {
		return err
	}
	f, err := a.newFabric("railhop-replay", o.rates, o.slot)
	if err != nil {
		return err
	}
	r := newReplay(a, o, t, w, plan, f, full)
	err = r.run(cmd.Context())
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = r.show(cmd, args)
	}
	if err == nil {
		err = r.verdict()
	}
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}
