package capi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/xfer"
)

// Pieces are what a transfer moves: the i-th piece is Lengths[i] bytes, between
// Local[i] here and Remote[i] there. They are not kept.
type Pieces struct {
	Local, Remote, Lengths []uint64
}

func (p Pieces) check() error {
	if len(p.Local) != len(p.Remote) || len(p.Local) != len(p.Lengths) {
		return fmt.Errorf("capi: %d addresses here, %d there and %d lengths: want as many of each: %w", len(p.Local), len(p.Remote), len(p.Lengths), xfer.ErrInvalidArgument)
	}
	return nil
}

func (p Pieces) bytes() uint64 {
	var n uint64
	for _, l := range p.Lengths {
		if n += l; n < l {
			return math.MaxUint64
		}
	}
	return n
}

// requests appends the pieces as requests.
func (p Pieces) requests(dst []railhop.Request, op railhop.Opcode, id railhop.SegmentID) []railhop.Request {
	dst = slices.Grow(dst, len(p.Local))
	for i := range p.Local {
		dst = append(dst, railhop.Request{Op: op, Source: p.Local[i], Target: id, TargetAddr: p.Remote[i], Length: p.Lengths[i]})
	}
	return dst
}

// spares are batches to be used again, by the power of two of their capacity.
type spares struct {
	mu      sync.Mutex
	batches [21][]*railhop.Batch
	reqs    sync.Pool // of *[]railhop.Request
}

// spareEach is how many batches of a size are kept.
const spareEach = 16

func (s *spares) get(engine *railhop.Engine, n int) *railhop.Batch {
	order := bits.Len(uint(max(n, 1) - 1))
	if order >= len(s.batches) {
		return engine.NewBatch(n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.batches[order]
	if len(list) == 0 {
		return engine.NewBatch(1 << order)
	}
	b := list[len(list)-1]
	s.batches[order] = list[:len(list)-1]
	return b
}

// put takes back a batch that is done. One that is not is left to itself.
func (s *spares) put(b *railhop.Batch) {
	order := bits.Len(uint(max(b.Cap(), 1) - 1))
	if b.Reset() != nil || b.Cap() != 1<<order || order >= len(s.batches) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.batches[order]) < spareEach {
		s.batches[order] = append(s.batches[order], b)
	}
}

// Transfer moves pieces and waits until all are in place, or nothing of them can land
// any more, or, if that cannot be had, says where they may still land. A note is
// delivered to the target after them.
func (e *Engine) Transfer(op railhop.Opcode, target string, p Pieces, note *railhop.Notification) error {
	start, bytes := time.Now(), p.bytes()
	ctx, cancel := context.WithDeadline(context.Background(), e.deadline(start, bytes))
	defer cancel()
	if err := e.transfer(ctx, op, target, p, note); err != nil {
		return e.fail(op.String(), err, "peer", target, "pieces", len(p.Local), "bytes", bytes)
	}
	e.meter.add(time.Since(start), bytes)
	return nil
}

func (e *Engine) transfer(ctx context.Context, op railhop.Opcode, target string, p Pieces, note *railhop.Notification) error {
	engine, id, err := e.open(ctx, target)
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return err
	}
	switch n := len(p.Local); {
	case n == 0 && note != nil:
		return fmt.Errorf("capi: a notification needs a transfer that it follows: %w", xfer.ErrInvalidArgument)
	case n == 0:
		return nil
	case n == 1 && op == railhop.Write:
		err = engine.Write(ctx, id, p.Local[0], p.Remote[0], p.Lengths[0])
	case n == 1 && op == railhop.Read:
		err = engine.Read(ctx, id, p.Local[0], p.Remote[0], p.Lengths[0])
	default:
		b := e.spare.get(engine, n)
		err = e.submit(op, id, p, func(reqs []railhop.Request) error { return b.Transfer(ctx, reqs) })
		e.spare.put(b)
	}
	if err != nil || note == nil {
		return err
	}
	if err := engine.Notify(ctx, id, *note); err != nil {
		e.log.Warn("notification not delivered", "peer", target, "err", err)
	}
	return nil
}

// submit has the pieces submitted as requests, which are not kept.
func (e *Engine) submit(op railhop.Opcode, id railhop.SegmentID, p Pieces, submit func([]railhop.Request) error) error {
	reqs, ok := e.spare.reqs.Get().(*[]railhop.Request)
	if !ok {
		reqs = new([]railhop.Request)
	}
	defer e.spare.reqs.Put(reqs)
	*reqs = p.requests((*reqs)[:0], op, id)
	return submit(*reqs)
}

