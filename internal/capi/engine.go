package capi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/xfer"
)

// Engine is an engine behind a number.
type Engine struct {
	library *Library
	log     *slog.Logger
	env     config.Env

	mu     sync.Mutex
	cfg    railhop.Config
	engine *railhop.Engine // nil until it is known what it runs on
	early  []railhop.Region
	closed bool
	byGPU  map[int][]config.Device // the NICs of each GPU, if they are given so
	meter  *meter                  // nil unless MC_TE_METRIC asks for one

	spare   spares
	managed managed

	namesMu   sync.Mutex
	forgotten map[string]bool // names to be asked for anew
	opened    map[string]railhop.SegmentID

	errMu   sync.Mutex
	lastErr string
}

// use returns the engine, started if need be.
func (e *Engine) use() (*railhop.Engine, error) { return e.start(e.cfg.Protocol) }

func (e *Engine) close() error {
	e.mu.Lock()
	engine := e.engine
	e.closed, e.engine = true, nil
	e.mu.Unlock()
	e.meter.close()
	if engine == nil {
		return nil
	}
	err := engine.Close()
	if err != nil {
		e.log.Warn("engine closed", "err", err)
	}
	return errors.Join(err, e.managed.free())
}

// fail notes why a call has failed, and says so once.
func (e *Engine) fail(what string, err error, attrs ...any) error {
	e.note(what, err)
	e.log.Error(headline(what, err), append(attrs, "code", Code(err), "err", err)...)
	return err
}

// note keeps why a call has failed.
func (e *Engine) note(what string, err error) {
	e.errMu.Lock()
	defer e.errMu.Unlock()
	e.lastErr = what + ": " + err.Error()
}

// openError is why a segment could not be opened.
type openError struct {
	name string
	err  error
}

func (e *openError) Error() string { return e.err.Error() }

func (e *openError) Unwrap() error { return e.err }

// headline begins as Mooncake's message of the same cause does, where it has one.
func headline(what string, err error) string {
	open, isOpen := errors.AsType[*openError](err)
	switch {
	case isOpen:
		return "Failed to get segment descriptor for segment " + open.name + ": " + what
	case errors.Is(err, xfer.ErrAddressOverlapped):
		return "Transfer Engine does not support overlapped memory region"
	case errors.Is(err, context.DeadlineExceeded):
		return "Sync batch data transfer timeout: " + what
	}
	return what + " failed"
}

// LastError is why the last call that failed did.
func (e *Engine) LastError() string {
	e.errMu.Lock()
	defer e.errMu.Unlock()
	return e.lastErr
}

// Name is the session by which peers open the engine.
func (e *Engine) Name() (string, error) {
	engine, err := e.use()
	if err != nil {
		return "", e.fail("name", err)
	}
	return engine.Name(), nil
}

// Port is the port of the handshake server.
func (e *Engine) Port() (int, error) {
	engine, err := e.use()
	if err != nil {
		return -1, e.fail("port", err)
	}
	return engine.Port(), nil
}

// bounded is a context for what has no deadline of its own.
func (e *Engine) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), e.env.Log.TransferTimeout)
}

// open opens a segment.
func (e *Engine) open(ctx context.Context, name string) (*railhop.Engine, railhop.SegmentID, error) {
	engine, err := e.use()
	if err != nil {
		return nil, railhop.InvalidSegment, err
	}
	e.namesMu.Lock()
	_, known := e.opened[name]
	again := e.forgotten[name]
	e.namesMu.Unlock()
	if !known {
		e.log.Info("transferSync, cache not found, openSegment with target " + name)
	}
	id, err := engine.OpenSegment(ctx, name)
	if err != nil {
		return nil, id, &openError{name, err}
	}
	if !known {
		e.namesMu.Lock()
		if e.opened == nil {
			e.opened = make(map[string]railhop.SegmentID)
		}
		e.opened[name] = id
		e.namesMu.Unlock()
	}
	if !again {
		return engine, id, nil
	}
	if err := engine.RefreshSegment(ctx, id); err != nil {
		return nil, railhop.InvalidSegment, &openError{name, err}
	}
	e.namesMu.Lock()
	delete(e.forgotten, name)
	e.namesMu.Unlock()
	return engine, id, nil
}

