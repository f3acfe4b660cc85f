// Package capi is the C API without C: numbers for engines and batches, Mooncake's
// codes for what goes wrong, the deadlines of blocking calls, managed buffers, and
// the log as callers of Mooncake know it.
//
//	C or Python ── cmd/libtransfer_engine ── Library ─> Engine ─> railhop.Engine
//	                                            └─────> Batch  ─> railhop.Batch
//
// It moves nothing itself and holds no pointer of the caller's. Every number that a
// caller hands in is looked up, so that a stale one is an error. All methods may be
// called by any goroutine.
package capi

import (
	"errors"
	"fmt"
	"sync"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/xfer"
)

// Library holds the engines and batches of a process.
type Library struct {
	engines table[*Engine]
	batches table[*Batch]
}

// NewLibrary returns an empty library.
func NewLibrary() *Library { return &Library{} }

// table gives numbers to values, from 1 up and never the same twice.
type table[T any] struct {
	mu   sync.RWMutex
	last uint64
	live map[uint64]T
}

func (t *table[T]) add(v T) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = make(map[uint64]T)
	}
	t.last++
	t.live[t.last] = v
	return t.last
}

func (t *table[T]) get(id uint64) (v T, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v, ok = t.live[id]
	return v, ok
}

// take is get, and the number is used up.
func (t *table[T]) take(id uint64) (v T, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok = t.live[id]
	delete(t.live, id)
	return v, ok
}

// drop uses up the numbers of the values that match.
func (t *table[T]) drop(match func(T) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, v := range t.live {
		if match(v) {
			delete(t.live, id)
		}
	}
}

func (t *table[T]) ids() []uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	ids := make([]uint64, 0, len(t.live))
	for id := range t.live {
		ids = append(ids, id)
	}
	return ids
}

// Engine returns the engine that goes by a number.
func (l *Library) Engine(id uint64) (*Engine, error) {
	e, ok := l.engines.get(id)
	if !ok {
		return nil, fmt.Errorf("capi: there is no engine %d: %w", id, xfer.ErrInvalidArgument)
	}
	return e, nil
}

// Destroy closes an engine and frees what belongs to it. Its number, and those of its
// batches, are used up.
func (l *Library) Destroy(id uint64) error {
	e, ok := l.engines.take(id)
	if !ok {
		return fmt.Errorf("capi: destroy: there is no engine %d: %w", id, xfer.ErrInvalidArgument)
	}
	l.batches.drop(func(b *Batch) bool { return b.engine == e })
	return e.close()
}

// DestroyAll destroys every engine.
func (l *Library) DestroyAll() error {
	var err error
	for _, id := range l.engines.ids() {
		err = errors.Join(err, l.Destroy(id))
	}
	return err
}

// Code is Mooncake's number for an error: negative, or 0 for nil.
func Code(err error) int32 {
	if err == nil {
		return 0
	}
	if c, ok := errors.AsType[xfer.Code](err); ok && c < 0 && c > xfer.ErrRevoked {
		return int32(c)
	}
	return int32(xfer.ErrInvalidArgument)
}

// StatusCode is Mooncake's number for an error of a batch call: positive, or 0 for nil.
func StatusCode(err error) int32 {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, railhop.ErrClosed):
		return 1
	}
	return -Code(err)
}
