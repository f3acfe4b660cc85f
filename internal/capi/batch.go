package capi

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/xfer"
)

// Batch is a batch behind a number.
type Batch struct {
	engine *Engine
	batch  *railhop.Batch
	target string // of batches that go to one
	start  time.Time
	bytes  uint64
	late   atomic.Bool // it has been said that it is slow

	mu       sync.Mutex
	capacity int
	tasks    []task
	unseen   int
	failed   bool
	notes    []note
	telling  bool // notes are on their way
}

// task is a request of [Engine.Submit].
type task struct {
	seen  bool // its end: the caller has been told of it
	start time.Time
	bytes uint64
}

// note is a notification that is due when a batch is done.
type note struct {
	segment railhop.SegmentID
	text    railhop.Notification
}

func noBatch(id uint64) error {
	return fmt.Errorf("capi: there is no batch %d: %w", id, xfer.ErrInvalidArgument)
}

// batch returns the batch of an engine that goes by a number.
func (l *Library) batch(e *Engine, id uint64) (*Batch, error) {
	b, ok := l.batches.get(id)
	if !ok || b.engine != e {
		return nil, noBatch(id)
	}
	return b, nil
}

// maxBatch bounds the capacity of a batch.
const maxBatch = 1 << 24

// NewBatch returns the number of a batch that takes so many requests.
func (e *Engine) NewBatch(capacity uint64) (uint64, error) {
	if capacity > maxBatch {
		return 0, e.fail("allocate batch", fmt.Errorf("capi: capacity %d: want at most %d: %w", capacity, maxBatch, xfer.ErrInvalidArgument))
	}
	engine, err := e.use()
	if err != nil {
		return 0, e.fail("allocate batch", err)
	}
	b := &Batch{engine: e, batch: engine.NewBatch(int(capacity)), capacity: int(capacity)}
	return e.library.batches.add(b), nil
}

// Submit hands requests over, with a notification for the first one's target.
func (e *Engine) Submit(id uint64, reqs []railhop.Request, n *railhop.Notification) error {
	b, err := e.library.batch(e, id)
	if err == nil {
		err = b.submit(reqs, n)
	}
	if err != nil {
		return e.fail("submit", err, "batch", id, "requests", len(reqs))
	}
	return nil
}

func (b *Batch) submit(reqs []railhop.Request, n *railhop.Notification) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(reqs) == 0 && n != nil:
		return fmt.Errorf("capi: a notification needs a request whose target it goes to: %w", xfer.ErrInvalidArgument)
	case len(reqs) == 0:
		return nil
	}
	if n != nil { // first: nobody may see the batch done before it is there
		b.notes = append(b.notes, note{reqs[0].Target, *n})
	}
	if err := b.batch.Submit(reqs); err != nil {
		if n != nil {
			b.notes = b.notes[:len(b.notes)-1]
		}
		return err
	}
	now := time.Now()
	for i := range reqs {
		b.tasks = append(b.tasks, task{start: now, bytes: reqs[i].Length})
	}
	b.unseen += len(reqs)
	return nil
}

// Status returns the state of a request, in the order of submission. A notification that
// is due is sent before the last request is called completed.
func (e *Engine) Status(id, n uint64) (railhop.Result, error) {
	b, err := e.library.batch(e, id)
	if err != nil {
		return railhop.Result{}, e.fail("batch status", err, "batch", id)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n >= uint64(len(b.tasks)) {
		return railhop.Result{}, fmt.Errorf("capi: batch %d has no task %d, but %d: %w", id, n, len(b.tasks), xfer.ErrInvalidArgument)
	}
	t := &b.tasks[n]
	r, err := b.batch.Task(int(n))
	if err != nil {
		return railhop.Result{}, err
	}
	switch r.Status {
	case railhop.Completed:
		if !b.tell() {
			r.Status = railhop.Waiting
		}
	case railhop.Waiting, railhop.Pending:
		r.Status = railhop.Waiting
		if e.slow(t.start, t.bytes) {
			r.Status = railhop.Timeout // for now: its end is still to come
			_ = e.late(id, b)
			return r, nil
		}
	case railhop.Timeout:
	default:
		r.Status = railhop.Failed
	}
	if r.Status.Done() && !t.seen {
		t.seen = true
		b.unseen--
		if r.Status == railhop.Completed {
			e.meter.add(time.Since(t.start), t.bytes)
		}
		b.failed = b.failed || r.Status != railhop.Completed
		if b.failed && b.unseen == 0 {
			e.fail("batch", b.batch.Wait(context.Background()), "batch", id)
		}
	}
	return r, nil
}

// tell sends the notifications once the whole batch is done, in the background, and
// reports whether there is nothing to be waited for. b.mu is held.
func (b *Batch) tell() bool {
	if len(b.notes) == 0 || b.batch.Poll() != railhop.Completed {
		return true
	}
	if b.telling {
		return false
	}
	b.telling = true
	notes := b.notes
	go func() {
		for _, n := range notes {
			// What goes wrong is logged; the bytes are in place all the same.
			_ = b.engine.Notify(uint64(n.segment), n.text)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.telling = false
		b.notes = b.notes[len(notes):]
	}()
	return false
}

// FreeBatch uses up a batch's number. It fails with [xfer.ErrBatchBusy] while the end of
// a request has not been seen by [Engine.Status].
func (e *Engine) FreeBatch(id uint64) error {
	b, err := e.library.batch(e, id)
	if err != nil {
		return e.fail("free batch", err, "batch", id)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unseen > 0 {
		return fmt.Errorf("capi: batch %d: %d requests have not been seen to end: %w", id, b.unseen, xfer.ErrBatchBusy)
	}
	e.library.batches.take(id)
	return nil
}
