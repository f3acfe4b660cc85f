package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/railhop/railhop"
)

// progressEvery is how often a long command tells how far it is.
const progressEvery = 100 * time.Millisecond

// stream moves a range round and round.
func (h *host) stream(ctx context.Context, a StreamArgs, emit func(any)) (Streamed, error) {
	var s Streamed
	e, err := h.engine(a.Engine)
	if err != nil {
		return s, err
	}
	m, err := h.named(a.Memory)
	if err != nil {
		return s, err
	}
	if a.Length, err = m.within(a.Memory, a.Offset, a.Length); err != nil {
		return s, err
	}
	if a.Block == 0 || a.Batch < 1 || a.Window < 1 {
		return s, fmt.Errorf("worker: stream of blocks of %d bytes, %d a batch, %d batches in flight: want 1 or more of each", a.Block, a.Batch, a.Window)
	}
	if a.Total == 0 {
		a.Total = a.Length
	}
	p := newPipeline(ctx, e, a.Window, a.Batch)
	reqs := make([]railhop.Request, 0, a.Batch)
	op := railhop.Write
	if a.Read {
		op = railhop.Read
	}
	start := time.Now()
	so := func() Streamed {
		return Streamed{Bytes: p.bytes.Load(), Requests: p.requests.Load(), Nanoseconds: int64(time.Since(start))}
	}
	told := start
	for at := uint64(0); at < a.Total && err == nil; {
		reqs = reqs[:0]
		bytes := uint64(0)
		for len(reqs) < a.Batch && at < a.Total {
			off := at % a.Length
			n := min(a.Block, a.Length-off, a.Total-at)
			reqs = append(reqs, railhop.Request{
				Op: op, Source: m.addr + a.Offset + off, Target: railhop.SegmentID(a.Segment), TargetAddr: a.Addr + off, Length: n,
			})
			at, bytes = at+n, bytes+n
		}
		if err = p.submit(reqs, bytes, nil); err == nil && time.Since(told) >= progressEvery {
			told = time.Now()
			emit(so())
		}
	}
	err = p.close()
	return so(), err
}

// transfer moves spans as one batch.
func (h *host) transfer(ctx context.Context, a TransferArgs, _ func(any)) (Transferred, error) {
	var t Transferred
	e, err := h.engine(a.Engine)
	if err != nil {
		return t, err
	}
	m, err := h.named(a.Memory)
	if err != nil {
		return t, err
	}
	op := railhop.Write
	if a.Read {
		op = railhop.Read
	}
	reqs := make([]railhop.Request, len(a.Spans))
	for i, s := range a.Spans {
		reqs[i] = railhop.Request{Op: op, Source: m.addr + s.Offset, Target: railhop.SegmentID(a.Segment), TargetAddr: s.Addr, Length: s.Length}
	}
	if a.Milliseconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(a.Milliseconds)*time.Millisecond)
		defer cancel()
	}
	b := e.NewBatch(len(reqs))
	if err := b.Submit(reqs); err != nil {
		return t, err
	}
	if err := b.Wait(ctx); err != nil {
		t.Error = err.Error()
	}
	for i := range reqs {
		r, err := b.Task(i)
		if err != nil {
			return t, err
		}
		t.Status = append(t.Status, r.Status.String())
		t.Bytes = append(t.Bytes, r.Transferred)
	}
	return t, nil
}
