package segment

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// Source fetches descriptors. handshake.Dialer is one.
type Source interface {
	Describe(ctx context.Context, name string) (*wire.SegmentDesc, error)
}

// failFast is how long a target fails at once after a fetch that failed.
const failFast = 100 * time.Millisecond

// Remote is an opened target.
type Remote struct {
	ID   xfer.SegmentID
	Name string // as it was opened; the descriptor's may differ

	cache *Cache
	local *Local // of this process's own segment
	desc  atomic.Pointer[Desc]

	mu          sync.Mutex
	fetching    *fetch // in flight, or nil
	failure     error  // of the last fetch
	failedUntil time.Time
}

// Desc returns the descriptor as it is known here.
func (r *Remote) Desc() *Desc {
	if r.local != nil {
		return r.local.Desc()
	}
	return r.desc.Load()
}

// Refetch fetches the descriptor anew, unless it is another than stale already.
// Callers at the same time share one fetch, and a failure is returned to all for
// 100 ms. An unchanged descriptor keeps its pointer.
func (r *Remote) Refetch(ctx context.Context, stale *Desc) (*Desc, error) {
	d, _, err := r.refetch(ctx, stale)
	return d, err
}

// Renew fetches the descriptor by a fetch that begins after the call: one that is
// under way may not know what the target has registered since.
func (r *Remote) Renew(ctx context.Context) error {
	d, joined, err := r.refetch(ctx, r.Desc())
	if joined && err == nil {
		_, _, err = r.refetch(ctx, d)
	}
	return err
}

// refetch reports too whether the fetch was under way already.
func (r *Remote) refetch(ctx context.Context, stale *Desc) (d *Desc, joined bool, err error) {
	r.mu.Lock()
	if now := r.Desc(); now != stale || r.local != nil {
		r.mu.Unlock()
		return now, false, nil
	}
	joined = r.fetching != nil
	if !joined {
		if time.Now().Before(r.failedUntil) {
			defer r.mu.Unlock()
			return nil, false, r.failure
		}
		r.fetching = r.cache.fetch(r.Name, r.fetched)
	}
	f := r.fetching
	r.mu.Unlock()
	d, err = f.wait(ctx)
	return d, joined, err
}

// fetched takes a fetch's result.
func (r *Remote) fetched(f *fetch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fetching = nil
	if f.err != nil {
		f.err = fmt.Errorf("segment: refresh %s: %w", r.Name, f.err)
		r.failure, r.failedUntil = f.err, time.Now().Add(failFast)
		return
	}
	if old := r.desc.Load(); old.same(f.desc) {
		f.desc = old
	}
	r.failure = nil
	r.desc.Store(f.desc)
}

// Covering returns a descriptor whose buffers hold the whole range. If the one
// known here does not, it is fetched once.
func (r *Remote) Covering(ctx context.Context, addr, length uint64) (*Desc, error) {
	d := r.Desc()
	err := d.Covers(addr, length)
	if err == nil || addr+length < addr {
		return d, err
	}
	d, err = r.Refetch(ctx, d)
	if err != nil {
		return nil, err
	}
	return d, d.Covers(addr, length)
}
