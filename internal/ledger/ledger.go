// Package ledger keeps account of batches: which tasks are open, done or failed,
// and what they still wait for.
//
// A task is open for as many shares as its bytes were cut into; each way opens
// shares and closes them, and the last one closed ends the task. Shares are
// counted by the pump alone; a task's status is one atomic word, so that asking
// for it costs a load.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/railhop/railhop/internal/xfer"
)

// Result is the state of a task.
type Result struct {
	Status      xfer.Status
	Transferred uint64 // bytes in place
}

// Task is one request of a batch. Opened, Closed and Fail belong to the pump.
type Task struct {
	Req xfer.Request
	// Mark and Why are for whoever routes the task.
	Mark int
	Why  xfer.Reason // why bytes of it went direct, the last time

	batch  *Batch
	open   int
	err    error
	gaveUp bool
	moved  uint64 // bytes in place

	status      atomic.Int32
	transferred atomic.Uint64
}

// Batch returns the batch that the task belongs to.
func (t *Task) Batch() *Batch { return t.batch }

// Opened adds shares.
func (t *Task) Opened(n int) { t.open += n }

// Closed ends one share: bytes are in place, or err says why they are not. A
// share that goes on another way closes with neither. It is called only once
// nothing of the share can land any more and nothing reads its source.
func (t *Task) Closed(bytes uint64, err error) {
	t.moved += bytes
	if err != nil && t.err == nil {
		t.err = err
	}
	t.open--
	if t.open == 0 {
		t.end()
	}
}

// Open reports whether the task still waits for a share.
func (t *Task) Open() bool { return t.open > 0 }

// GivenUp reports whether the task has ended for its caller by [Task.GiveUp].
func (t *Task) GivenUp() bool { return t.gaveUp }

// Err is the first error of the task. It may be read once the status is final.
func (t *Task) Err() error { return t.err }

// Missing is how many bytes are not in place.
func (t *Task) Missing() uint64 { return t.Req.Length - min(t.moved, t.Req.Length) }

// Explain replaces the error of a task by one that wraps it and says more, unless
// the caller has it already. It belongs to [Batch.Ended].
func (t *Task) Explain(err error) {
	if !t.gaveUp {
		t.err = err
	}
}

// GiveUp ends the task for its caller with [xfer.Timeout] although shares are
// open, whose bytes may still land. The batch stays busy until they are closed.
func (t *Task) GiveUp(err error) {
	if t.open == 0 || t.gaveUp {
		return
	}
	t.gaveUp, t.err = true, err
	t.publish(xfer.Timeout)
	t.batch.answered()
}

func (t *Task) end() {
	if f := t.batch.Ended; f != nil && t.err != nil {
		f(t)
	}
	switch {
	case t.gaveUp:
	case t.err == nil:
		t.publish(xfer.Completed)
	case errors.Is(t.err, context.DeadlineExceeded):
		t.publish(xfer.Timeout)
	case errors.Is(t.err, context.Canceled):
		t.publish(xfer.Canceled)
	default:
		t.publish(xfer.Failed)
	}
	b, gaveUp := t.batch, t.gaveUp
	b.closed.Add(1)
	if !gaveUp {
		b.answered() // last: whoever waits may reuse the batch
	}
}

func (t *Task) publish(s xfer.Status) {
	t.transferred.Store(t.moved)
	t.status.Store(int32(s))
}

// Batch is a set of tasks that are waited for together. Add belongs to one
// goroutine at a time; the queries may be called by any.
type Batch struct {
	// Ended is called on the pump for each task that has failed, when nothing of it
	// is open any more and before its status is final.
	Ended func(*Task)

	tasks  []Task
	used   atomic.Int32 // tasks added
	done   atomic.Int32 // tasks answered
	closed atomic.Int32 // tasks with no share open
	bell   chan struct{}
}

// NewBatch returns a batch for up to capacity tasks.
func NewBatch(capacity int) *Batch {
	return &Batch{tasks: make([]Task, capacity), bell: make(chan struct{}, 1)}
}

// Cap is how many tasks the batch has room for.
func (b *Batch) Cap() int { return len(b.tasks) }

// Len is how many tasks were added.
func (b *Batch) Len() int { return int(b.used.Load()) }

// Add adds tasks for reqs, all or none, and returns them. It fails with
// [xfer.ErrTooManyRequests] if the batch has no room for them.
func (b *Batch) Add(reqs []xfer.Request) ([]Task, error) {
	n := int(b.used.Load())
	if free := len(b.tasks) - n; len(reqs) > free {
		return nil, fmt.Errorf("batch: %d requests, room for %d of %d: %w", len(reqs), free, len(b.tasks), xfer.ErrTooManyRequests)
	}
	added := b.tasks[n : n+len(reqs)]
	for i := range added {
		t := &added[i]
		t.Req, t.Mark, t.Why, t.batch = reqs[i], 0, xfer.NoReason, b
		t.open, t.err, t.gaveUp, t.moved = 0, nil, false, 0
		t.transferred.Store(0)
		t.status.Store(int32(xfer.Pending))
	}
	b.used.Store(int32(n + len(reqs)))
	return added, nil
}

func (b *Batch) answered() {
	if b.done.Add(1) == b.used.Load() {
		select {
		case b.bell <- struct{}{}:
		default:
		}
	}
}

// Task returns the state of task i.
func (b *Batch) Task(i int) (Result, error) {
	if n := b.Len(); i < 0 || i >= n {
		return Result{Status: xfer.Invalid}, fmt.Errorf("batch: task %d of %d: %w", i, n, xfer.ErrInvalidArgument)
	}
	t := &b.tasks[i]
	return Result{xfer.Status(t.status.Load()), t.transferred.Load()}, nil
}

// At returns task i, which must have been added.
func (b *Batch) At(i int) *Task { return &b.tasks[i] }

// Answered reports whether every task has its final status.
func (b *Batch) Answered() bool { return b.done.Load() == b.used.Load() }

// Closed reports whether nothing of the batch can land any more and nothing of
// it reads a source, so that it may be used again.
func (b *Batch) Closed() bool { return b.closed.Load() == b.used.Load() }

// Bell rings once all tasks are answered. After a ring look again: it may be an
// old one.
func (b *Batch) Bell() <-chan struct{} { return b.bell }

// Status is the state of the batch: failed or timed out if all tasks are
// answered and one of them did, completed if all are, else waiting.
func (b *Batch) Status() xfer.Status {
	n := b.Len()
	if int(b.done.Load()) < n {
		return xfer.Waiting
	}
	worst := xfer.Completed
	for i := range n {
		switch s := xfer.Status(b.tasks[i].status.Load()); s {
		case xfer.Completed:
		case xfer.Timeout:
			worst = xfer.Timeout
		default:
			if worst != xfer.Timeout {
				worst = s
			}
		}
	}
	return worst
}

// Err is the first task's error in order, with its index, or
// nil. It may be called once the batch is answered.
func (b *Batch) Err() error {
	for i := range b.Len() {
		if s := xfer.Status(b.tasks[i].status.Load()); s != xfer.Completed {
			return fmt.Errorf("task %d of %d: %v: %w", i, b.Len(), s, b.tasks[i].err)
		}
	}
	return nil
}

// Reset makes a batch that is answered and closed empty again.
func (b *Batch) Reset() {
	b.used.Store(0)
	b.done.Store(0)
	b.closed.Store(0)
	select {
	case <-b.bell:
	default:
	}
}
