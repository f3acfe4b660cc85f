package railhop

import (
	"sync/atomic"
	"testing"
	"time"
)

type closable struct {
	closed bool
	asked  int
}

func (c *closable) Closed() bool { c.asked++; return c.closed }

// TestEndIsSeenWhenTold plays a process that dies, and is closed within the same
// millisecond: the watcher wakes the pump for both, and nothing wakes it again.
func TestEndIsSeenWhenTold(t *testing.T) {
	t.Parallel()
	var (
		c      closable
		deaths atomic.Uint64
		now    = 5 * time.Millisecond
	)
	e := end{of: &c, now: func() time.Duration { return now }, deaths: &deaths}
	for range 3 {
		if e.come() || c.asked != 1 {
			t.Fatalf("come() = true or the system is asked %d times in a millisecond, want once", c.asked)
		}
	}
	deaths.Add(1) // died, and not closed yet
	if e.come() || c.asked != 2 {
		t.Fatalf("the system is asked %d times after a death was told, want twice", c.asked)
	}
	c.closed = true
	deaths.Add(1)
	if !e.come() {
		t.Fatal("come() = false after the end was told")
	}
	if e.come(); c.asked != 3 {
		t.Fatalf("the system is asked %d times, want no more once the end has come", c.asked)
	}
	now += time.Millisecond
	open := end{of: &closable{}, now: e.now, deaths: &deaths, told: deaths.Load()}
	if open.come() || open.of.(*closable).asked != 1 {
		t.Fatal("the system is not asked again after a millisecond")
	}
}
