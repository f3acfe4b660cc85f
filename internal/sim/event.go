package sim

import (
	"cmp"
	"container/heap"
	"slices"
	"testing/synctest"
	"time"
)

// event is something that can happen.
type event struct {
	at    time.Duration
	lo    time.Duration // the delay is drawn between the two
	hi    time.Duration
	key   string // unique among those that come at the same time
	seq   uint64
	owner *proc  // it waits while this process is stopped; nil for nobody
	what  string // for the trace
	fire  func()
	// lost is called instead of fire once the owner is a zombie that is cleared away.
	lost func()
}

type eventHeap []*event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(*event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

func (w *world) now() time.Duration { return time.Since(w.start) }

// add leaves an event for the driver. Any goroutine may call it.
func (w *world) add(e *event) {
	w.mu.Lock()
	w.incoming = append(w.incoming, e)
	w.mu.Unlock()
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// after is add with a delay between lo and hi.
func (w *world) after(owner *proc, lo, hi time.Duration, key, what string, fire func()) *event {
	e := &event{lo: lo, hi: hi, key: key, owner: owner, what: what, fire: fire}
	w.add(e)
	return e
}

// call blocks the goroutine of a process until the driver lets f happen. It
// fails if the process is cleared away first.
func (w *world) call(p *proc, lo, hi time.Duration, key, what string, f func() error) error {
	done := make(chan error, 1)
	if p.zombie() {
		return errZombie
	}
	w.add(&event{
		lo: lo, hi: hi, key: key, owner: p, what: what,
		fire: func() { done <- f() },
		lost: func() { done <- errZombie },
	})
	return <-done
}

// settle takes what the goroutines have left since the last event.
func (w *world) settle() {
	synctest.Wait()
	w.mu.Lock()
	in := w.incoming
	w.incoming = nil
	w.mu.Unlock()
	w.hurt()
	if len(in) == 0 {
		return
	}
	slices.SortStableFunc(in, func(a, b *event) int { return cmp.Compare(a.key, b.key) })
	now := w.now()
	for _, e := range in {
		e.at = now + w.between(e.lo, e.hi)
		w.ids++
		e.seq = w.ids
		heap.Push(&w.waiting, e)
	}
}

// between draws a duration, small ones more often.
func (w *world) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	d := hi - lo
	switch w.rng.IntN(8) {
	case 0:
	case 1, 2, 3, 4:
		d /= 16
	default:
		d /= 4
	}
	return lo + time.Duration(w.rng.Int64N(int64(max(d, 1))))
}

func (w *world) chance(n, of int) bool { return w.rng.IntN(of) < n }