// TransferOn is [Engine.Transfer] behind what a stream of the GPU's driver does until
// now. Since it waits, what the stream does later comes after the transfer.
func (e *Engine) TransferOn(stream uint64, op railhop.Opcode, target string, p Pieces) error {
	start, bytes := time.Now(), p.bytes()
	ctx, cancel := context.WithDeadline(context.Background(), e.deadline(start, bytes))
	defer cancel()
	engine, id, err := e.open(ctx, target)
	if err == nil {
		err = p.check()
	}
	if err == nil && len(p.Local) > 0 {
		b := engine.NewBatch(len(p.Local))
		if err = b.SubmitOn(stream, p.requests(nil, op, id)); err == nil {
			err = b.Wait(ctx)
		}
	}
	if err != nil {
		return e.fail(op.String()+" on a stream", err, "peer", target, "pieces", len(p.Local), "bytes", bytes)
	}
	e.meter.add(time.Since(start), bytes)
	return nil
}

// Start submits pieces and returns the number of their batch at once.
func (e *Engine) Start(op railhop.Opcode, target string, p Pieces) (uint64, error) {
	start, bytes := time.Now(), p.bytes()
	ctx, cancel := context.WithDeadline(context.Background(), e.deadline(start, bytes))
	defer cancel()
	engine, id, err := e.open(ctx, target)
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return 0, e.fail("submit", err, "peer", target, "pieces", len(p.Local), "bytes", bytes)
	}
	b := &Batch{engine: e, target: target, batch: e.spare.get(engine, len(p.Local)), start: start, bytes: bytes}
	if len(p.Local) > 0 {
		if err := e.submit(op, id, p, b.batch.Submit); err != nil {
			return 0, e.fail("submit", err, "peer", target, "pieces", len(p.Local), "bytes", bytes)
		}
	}
	return e.library.batches.add(b), nil
}

// Finish waits for batches of [Engine.Start], each until its own deadline, and uses
// their numbers up.
func (e *Engine) Finish(ids []uint64) error {
	var first error
	for _, id := range ids {
		b, err := e.take(id)
		if err == nil {
			ctx, cancel := context.WithDeadline(context.Background(), e.deadline(b.start, b.bytes))
			err = b.batch.Wait(ctx)
			cancel()
			e.spare.put(b.batch)
		}
		if err == nil {
			e.meter.add(time.Since(b.start), b.bytes)
		}
		if err != nil && first == nil {
			first = e.fail("batch", err, "batch", id)
		}
	}
	return first
}

// take uses up the number of a batch of this engine.
func (e *Engine) take(id uint64) (*Batch, error) {
	if _, err := e.library.batch(e, id); err != nil {
		return nil, err
	}
	b, ok := e.library.batches.take(id)
	if !ok {
		return nil, noBatch(id)
	}
	return b, nil
}

// Check returns [railhop.Completed] if a batch of [Engine.Start] is done, and its number
// is used up, as it is by an error. It does not wait: else the batch is
// [railhop.Waiting], or, past MC_SLICE_TIMEOUT, [railhop.Timeout] with an error that says so.
func (e *Engine) Check(id uint64) (railhop.Status, error) {
	b, err := e.library.batch(e, id)
	if err != nil {
		return railhop.Failed, e.fail("check batch", err, "batch", id)
	}
	if b.batch.Len() > 0 && !b.batch.Poll().Done() {
		if e.slow(b.start, b.bytes) {
			return railhop.Timeout, e.late(id, b)
		}
		return railhop.Waiting, nil
	}
	if b, err = e.take(id); err != nil {
		return railhop.Failed, e.fail("check batch", err, "batch", id)
	}
	err = b.batch.Wait(context.Background())
	e.spare.put(b.batch)
	if err != nil {
		return railhop.Failed, e.fail("batch", err, "peer", b.target, "batch", id)
	}
	e.meter.add(time.Since(b.start), b.bytes)
	return railhop.Completed, nil
}

var errSlow = errors.New("capi: the batch runs for longer than MC_SLICE_TIMEOUT allows, and goes on")

// late notes that a batch is slow, and says so once.
func (e *Engine) late(id uint64, b *Batch) error {
	e.note("check batch", errSlow)
	if b.late.CompareAndSwap(false, true) {
		e.log.Warn("Slice timeout detected", "peer", b.target, "batch", id, "err", errSlow)
	}
	return errSlow
}

// slow reports whether what was submitted then, and still runs, is to be called timed
// out. As for a deadline 1 ns a byte is added.
func (e *Engine) slow(since time.Time, bytes uint64) bool {
	limit := e.env.RDMA.SliceTimeout
	return limit > 0 && time.Since(since) > limit+time.Duration(min(bytes, 1<<62-1))
}