// OpenSegment returns the number of a peer's segment. With fresh the peer is asked even
// if it is known.
func (e *Engine) OpenSegment(name string, fresh bool) (int32, error) {
	ctx, cancel := e.bounded()
	defer cancel()
	engine, id, err := e.open(ctx, name)
	if err == nil && fresh {
		err = engine.RefreshSegment(ctx, id)
	}
	if err == nil && id > 1<<31-1 {
		err = fmt.Errorf("capi: segment %d has no number in C", id)
	}
	if err != nil {
		return -1, e.fail("open segment", err, "segment", name)
	}
	return int32(id), nil
}

// ForgetSegment has the peer asked anew when its segment is opened the next time.
func (e *Engine) ForgetSegment(name string) {
	e.namesMu.Lock()
	defer e.namesMu.Unlock()
	if e.forgotten == nil {
		e.forgotten = make(map[string]bool)
	}
	e.forgotten[name] = true
}

// SyncSegments asks all known peers anew. One that does not answer is logged.
func (e *Engine) SyncSegments() error {
	engine, err := e.use()
	if err != nil {
		return e.fail("sync segments", err)
	}
	e.namesMu.Lock()
	opened := make(map[string]railhop.SegmentID, len(e.opened))
	for name, id := range e.opened {
		opened[name] = id
	}
	e.namesMu.Unlock()
	ctx, cancel := e.bounded()
	defer cancel()
	for name, id := range opened {
		if err := engine.RefreshSegment(ctx, id); err != nil {
			e.log.Warn("Failed to get segment descriptor for segment "+name, "err", err)
		}
	}
	return nil
}

// FirstBuffer is the address of the first buffer that a peer offers.
func (e *Engine) FirstBuffer(name string) (uint64, error) {
	ctx, cancel := e.bounded()
	defer cancel()
	engine, id, err := e.open(ctx, name)
	if err != nil {
		return 0, e.fail("first buffer", err, "segment", name)
	}
	buffers, err := engine.Buffers(id)
	if err == nil && len(buffers) == 0 {
		if err = engine.RefreshSegment(ctx, id); err == nil {
			buffers, err = engine.Buffers(id)
		}
	}
	if err == nil && len(buffers) == 0 {
		err = fmt.Errorf("capi: segment %s offers no buffer: %w", name, xfer.ErrAddressNotFound)
	}
	if err != nil {
		return 0, e.fail("first buffer", err, "segment", name)
	}
	return buffers[0].Addr, nil
}

// Probe asks whether the engine behind a name answers.
func (e *Engine) Probe(name string) error {
	engine, err := e.use()
	if err == nil {
		ctx, cancel := e.bounded()
		defer cancel()
		err = engine.Probe(ctx, name)
	}
	if err != nil {
		return e.fail("probe", err, "peer", name)
	}
	return nil
}

// Notify delivers a message to a segment.
func (e *Engine) Notify(segment uint64, n railhop.Notification) error {
	engine, err := e.use()
	if err == nil {
		ctx, cancel := e.bounded()
		defer cancel()
		err = engine.Notify(ctx, railhop.SegmentID(segment), n)
		if errors.Is(err, xfer.ErrInvalidArgument) {
			err = fmt.Errorf("%w: %w", xfer.ErrMetadata, err) // Mooncake's code for it
		}
	}
	if err != nil {
		return e.fail("notify", err, "segment", segment)
	}
	return nil
}

// Notifications are those that have come since the last call.
func (e *Engine) Notifications() ([]railhop.Notification, error) {
	engine, err := e.use()
	if err != nil {
		return nil, e.fail("notifications", err)
	}
	return engine.Notifications(), nil
}

// Folder is where the engine's group of ranks keeps its files, or "".
func (e *Engine) Folder() string {
	if !e.env.PXN.On() {
		return ""
	}
	return filepath.Join(registry.DefaultRoot, e.env.PXN.GroupID)
}

// deadline bounds a blocking transfer of so many bytes: 1 ns a byte is added.
func (e *Engine) deadline(start time.Time, bytes uint64) time.Time {
	return start.Add(e.env.Log.TransferTimeout + time.Duration(min(bytes, 1<<62-1)))
}
