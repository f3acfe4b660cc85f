package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/metadata"
	"github.com/railhop/railhop/internal/wire"
)

// benchOptions are the flags of bench.
type benchOptions struct {
	mode, operation, segment       string
	metadata, protocol, backend    string
	host, devices                  string
	block, buffer                  uint64
	batch, threads, gpu, precision int
	duration                       time.Duration
	unit, matrix, metricsAddr      string
	registry                       string
	vram, init, soft, local        bool

	blocks []uint64 // to be measured, one row each
	env    config.Env
	nics   []string
}

const (
	defaultMatrix = "4K,8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M,32M,64M"

	maxBlock   = 1 << 40
	maxBatch   = 1 << 20
	maxThreads = 1 << 10
)

// reportUnits are bytes, or bits for a small b.
var reportUnits = []struct {
	name  string
	bytes float64
}{
	{"GB", 1e9}, {"GiB", 1 << 30}, {"Gb", 1e9 / 8}, {"MB", 1e6}, {"MiB", 1 << 20}, {"Mb", 1e6 / 8},
	{"KB", 1e3}, {"KiB", 1 << 10}, {"Kb", 1e3 / 8},
}

func newBenchCmd(a *app) *cobra.Command {
	o := benchOptions{block: 64 << 10, buffer: 1 << 30, duration: 10 * time.Second}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure throughput and latency between two processes",
		Long: `bench moves blocks from an initiator to a target (write) or back (read), as fast as
it can, and says how fast that was. It takes the flags of transfer_engine_bench; a
hyphen in a flag's name is as good as an underscore.

Start a target, then an initiator with the name that the target prints:

  railhop bench --mode target --local_server_name 10.0.0.2
  railhop bench --mode initiator --local_server_name 10.0.0.1 --segment_id 10.0.0.2:15428 --operation write

or both on one machine, here without hardware, over a list of block sizes:

  railhop bench --mode self --soft --operation write --matrix=64K,1M,16M --duration 1

MC_* and RAILHOP_* variables are read as by any engine: with MC_PXN_ENABLE=1, a
group and --use_vram, writes to another rail go by a relay, and column path says so.
Without a NIC, or with --protocol tcp, all goes by TCP.
Each thread has one batch in flight. Latency is that of a batch, from its submission
until its last block is in place. An operation is a block.

With --json: a list of rows with block_size, batch_size, threads, operation, path,
bytes, seconds, gbytes_per_s (10^9 bytes), ops_per_s and latency_us (p50, p90, p99).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(cmd.Flags()); err != nil {
				return err
			}
			b := &bench{app: a, opts: &o}
			return b.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.mode, "mode", "initiator", "initiator, target, or self: an initiator that starts its own target")
	f.BoolVar(&o.local, "local", false, "short for --mode self")
	f.StringVar(&o.operation, "operation", "read", "read or write")
	f.StringVar(&o.segment, "segment_id", "", "the target's name, as the target prints it")
	f.StringVar(&o.metadata, "metadata_server", metadata.P2PHandshake, "http://…, etcd://… or redis://…, or "+metadata.P2PHandshake+": peers ask each other")
	f.StringVar(&o.protocol, "protocol", "", "rdma or tcp (default: rdma where there is a NIC)")
	f.StringVar(&o.backend, "backend", "classic", "only classic")
	f.StringVar(&o.host, "local_server_name", "", "name or address of this host for its peers (default: the host's name, or 127.0.0.1 with software NICs); with a metadata server, the segment's name as it stands")
	f.StringVar(&o.devices, "device_name", "", "NICs to use, separated by commas (default: all)")
	f.Var(binarySize{size{&o.block, 1, maxBlock}}, "block_size", "bytes of a request; K, M and G are powers of 1024")
	f.IntVar(&o.batch, "batch_size", 128, "requests of a batch")
	f.IntVar(&o.threads, "threads", 12, "threads that submit, each with a batch in flight")
	f.Var((*seconds)(&o.duration), "duration", "how long to measure, in seconds or with a unit")
	f.Var(binarySize{size{&o.buffer, 4096, maxBlock}}, "buffer_size", "bytes of memory at this end")
	f.StringVar(&o.matrix, "matrix", "", "measure several block sizes, one after the other: a list, or 4K to 64M (then --duration is 1 by default, and a batch is as short as it takes for all threads to fit into the buffer)")
	f.Lookup("matrix").NoOptDefVal = defaultMatrix
	f.BoolVar(&o.vram, "use_vram", false, "use memory of a GPU")
	f.IntVar(&o.gpu, "gpu_id", 0, "which GPU")
	f.BoolVar(&o.init, "init_mem", true, "write to the memory before it is used")
	f.StringVar(&o.unit, "report_unit", "GB", "unit of throughput: "+unitNames())
	f.IntVar(&o.precision, "report_precision", 2, "digits after the point")
	f.StringVar(&o.metricsAddr, "metrics_addr", "", "serve counters for Prometheus at this host:port while it runs")
	f.BoolVar(&o.soft, "soft", false, "use software NICs and GPUs; they are never used unless asked for by this or RAILHOP_PROVIDERS=soft")
	registryFlag(cmd, &o.registry)
	known := map[string]bool{}
	f.VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if under := strings.ReplaceAll(name, "-", "_"); known[under] {
			name = under
		}
		return pflag.NormalizedName(name)
	})
	return cmd
}

func unitNames() string {
	var names []string
	for _, u := range reportUnits {
		names = append(names, u.name)
	}
	return strings.Join(names, ", ")
}

// complete checks the flags and fills in what depends on others.
func (o *benchOptions) complete(given *pflag.FlagSet) error {
	if o.local {
		if given.Changed("mode") && o.mode != "self" {
			return usagef("bench: --local and --mode %s: want one of them", o.mode)
		}
		o.mode = "self"
	}
	for _, c := range []struct {
		flag, value string
		valid       []string
	}{
		{"mode", o.mode, []string{"initiator", "target", "self"}},
		{"operation", o.operation, []string{"read", "write"}},
		{"protocol", o.protocol, []string{"rdma", "tcp", ""}},
		{"backend", o.backend, []string{"classic"}},
	} {
		if !slices.Contains(c.valid, c.value) {
			return usagef("bench: --%s %q: want %s", c.flag, c.value, orList(slices.DeleteFunc(c.valid, func(v string) bool { return v == "" })))
		}
	}
	for _, c := range []struct {
		flag            string
		value, min, max int
	}{
		{"batch_size", o.batch, 1, maxBatch},
		{"threads", o.threads, 1, maxThreads},
		{"gpu_id", o.gpu, 0, 1023},
		{"report_precision", o.precision, 0, 9},
	} {
		if c.value < c.min || c.value > c.max {
			return usagef("bench: --%s %d: want %d to %d", c.flag, c.value, c.min, c.max)
		}
	}
	if o.unitBytes() == 0 {
		return usagef("bench: --report_unit %q: want one of %s", o.unit, unitNames())
	}
	if err := o.completeBlocks(given); err != nil {
		return err
	}
	if o.mode == "initiator" {
		if o.segment == "" {
			return usagef("bench: --segment_id is missing: want the target's host:port, as bench --mode target prints it, or --mode self for both ends on this machine")
		}
		if _, _, err := wire.ParseServer(o.segment, 12001); err != nil && !o.served() {
			return usagef("bench: --segment_id: %w", err)
		}
	}
	if o.served() {
		if err := metadata.Check(o.metadata); err != nil {
			return usagef("bench: --metadata_server: %w", err)
		}
		if o.mode == "self" {
			return usagef("bench: --mode self and --metadata_server %s: want one of them", o.metadata)
		}
		if o.host == "" {
			return usagef("bench: --local_server_name is missing: want the name to be known by at %s", o.metadata)
		}
	}
	d, err := config.ReadDeviceArg(o.devices, os.ReadFile)
	if err != nil {
		return usagef("bench: --device_name: %w", err)
	}
	for _, n := range d.For(o.gpu) {
		o.nics = append(o.nics, n.String())
	}
	return nil
}

// served says that descriptors are kept on a metadata server.
func (o *benchOptions) served() bool { return o.metadata != "" && o.metadata != metadata.P2PHandshake }

func (o *benchOptions) completeBlocks(given *pflag.FlagSet) error {
	o.blocks = []uint64{o.block}
	if given.Changed("matrix") {
		if given.Changed("block_size") {
			return usagef("bench: --matrix and --block_size: want one of them")
		}
		o.blocks = nil
		for word := range strings.SplitSeq(o.matrix, ",") {
			var n uint64
			if err := (binarySize{size{&n, 1, maxBlock}}).Set(strings.TrimSpace(word)); err != nil {
				return usagef("bench: --matrix: block size %q: %w", word, err)
			}
			o.blocks = append(o.blocks, n)
		}
		if !given.Changed("duration") {
			o.duration = time.Second
		}
	}
	if most := slices.Max(o.blocks); most > o.buffer {
		return usagef("bench: block size %s: want at most --buffer_size, which is %s", formatSize(most), formatSize(o.buffer))
	}
	return nil
}

// batchFor is how many blocks a batch has. In a matrix, it is lowered until the
// batches of all threads fit into the buffer.
func (o *benchOptions) batchFor(block uint64) int {
	if len(o.blocks) == 1 {
		return o.batch
	}
	fit := o.buffer / block / uint64(o.threads)
	return int(min(max(fit, 1), uint64(o.batch)))
}

func (o *benchOptions) unitBytes() float64 {
	for _, u := range reportUnits {
		if u.name == o.unit {
			return u.bytes
		}
	}
	return 0
}

// benchRow is what was measured for one block size.
type benchRow struct {
	BlockSize  uint64       `json:"block_size"`
	BatchSize  int          `json:"batch_size"`
	Threads    int          `json:"threads"`
	Operation  string       `json:"operation"`
	Path       string       `json:"path"` // direct_same_rail, direct_cross_rail, relayed, tcp, or mixed
	Bytes      uint64       `json:"bytes"`
	Seconds    float64      `json:"seconds"`
	GBytesPerS float64      `json:"gbytes_per_s"`
	OpsPerS    float64      `json:"ops_per_s"`
	LatencyUS  benchLatency `json:"latency_us"`

	batches uint64
}

// benchLatency is in microseconds.
type benchLatency struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

const rowFormat = "%9s  %6s  %7s  %-9s  %-17s  %10s  %10s  %9s  %9s  %9s\n"

func (b *bench) printHead() {
	if !b.app.json {
		fmt.Fprintf(b.app.out, rowFormat, "block", "batch", "threads", "operation", "path", b.opts.unit+"/s", "ops/s", "p50 µs", "p90 µs", "p99 µs")
	}
}

func (b *bench) printRow(r benchRow) {
	if b.app.json {
		return
	}
	rate := strconv.FormatFloat(float64(r.Bytes)/r.Seconds/b.opts.unitBytes(), 'f', b.opts.precision, 64)
	micros := func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
	fmt.Fprintf(b.app.out, rowFormat, formatSize(r.BlockSize), strconv.Itoa(r.BatchSize), strconv.Itoa(r.Threads), r.Operation, r.Path,
		rate, strconv.FormatFloat(r.OpsPerS, 'f', 0, 64), micros(r.LatencyUS.P50), micros(r.LatencyUS.P90), micros(r.LatencyUS.P99))
	if len(b.opts.blocks) == 1 {
		// The line that scripts take from transfer_engine_bench.
		fmt.Fprintf(b.app.out, "Test completed: duration %.2f, batch count %d, throughput %s %s/s\n", r.Seconds, r.batches, rate, b.opts.unit)
	}
}

func (b *bench) printEnd(rows []benchRow) error {
	if !b.app.json {
		return nil
	}
	enc := json.NewEncoder(b.app.out)
	enc.SetIndent("", "  ")
	return enc.Encode(rows)
}

// binarySize is a size whose plain K, M, G and T are powers of 1024.
type binarySize struct{ size }

// Set implements [pflag.Value].
func (s binarySize) Set(text string) error {
	if n := len(text); n > 0 && strings.ContainsRune("KMGTkmgt", rune(text[n-1])) {
		text = text[:n-1] + strings.ToUpper(text[n-1:]) + "iB"
	}
	return s.size.Set(text)
}

// seconds is a duration whose plain numbers are seconds.
type seconds time.Duration

// Set implements [pflag.Value].
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		var x float64
		if x, err = strconv.ParseFloat(text, 64); err != nil || !(x < 1e6) {
			return errors.New("want seconds, such as 10 or 0.5, or a duration such as 500ms")
		}
		d = time.Duration(x * float64(time.Second))
	}
	if d < time.Millisecond || d > 24*time.Hour {
		return errors.New("want 1ms to 24h")
	}
	*s = seconds(d)
	return nil
}

// String implements [pflag.Value].
func (s *seconds) String() string { return time.Duration(*s).String() }

// Type implements [pflag.Value].
func (s *seconds) Type() string { return "seconds" }

// orList is "a, b or c".
func orList(words []string) string {
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " or " + words[n-1]
	}
	return strings.Join(words, "")
}
