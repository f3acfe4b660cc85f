package cli

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/railhop/railhop"
)

// measure opens the target and makes a row of each block size.
func (b *bench) measure(ctx context.Context) error {
	o := b.opts
	dial, cancel := context.WithTimeout(ctx, o.env.Log.TransferTimeout)
	defer cancel()
	id, err := b.engine.OpenSegment(dial, o.segment)
	if err != nil {
		return fmt.Errorf("bench: --segment_id %s: %w", o.segment, err)
	}
	remote, err := b.largest(id)
	if err != nil {
		return err
	}
	if need := slices.Max(o.blocks); remote.Length < need {
		return fmt.Errorf("bench: block size %s: the target's largest buffer has %s", formatSize(need), formatSize(remote.Length))
	}
	b.printHead()
	rows := make([]benchRow, 0, len(o.blocks))
	for _, block := range o.blocks {
		r, err := b.row(ctx, id, remote, block)
		if err != nil {
			return fmt.Errorf("bench: blocks of %s: %w", formatSize(block), err)
		}
		rows = append(rows, r)
		b.printRow(r)
	}
	return b.printEnd(rows)
}

func (b *bench) largest(id railhop.SegmentID) (railhop.Region, error) {
	var most railhop.Region
	all, err := b.engine.Buffers(id)
	if err != nil {
		return most, err
	}
	for _, r := range all {
		if r.Length > most.Length {
			most = r
		}
	}
	if most.Length == 0 {
		return most, fmt.Errorf("bench: --segment_id %s: it has no memory registered that may be written or read", b.opts.segment)
	}
	return most, nil
}

// lap is one row's run: threads that start together and stop at a time.
type lap struct {
	bench   *bench
	id      railhop.SegmentID
	op      railhop.Opcode
	remote  uint64
	block   uint64
	blocks  uint64 // that fit into the smaller of the two buffers
	batch   int
	threads int

	ready sync.WaitGroup // threads that are connected
	start chan struct{}  // closed when all are
	until time.Time      // set before start is closed
}

// lapResult is a thread's share.
type lapResult struct {
	batches uint64
	latency *hdrhistogram.Histogram // ns
	err     error
}

func (b *bench) row(ctx context.Context, id railhop.SegmentID, remote railhop.Region, block uint64) (benchRow, error) {
	o := b.opts
	l := &lap{
		bench: b, id: id, op: railhop.Read, remote: remote.Addr, block: block, blocks: min(remote.Length, b.memory.size) / block,
		batch: o.batchFor(block), threads: o.threads, start: make(chan struct{}),
	}
	if o.operation == "write" {
		l.op = railhop.Write
	}
	row := benchRow{BlockSize: block, BatchSize: l.batch, Threads: l.threads, Operation: o.operation}
	// What cannot end, such as transfers to a stopped peer, ends by this.
	ctx, cancel := context.WithTimeout(ctx, o.duration+2*o.env.Log.TransferTimeout)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	results := make([]lapResult, l.threads)
	var wg sync.WaitGroup
	l.ready.Add(l.threads)
	for i := range results {
		wg.Go(func() {
			results[i] = l.thread(ctx, uint64(i))
			if err := results[i].err; err != nil {
				fail(err)
			}
		})
	}
	l.ready.Wait()
	before := b.engine.Stats()
	began := time.Now()
	l.until = began.Add(o.duration)
	close(l.start)
	wg.Wait()
	took := time.Since(began)
	if err := context.Cause(ctx); err != nil {
		return row, err
	}
	row.add(results, took)
	row.Path = pathTaken(before, b.engine.Stats())
	return row, nil
}

// thread keeps one batch in flight. The first one connects, and does not count.
func (l *lap) thread(ctx context.Context, index uint64) (r lapResult) {
	r.latency = hdrhistogram.New(1, int64(time.Hour), 3)
	b := l.bench.engine.NewBatch(l.batch)
	reqs := make([]railhop.Request, l.batch)
	next := index * uint64(l.batch)
	once := func() error {
		for i := range reqs {
			off := (next + uint64(i)) % l.blocks * l.block
			reqs[i] = railhop.Request{Op: l.op, Source: l.bench.memory.addr + off, Target: l.id, TargetAddr: l.remote + off, Length: l.block}
		}
		next += uint64(l.batch * l.threads)
		if err := b.Submit(reqs); err != nil {
			return err
		}
		return b.Wait(ctx)
	}
	r.err = once()
	l.ready.Done()
	if r.err != nil {
		return r
	}
	select {
	case <-l.start:
	case <-ctx.Done():
		r.err = context.Cause(ctx)
		return r
	}
	for {
		began := time.Now()
		if !began.Before(l.until) && r.batches > 0 {
			return r
		}
		if r.err = b.Reset(); r.err != nil {
			return r
		}
		if r.err = once(); r.err != nil {
			return r
		}
		r.latency.RecordValue(min(int64(time.Since(began)), int64(time.Hour)))
		r.batches++
	}
}

// add fills a row with what the threads have done in some time.
func (r *benchRow) add(results []lapResult, took time.Duration) {
	all := hdrhistogram.New(1, int64(time.Hour), 3)
	for _, t := range results {
		r.batches += t.batches
		all.Merge(t.latency)
	}
	ops := r.batches * uint64(r.BatchSize)
	r.Bytes, r.Seconds = ops*r.BlockSize, took.Seconds()
	r.GBytesPerS, r.OpsPerS = float64(r.Bytes)/r.Seconds/1e9, float64(ops)/r.Seconds
	micros := func(q float64) float64 { return float64(all.ValueAtQuantile(q)) / 1e3 }
	r.LatencyUS = benchLatency{micros(50), micros(90), micros(99)}
}

// pathTaken names the way that the bytes went between two looks.
func pathTaken(before, after railhop.Stats) string {
	taken := ""
	for _, p := range []struct {
		name     string
		from, to railhop.Flow
	}{
		{"direct_same_rail", before.DirectSameRail, after.DirectSameRail},
		{"direct_cross_rail", before.DirectCrossRail, after.DirectCrossRail},
		{"relayed", before.Relayed, after.Relayed},
	} {
		switch {
		case p.to.Bytes == p.from.Bytes:
		case taken == "":
			taken = p.name
		default:
			return "mixed"
		}
	}
	switch tcp := after.TCP.Bytes != before.TCP.Bytes; {
	case tcp && taken == "":
		return "tcp"
	case tcp:
		return "mixed"
	case taken == "":
		return "none"
	}
	return taken
}
