package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/railhop/railhop/internal/fabric"
	"github.com/railhop/railhop/internal/worker"
)

// demoUncapped compares ways at the software's own speed, by medians of streams
// that took turns. Rates are in 10^9 bytes a second.
type demoUncapped struct {
	Pairs           int     `json:"pairs"`
	Direct          float64 `json:"direct_gbytes_per_s"`
	Relayed         float64 `json:"relayed_gbytes_per_s"`
	Plain           float64 `json:"plain_tcp_gbytes_per_s"`
	RelayedToDirect float64 `json:"relayed_to_direct"`
	DirectToPlain   float64 `json:"direct_to_plain_tcp"`
}

func (u *demoUncapped) print(w io.Writer) {
	fmt.Fprintf(w, "medians of %d interleaved streams: direct %.3f GB/s, relayed %.3f GB/s (%.2f of direct), plain TCP %.3f GB/s (direct is %.2f of it)\n",
		u.Pairs, u.Direct, u.Relayed, u.RelayedToDirect, u.Plain, u.DirectToPlain)
}

const demoPlain = "plain"

// pairs streams in turn: direct on the same rail, relayed, and plain TCP from and
// into buffers as large.
func (d *demo) pairs(ctx context.Context) error {
	direct := demoPhase{engine: fabric.Engine, segment: d.pxn, rail: 0}
	relay := demoPhase{engine: fabric.Engine, segment: d.pxn, rail: 1}
	for _, r := range []*fabric.Rank{d.rank0, d.target} {
		if _, err := r.Alloc(ctx, worker.AllocArgs{Memory: demoPlain, GPU: worker.HostMemory, Bytes: d.window}); err != nil {
			return err
		}
		if err := r.Fill(ctx, worker.FillArgs{Memory: demoPlain, Seed: d.opts.seed}); err != nil {
			return err
		}
	}
	total := uint64(2*d.opts.pairs+d.opts.pairs) * d.opts.bytes
	bar := d.app.newBar("streams in turn", total)
	defer bar.done()
	var rates [3][]float64
	done := uint64(0)
	// The first round warms up: it makes connections and touches pages.
	for round := range d.opts.pairs + 1 {
		bytes := d.opts.bytes
		if round == 0 {
			bytes = min(bytes, d.window)
		}
		for i, run := range []func() (worker.Streamed, error){
			func() (worker.Streamed, error) { return d.stream(ctx, direct, bytes, nil) },
			func() (worker.Streamed, error) { return d.stream(ctx, relay, bytes, nil) },
			func() (worker.Streamed, error) { return d.plainTCP(ctx, bytes) },
		} {
			s, err := run()
			if err != nil {
				return err
			}
			if round == 0 {
				continue
			}
			rates[i] = append(rates[i], s.Rate()/1e9)
			done += bytes
			bar.set(done)
		}
	}
	u := &demoUncapped{Pairs: d.opts.pairs, Direct: median(rates[0]), Relayed: median(rates[1]), Plain: median(rates[2])}
	u.RelayedToDirect, u.DirectToPlain = u.Relayed/u.Direct, u.Direct/u.Plain
	d.result.Uncapped = u
	for _, r := range []*fabric.Rank{d.rank0, d.target} {
		if err := r.Free(ctx, demoPlain); err != nil {
			return err
		}
	}
	return nil
}

// plainTCP streams without an engine.
func (d *demo) plainTCP(ctx context.Context, bytes uint64) (worker.Streamed, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listening := make(chan string, 1)
	var received worker.Streamed
	ended := make(chan error, 1)
	go func() {
		var err error
		received, err = d.target.PlainReceive(ctx, worker.PlainArgs{Memory: demoPlain, Total: bytes, Host: fabric.Host(2)},
			func(l worker.Listening) { listening <- l.Addr })
		ended <- err
	}()
	select {
	case addr := <-listening:
		_, err := d.rank0.PlainSend(ctx, worker.PlainArgs{Memory: demoPlain, Total: bytes, Addr: addr})
		if err != nil {
			cancel()
			<-ended
			return received, err
		}
		return received, <-ended
	case err := <-ended:
		return received, err
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
