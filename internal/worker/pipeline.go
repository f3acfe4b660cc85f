package worker

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/railhop/railhop"
)

// pipeline keeps batches in flight: submit waits for a free one, and a goroutine
// waits for the oldest.
type pipeline struct {
	cancel context.CancelCauseFunc
	ctx    context.Context // ends at the first failure
	free   chan *flight
	flying chan *flight
	wg     sync.WaitGroup

	bytes    atomic.Uint64 // done
	requests atomic.Uint64
}

// flight is a batch that is used over and over.
type flight struct {
	batch  *railhop.Batch
	bytes  uint64
	landed func() // may be nil
}

func newPipeline(ctx context.Context, e *railhop.Engine, batches, requests int) *pipeline {
	p := &pipeline{free: make(chan *flight, batches), flying: make(chan *flight, batches)}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	for range batches {
		p.free <- &flight{batch: e.NewBatch(requests)}
	}
	p.wg.Go(p.land)
	return p
}

// submit sends requests that are bytes long together. landed is called once they
// have arrived, in the order of submission.
func (p *pipeline) submit(reqs []railhop.Request, bytes uint64, landed func()) error {
	select {
	case f := <-p.free:
		if err := f.batch.Submit(reqs); err != nil {
			p.cancel(err)
			return err
		}
		f.bytes, f.landed = bytes, landed
		p.flying <- f
		return nil
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
}

func (p *pipeline) land() {
	for f := range p.flying {
		if err := f.batch.Wait(p.ctx); err != nil {
			p.cancel(err)
			continue // it is not used again
		}
		p.bytes.Add(f.bytes)
		p.requests.Add(uint64(f.batch.Len()))
		if f.landed != nil {
			f.landed()
		}
		if err := f.batch.Reset(); err != nil {
			p.cancel(err)
			continue
		}
		p.free <- f
	}
}

// close waits for all that is in flight, and returns the first failure.
func (p *pipeline) close() error {
	close(p.flying)
	p.wg.Wait()
	err := context.Cause(p.ctx)
	p.cancel(nil)
	return err
}
