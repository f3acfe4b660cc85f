package railhop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/railhop/railhop/internal/ledger"
	"github.com/railhop/railhop/internal/path/pxn"
	"github.com/railhop/railhop/internal/path/rdma"
	"github.com/railhop/railhop/internal/path/tcp"
	"github.com/railhop/railhop/internal/xfer"
)

// Batch is a set of requests that are waited for together. Submit belongs to one
// goroutine at a time; the other methods may be called by any.
type Batch struct {
	engine *Engine
	ledger *ledger.Batch
}

// Result is the state of one request of a batch.
type Result = ledger.Result

// NewBatch returns a batch with room for capacity requests. Give it back with
// [Batch.Reset] to use it again; a batch that is done needs no closing.
func (e *Engine) NewBatch(capacity int) *Batch {
	b := &Batch{engine: e, ledger: ledger.NewBatch(capacity)}
	b.ledger.Ended = e.ended
	return b
}

// Submit hands requests over and returns at once. The sources must hold their
// bytes. It does not keep reqs. It fails, and submits none of them, with
// [ErrTooManyRequests] if the batch has no room, and with [ErrInvalidArgument]
// for a request that can never work. Everything else is found out by
// [Batch.Wait].
func (b *Batch) Submit(reqs []Request) error {
	err := b.engine.submit(b.ledger, reqs, 0, false)
	b.engine.host.loop.Wake()
	return err
}

// SubmitOn is Submit for sources that hold their bytes once stream, a stream of the
// GPU's driver, has come to this point. A stream that is being captured into a
// graph is refused.
func (b *Batch) SubmitOn(stream uint64, reqs []Request) error {
	err := b.engine.submit(b.ledger, reqs, stream, true)
	b.engine.host.loop.Wake()
	return err
}

// Len is how many requests were submitted, Cap how many there is room for.
func (b *Batch) Len() int { return b.ledger.Len() }

// Cap is how many requests there is room for.
func (b *Batch) Cap() int { return b.ledger.Cap() }

// Poll returns the state of the batch, without blocking: Waiting, or, once every
// request has ended, Completed or what went wrong.
func (b *Batch) Poll() Status { return b.ledger.Status() }

// Task returns the state of request i, in the order of submission.
func (b *Batch) Task(i int) (Result, error) { return b.ledger.Task(i) }

// Wait waits until every request has ended, and returns nil if all bytes are in
// place. If ctx ends first, what can be stopped is stopped, and the error wraps
// the context's; it is returned only when nothing can land any more, or else is a
// [*MayLandError] that lists where bytes may still land.
func (b *Batch) Wait(ctx context.Context) error {
	for !b.ledger.Answered() {
		select {
		case <-b.ledger.Bell():
		case <-ctx.Done():
			return b.engine.giveUp(b.ledger, context.Cause(ctx))
		}
	}
	return outcome(b.ledger)
}

// Transfer is Submit and Wait. By TCP the caller's thread does the work, if nobody else
// does just then.
func (b *Batch) Transfer(ctx context.Context, reqs []Request) error {
	if err := b.engine.submit(b.ledger, reqs, 0, false); err != nil {
		return err
	}
	if b.engine.tcp != nil {
		b.engine.host.loop.Help(ctx, b.ledger.Answered)
	} else {
		b.engine.host.loop.Wake()
	}
	return b.Wait(ctx)
}

// Reset makes the batch empty, to be used again. It fails with [ErrBatchBusy] if
// bytes of it may still land or its sources are still read.
func (b *Batch) Reset() error {
	if !b.ledger.Answered() || !b.ledger.Closed() {
		return fmt.Errorf("railhop: batch is not done: %w", xfer.ErrBatchBusy)
	}
	b.ledger.Reset()
	return nil
}

// Write copies length bytes from local to remote, an address in the target, and
// waits. Retries and fallbacks are behind it; see [Batch.Wait] for errors.
func (e *Engine) Write(ctx context.Context, target SegmentID, local, remote, length uint64) error {
	return e.one(ctx, Request{Op: xfer.Write, Source: local, Target: target, TargetAddr: remote, Length: length})
}

// Read copies length bytes from remote, an address in the target, to local, and
// waits.
func (e *Engine) Read(ctx context.Context, target SegmentID, local, remote, length uint64) error {
	return e.one(ctx, Request{Op: xfer.Read, Source: local, Target: target, TargetAddr: remote, Length: length})
}

