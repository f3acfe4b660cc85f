package segment

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// source answers by name, and counts.
type source struct {
	mu       sync.Mutex
	describe func(ctx context.Context, name string) (*wire.SegmentDesc, error)
	calls    atomic.Int64
}

func (s *source) Describe(ctx context.Context, name string) (*wire.SegmentDesc, error) {
	s.calls.Add(1)
	s.mu.Lock()
	f := s.describe
	s.mu.Unlock()
	return f(ctx, name)
}

func (s *source) set(f func(ctx context.Context, name string) (*wire.SegmentDesc, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.describe = f
}

func ready(context.Context, string) (*wire.SegmentDesc, error) { return remoteDesc(), nil }

var errDown = errors.New("down")

func down(context.Context, string) (*wire.SegmentDesc, error) { return nil, errDown }

func newCache(t *testing.T, s *source, local *Local) *Cache {
	c := NewCache(CacheOptions{Source: s, Local: local})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestOpen(t *testing.T) {
	s := &source{describe: ready}
	local := newLocal(t, twoNICs())
	c := newCache(t, s, local)
	for _, tc := range []struct {
		name string
		id   xfer.SegmentID
	}{
		{"a:1", 1},
		{"a:1", 1},
		{"//a:1", 1},
		{"b:1", 2},
		{"host:15000", 0},
		{"/host:15000", 0},
		{"a:1", 1},
	} {
		r, err := c.Open(t.Context(), tc.name)
		if err != nil || r.ID != tc.id {
			t.Fatalf("Open(%q) = %+v, %v, want segment %d", tc.name, r, err, tc.id)
		}
		if c.Get(tc.id) != r {
			t.Errorf("Get(%d) is another", tc.id)
		}
	}
	if n := s.calls.Load(); n != 2 {
		t.Errorf("%d fetches, want 2", n)
	}
	if c.Get(3) != nil || c.Get(xfer.InvalidSegment) != nil {
		t.Error("Get returns segments that are not open")
	}
	if n := len(c.All()); n != 2 {
		t.Errorf("%d targets, want 2", n)
	}
	for _, name := range []string{"", "/"} {
		if _, err := c.Open(t.Context(), name); !errors.Is(err, xfer.ErrInvalidArgument) {
			t.Errorf("Open(%q): %v", name, err)
		}
	}
	// Segment 0 is always as registered now.
	add(t, local, 0x1000, 16, "cpu:0")
	if err := c.Get(0).Desc().Covers(0x1000, 16); err != nil {
		t.Error(err)
	}
	if d, err := c.Get(0).Refetch(t.Context(), c.Get(0).Desc()); err != nil || d != local.Desc() {
		t.Errorf("Refetch of segment 0: %v", err)
	}
}

func TestOpenFailureIsNotKept(t *testing.T) {
	s := &source{describe: down}
	c := newCache(t, s, nil)
	if _, err := c.Open(t.Context(), "a:1"); !errors.Is(err, errDown) || !strings.Contains(err.Error(), "open a:1") {
		t.Errorf("Open: %v", err)
	}
	s.set(ready)
	if r, err := c.Open(t.Context(), "a:1"); err != nil || r.ID != 1 {
		t.Errorf("Open again: %v, %v", r, err)
	}
	if c.Get(0) != nil {
		t.Error("there is a segment 0")
	}
}

// Many open one slow name with one fetch, and others are not held up.
func TestOpenCoalescesAndDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{describe: func(ctx context.Context, name string) (*wire.SegmentDesc, error) {
			if strings.HasPrefix(name, "slow") {
				time.Sleep(time.Minute)
			}
			return remoteDesc(), nil
		}}
		c := newCache(t, s, nil)
		var wg sync.WaitGroup
		start := time.Now()
		for range 50 {
			wg.Go(func() {
				if r, err := c.Open(t.Context(), "slow:1"); err != nil || r.Name != "slow:1" {
					t.Errorf("Open: %v, %v", r, err)
				}
			})
		}
		synctest.Wait()
		if _, err := c.Open(t.Context(), "quick:1"); err != nil || time.Since(start) > 0 {
			t.Errorf("the quick one took %v, %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Open(ctx, "slow:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("impatient caller: %v", err)
		}
		wg.Wait()
		if n := s.calls.Load(); n != 2 {
			t.Errorf("%d fetches, want 2", n)
		}
	})
}

func TestRefetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{describe: ready}
		c := newCache(t, s, nil)
		r, err := c.Open(t.Context(), "a:1")
		if err != nil {
			t.Fatal(err)
		}
		first := r.Desc()

		// Unchanged but for its time stamp: the pointer stays.
		s.set(func(context.Context, string) (*wire.SegmentDesc, error) {
			w := remoteDesc()
			w.Timestamp = "later"
			return w, nil
		})
		if d, err := r.Refetch(t.Context(), first); err != nil || d != first || r.Desc() != first {
			t.Errorf("unchanged: another descriptor, %v", err)
		}

		// Changed, slowly: callers at the same time share one fetch.
		s.set(func(context.Context, string) (*wire.SegmentDesc, error) {
			time.Sleep(time.Second)
			w := remoteDesc()
			w.Buffers = w.Buffers[:1]
			return w, nil
		})
		before := s.calls.Load()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if d, err := r.Refetch(t.Context(), first); err != nil || len(d.Buffers) != 1 {
					t.Errorf("changed: %v", err)
				}
			})
		}
		wg.Wait()
		if d, err := r.Refetch(t.Context(), first); err != nil || d == first {
			t.Errorf("with a stale descriptor: %v", err)
		}
		if n := s.calls.Load() - before; n != 1 {
			t.Errorf("%d fetches, want 1", n)
		}

		// Failing: fast for 100 ms, and the old one stays.
		second := r.Desc()
		s.set(down)
		before = s.calls.Load()
		for range 10 {
			if _, err := r.Refetch(t.Context(), second); !errors.Is(err, errDown) || !strings.Contains(err.Error(), "refresh a:1") {
				t.Errorf("failing: %v", err)
			}
		}
		if n := s.calls.Load() - before; n != 1 || r.Desc() != second {
			t.Errorf("%d fetches, want 1, and the old descriptor", n)
		}
		time.Sleep(failFast)
		s.set(ready)
		if d, err := r.Refetch(t.Context(), second); err != nil || len(d.Buffers) != 8 {
			t.Errorf("after the pause: %v", err)
		}
	})
}

func TestCovering(t *testing.T) {
	w := remoteDesc()
	all := w.Buffers
	w.Buffers = all[:1]
	s := &source{describe: func(context.Context, string) (*wire.SegmentDesc, error) { return w, nil }}
	c := newCache(t, s, nil)
	r, err := c.Open(t.Context(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	s.set(ready)
	if d, err := r.Covering(t.Context(), 0x1000, 16); err != nil || d != r.Desc() || s.calls.Load() != 1 {
		t.Errorf("known range: %v after %d fetches", err, s.calls.Load())
	}
	if d, err := r.Covering(t.Context(), 0x1000, 0x2000); err != nil || len(d.Buffers) != 8 || s.calls.Load() != 2 {
		t.Errorf("new range: %v after %d fetches", err, s.calls.Load())
	}
	var nc *NotCoveredError
	if _, err := r.Covering(t.Context(), 0x99000, 1); !errors.As(err, &nc) || s.calls.Load() != 3 {
		t.Errorf("bad range: %v after %d fetches", err, s.calls.Load())
	}
	if _, err := r.Covering(t.Context(), 1<<64-1, 2); !errors.Is(err, xfer.ErrInvalidArgument) || s.calls.Load() != 3 {
		t.Errorf("impossible range: %v after %d fetches", err, s.calls.Load())
	}
}

func TestCloseEndsFetches(t *testing.T) {
	entered := make(chan struct{})
	s := &source{describe: func(ctx context.Context, _ string) (*wire.SegmentDesc, error) {
		close(entered)
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	c := newCache(t, s, nil)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Open(t.Context(), "a:1")
		failed <- err
	}()
	<-entered
	c.Close()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("open fetch: %v", err)
	}
	if _, err := c.Open(t.Context(), "b:1"); !errors.Is(err, errClosed) {
		t.Errorf("Open after Close: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestGetDoesNotAllocate(t *testing.T) {
	c := newCache(t, &source{describe: ready}, nil)
	if _, err := c.Open(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { c.Get(1).Desc() }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func TestCacheConcurrently(t *testing.T) {
	var n atomic.Int64
	s := &source{describe: func(_ context.Context, name string) (*wire.SegmentDesc, error) {
		w := remoteDesc()
		if n.Add(1)%3 == 0 {
			return nil, errDown
		}
		w.Buffers = w.Buffers[:1+n.Load()%8]
		return w, nil
	}}
	c := newCache(t, s, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				r, err := c.Open(t.Context(), string(rune('a'+i%3)))
				if err != nil {
					continue
				}
				if d, err := r.Covering(t.Context(), 0x1000*uint64(i+1), 1); err == nil {
					if _, err := d.Select(0x1000*uint64(i+1), 1, 0, "", 0); err != nil {
						t.Error(err)
					}
				}
				if c.Get(r.ID) != r {
					t.Error("Get returns another")
				}
			}
		})
	}
	wg.Wait()
	if n := len(c.All()); n != 3 {
		t.Errorf("%d targets, want 3", n)
	}
}
