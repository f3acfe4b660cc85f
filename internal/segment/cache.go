package segment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/railhop/railhop/internal/xfer"
)

// CacheOptions configures a [Cache].
type CacheOptions struct {
	Source Source
	Local  *Local       // segment 0; nil if there is none
	Logger *slog.Logger // nil means none
}

// Cache is the targets that were opened, by name and by number. Opening a slow one
// holds up nobody who opens, or uses, another.
type Cache struct {
	source Source
	logger *slog.Logger
	local  *Remote // nil if there is none

	ctx  context.Context // of fetches; ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	byID atomic.Pointer[[]*Remote] // the first is segment 1; stored under mu

	mu      sync.Mutex
	byName  map[string]*Remote
	opening map[string]*fetch

	closing sync.Mutex
	closed  bool
}

// fetch is one request for a descriptor, shared by all who wait for it.
type fetch struct {
	done chan struct{} // closed when the rest is set
	desc *Desc
	err  error
}

func (f *fetch) wait(ctx context.Context) (*Desc, error) {
	select {
	case <-f.done:
		return f.desc, f.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// NewCache returns an empty cache.
func NewCache(opts CacheOptions) *Cache {
	c := &Cache{
		source:  opts.Source,
		logger:  opts.Logger,
		byName:  make(map[string]*Remote),
		opening: make(map[string]*fetch),
	}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	if opts.Local != nil {
		c.local = &Remote{ID: xfer.LocalSegment, Name: opts.Local.Name(), cache: c, local: opts.Local}
	}
	c.byID.Store(new([]*Remote))
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

var errClosed = errors.New("segment: cache is closed")

// Close ends all fetches and waits for them. It may be called twice.
func (c *Cache) Close() error {
	c.closing.Lock()
	c.closed = true
	c.closing.Unlock()
	c.stop()
	c.wg.Wait()
	return nil
}

// Get returns an opened target, or nil. It does not allocate or lock.
func (c *Cache) Get(id xfer.SegmentID) *Remote {
	if id == xfer.LocalSegment {
		return c.local
	}
	all := *c.byID.Load()
	if uint64(id) > uint64(len(all)) {
		return nil
	}
	return all[id-1]
}

// All returns the opened targets, without segment 0.
func (c *Cache) All() []*Remote { return *c.byID.Load() }

// Open returns the target of this name, and fetches its descriptor the first time.
// Leading slashes are dropped. The local segment's name gives segment 0. Callers
// that open one name at the same time share one fetch; a failure is not kept.
func (c *Cache) Open(ctx context.Context, name string) (*Remote, error) {
	name = strings.TrimLeft(name, "/")
	if name == "" {
		return nil, fmt.Errorf("segment: open: no name: %w", xfer.ErrInvalidArgument)
	}
	if c.local != nil && name == c.local.Name {
		return c.local, nil
	}
	c.mu.Lock()
	r, f := c.byName[name], c.opening[name]
	if r == nil && f == nil {
		f = c.fetch(name, func(f *fetch) { c.opened(name, f) })
		c.opening[name] = f
	}
	c.mu.Unlock()
	if r != nil {
		return r, nil
	}
	if _, err := f.wait(ctx); err != nil {
		return nil, fmt.Errorf("segment: open %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byName[name], nil
}

// opened takes the result of a first fetch.
func (c *Cache) opened(name string, f *fetch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.opening, name)
	if f.err != nil {
		return
	}
	old := *c.byID.Load()
	r := &Remote{ID: xfer.SegmentID(len(old) + 1), Name: name, cache: c}
	r.desc.Store(f.desc)
	all := append(old[:len(old):len(old)], r)
	c.byID.Store(&all)
	c.byName[name] = r
	if f.desc.MatrixProblem != "" {
		c.logger.Warn("segment: the target's topology cannot be used, so transfers to it will fail", "segment", name, "problem", f.desc.MatrixProblem)
	}
}

// fetch starts a fetch. Taken is called with the result before anybody who waits
// gets it.
func (c *Cache) fetch(name string, taken func(*fetch)) *fetch {
	f := &fetch{done: make(chan struct{})}
	c.closing.Lock()
	defer c.closing.Unlock()
	if c.closed {
		f.err = errClosed
		close(f.done)
		return f
	}
	c.wg.Go(func() {
		defer close(f.done)
		w, err := c.source.Describe(c.ctx, name)
		if err == nil {
			f.desc = NewDesc(w)
		}
		f.err = err
		taken(f)
	})
	return f
}
