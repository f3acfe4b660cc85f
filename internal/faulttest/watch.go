package faulttest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// watching looks, again and again, for bytes that change where nobody should
// write any more.
type watching struct {
	stop  chan struct{}
	done  sync.WaitGroup
	worst atomic.Int64 // most bytes that differed at once
	err   error
}

// reuse checks what has been written, and at once writes something else over it,
// which it watches from then on.
func (c *child) reuse(cmd *command, a *Answer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watching != nil {
		return errors.New("already watching")
	}
	if cmd.To != 0 { // what should be there
		bad, err := c.compare(cmd.Addr, cmd.Size, cmd.To)
		if err != nil {
			return err
		}
		a.Bad = bad
	}
	if err := c.fill(cmd); err != nil {
		return err
	}
	w := &watching{stop: make(chan struct{})}
	c.watching = w
	w.done.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for last := false; ; {
			bad, err := c.compare(cmd.Addr, cmd.Size, cmd.Seed)
			if err != nil {
				w.err = fmt.Errorf("watch: %w", err)
				return
			}
			w.worst.Store(max(w.worst.Load(), int64(bad)))
			if last {
				return
			}
			select {
			case <-tick.C:
			case <-w.stop:
				last = true
			}
		}
	})
	return nil
}

// unwatch ends with a last look.
func (c *child) unwatch(a *Answer) error {
	c.mu.Lock()
	w := c.watching
	c.watching = nil
	c.mu.Unlock()
	if w == nil {
		return errors.New("not watching")
	}
	close(w.stop)
	w.done.Wait()
	a.Bad = int(w.worst.Load())
	return w.err
}