func (e *Engine) one(ctx context.Context, r Request) error {
	e.batchMu.Lock()
	var b *Batch
	if n := len(e.batches); n > 0 {
		b = e.batches[n-1]
		e.batches = e.batches[:n-1]
	}
	e.batchMu.Unlock()
	if b == nil {
		b = e.NewBatch(1)
	}
	reqs := [1]Request{r}
	if err := e.submit(b.ledger, reqs[:], 0, false); err != nil {
		return err
	}
	e.host.loop.Help(ctx, b.ledger.Answered)
	err := b.Wait(ctx)
	if b.Reset() == nil {
		e.batchMu.Lock()
		e.batches = append(e.batches, b)
		e.batchMu.Unlock()
	}
	return err
}

// mayLand is a batch that was given up while bytes of it could still land.
type mayLand struct {
	batch  *ledger.Batch
	ranges []Range
}

// giveUp stops what is open of a batch, and waits until its ways are closed, up
// to the configured bound.
func (e *Engine) giveUp(b *ledger.Batch, cause error) error {
	if err := e.host.loop.Do(func() { e.abortOnPump(b, cause) }); err != nil {
		return errors.Join(cause, err)
	}
	late := time.NewTimer(e.cfg.CloseWait)
	defer late.Stop()
	for !b.Answered() {
		select {
		case <-b.Bell():
		case <-late.C:
			var err *MayLandError
			if stopped := e.host.loop.Do(func() { err = e.abandon(b, cause) }); stopped != nil {
				return errors.Join(cause, stopped)
			}
			if err == nil {
				break
			}
			e.log.Warn("deadline passed with ways not closed", "err", err)
			return err
		}
	}
	return outcome(b)
}

// outcome is the first error of a batch that is answered, or else what of it may
// still land.
func outcome(b *ledger.Batch) error {
	err := b.Err()
	if err == nil {
		return nil
	}
	late := &MayLandError{Cause: err}
	for i := range b.Len() {
		if u, ok := errors.AsType[*tcp.UnprovenError](b.At(i).Err()); ok {
			if late.Ranges == nil {
				late.Cause = u.Cause
			}
			late.Ranges = append(late.Ranges, Range{Segment: u.Segment, Addr: u.Addr, Length: u.Length})
		}
	}
	if late.Ranges != nil {
		return late
	}
	return err
}

// abortOnPump stops the open tasks of a batch.
func (e *Engine) abortOnPump(b *ledger.Batch, cause error) {
	e.drainIntake()
	e.abortFenced(b, cause)
	for _, to := range e.targets {
		if to != nil {
			to.abort(b, cause)
		}
	}
	if r := e.rank.Load(); r != nil {
		r.path.Abort(e.host.loop.Now(), func(o pxn.Owner) bool { return isOf(o, b) }, cause)
	}
	if e.tcp != nil {
		e.tcp.Abort(func(o tcp.Owner) bool { return isOf(o, b) }, cause)
	} else if e.direct != nil {
		e.direct.Abort(func(o rdma.Owner) bool { return isOf(o, b) }, cause)
	}
}

// isOf reports whether the owner of a transfer is a task of the batch.
func isOf(owner any, b *ledger.Batch) bool {
	t, ok := owner.(*ledger.Task)
	return ok && t.Batch() == b
}

func (e *Engine) abortFenced(b *ledger.Batch, cause error) {
	keep := e.fenced[:0]
	var ended []fenced
	for _, f := range e.fenced {
		if f.owner.Batch() == b {
			ended = append(ended, f)
		} else {
			keep = append(keep, f)
		}
	}
	clear(e.fenced[len(keep):])
	e.fenced = keep
	for _, f := range ended {
		f.fence.Drop()
		f.owner.Closed(0, cause)
	}
}

// abandon ends the open tasks of a batch for their caller, and returns where
// their bytes may still land.
func (e *Engine) abandon(b *ledger.Batch, cause error) *MayLandError {
	late := &MayLandError{Cause: cause}
	for i := range b.Len() {
		if t := b.At(i); t.Open() && !t.GivenUp() {
			late.Ranges = append(late.Ranges, Range{Segment: e.target(t.Req.Target).Name(), Addr: t.Req.TargetAddr, Length: t.Req.Length})
		}
	}
	if len(late.Ranges) == 0 {
		return nil
	}
	for i := range b.Len() {
		b.At(i).GiveUp(late)
	}
	e.landMu.Lock()
	e.forgetLanded()
	e.land = append(e.land, mayLand{b, late.Ranges})
	e.landMu.Unlock()
	return late
}

// forgetLanded drops what is closed by now. landMu is held.
func (e *Engine) forgetLanded() {
	e.land = slices.DeleteFunc(e.land, func(m mayLand) bool { return m.batch.Closed() })
}

// MayLand lists where bytes of transfers that were given up may still land.
func (e *Engine) MayLand() []Range {
	e.landMu.Lock()
	defer e.landMu.Unlock()
	e.forgetLanded()
	var ranges []Range
	for _, m := range e.land {
		ranges = append(ranges, m.ranges...)
	}
	return ranges
}
