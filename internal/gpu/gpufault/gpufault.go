// Package gpufault wraps a GPU provider so that a test can make operations fail or
// stall, picked by name and count. It is for tests and for programs that are
// built for tests.
//
// It owns the counting and nothing else: whatever the hook lets through reaches
// the provider below unchanged, and events are that provider's own. A hook runs
// on the goroutine that called the operation, so one that blocks holds that
// goroutine. What holds a stream in the background, as a slow kernel does, is
// softgpu's SetCopyHook.
package gpufault

import (
	"fmt"
	"sync"

	"github.com/railhop/railhop/internal/gpu"
)

// Operations that a hook is asked about.
const (
	Open         = "open"
	Alloc        = "alloc"
	Free         = "free"
	Export       = "export"
	Import       = "import"
	CloseImport  = "close-import"
	MapHost      = "map-host"
	NewStream    = "new-stream"
	NewEvent     = "new-event"
	RecordCaller = "record-caller"
	SyncCaller   = "sync-caller"
	CopyIn       = "copy-in"
	CopyOut      = "copy-out"
	Wait         = "wait"
	Copy         = "copy"
	Write64      = "write64"
	Record       = "record"
)

// Hook is called before an operation, the nth of its name in this provider,
// counted from 1. An error is returned in the operation's place. It may block,
// and is called by several goroutines.
type Hook func(op string, n int) error

// Fail returns a hook that fails operations first to last of a name with err,
// and lets all else through. Last 0 means for ever.
func Fail(op string, first, last int, err error) Hook {
	return func(o string, n int) error {
		if o != op || n < first || last != 0 && n > last {
			return nil
		}
		return fmt.Errorf("gpufault: %s %d: %w", op, n, err)
	}
}

// All returns a hook that asks each of hooks, until one fails.
func All(hooks ...Hook) Hook {
	return func(op string, n int) error {
		for _, h := range hooks {
			if err := h(op, n); err != nil {
				return err
			}
		}
		return nil
	}
}

// Gate holds one operation until it is released.
type Gate struct {
	op      string
	n       int
	reached chan struct{}
	opened  chan struct{}
	release sync.Once
}

// Hold returns a gate for the nth operation of a name.
func Hold(op string, n int) *Gate {
	return &Gate{op: op, n: n, reached: make(chan struct{}), opened: make(chan struct{})}
}

// Hook is the gate's [Hook].
func (g *Gate) Hook(op string, n int) error {
	if op == g.op && n == g.n {
		close(g.reached)
		<-g.opened
	}
	return nil
}

// Reached is closed when the operation has come to the gate.
func (g *Gate) Reached() <-chan struct{} { return g.reached }

// Release lets the operation go on, or through if it has not come yet.
func (g *Gate) Release() { g.release.Do(func() { close(g.opened) }) }

// Provider is a provider with faults.
type Provider struct {
	gpu.Provider
	hook Hook

	mu     sync.Mutex
	counts map[string]int
}

// New returns p with hook before its operations. A nil hook only counts.
func New(p gpu.Provider, hook Hook) *Provider {
	return &Provider{Provider: p, hook: hook, counts: make(map[string]int)}
}

// Count returns how many operations of a name were asked for.
func (p *Provider) Count(op string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[op]
}

func (p *Provider) before(op string) error {
	p.mu.Lock()
	p.counts[op]++
	n := p.counts[op]
	p.mu.Unlock()
	if p.hook == nil {
		return nil
	}
	return p.hook(op, n)
}

// Open opens a device with faults; the result is a *[Device].
func (p *Provider) Open(busID string) (gpu.Device, error) {
	return ask(p, Open, func() (gpu.Device, error) {
		d, err := p.Provider.Open(busID)
		if err != nil {
			return nil, err
		}
		return &Device{Device: d, p: p}, nil
	})
}

// ask runs do unless the hook fails the operation.
func ask[T any](p *Provider, op string, do func() (T, error)) (T, error) {
	if err := p.before(op); err != nil {
		var zero T
		return zero, err
	}
	return do()
}

func (p *Provider) do(op string, do func() error) error {
	if err := p.before(op); err != nil {
		return err
	}
	return do()
}

// Device is a device with faults. Its embedded Device is the one below.
type Device struct {
	gpu.Device
	p *Provider
}

func (d *Device) Alloc(size uint64) (uint64, error) {
	return ask(d.p, Alloc, func() (uint64, error) { return d.Device.Alloc(size) })
}

func (d *Device) Free(addr uint64) error {
	return d.p.do(Free, func() error { return d.Device.Free(addr) })
}

func (d *Device) Export(addr uint64) (gpu.Handle, error) {
	return ask(d.p, Export, func() (gpu.Handle, error) { return d.Device.Export(addr) })
}

func (d *Device) Import(h gpu.Handle, size uint64) (uint64, error) {
	return ask(d.p, Import, func() (uint64, error) { return d.Device.Import(h, size) })
}

func (d *Device) CloseImport(addr uint64) error {
	return d.p.do(CloseImport, func() error { return d.Device.CloseImport(addr) })
}

func (d *Device) MapHost(mem []byte) (uint64, func() error, error) {
	if err := d.p.before(MapHost); err != nil {
		return 0, nil, err
	}
	return d.Device.MapHost(mem)
}

func (d *Device) NewStream() (gpu.Stream, error) {
	return ask(d.p, NewStream, func() (gpu.Stream, error) {
		s, err := d.Device.NewStream()
		if err != nil {
			return nil, err
		}
		return &Stream{Stream: s, p: d.p}, nil
	})
}

func (d *Device) NewEvent() (gpu.Event, error) {
	return ask(d.p, NewEvent, d.Device.NewEvent)
}

func (d *Device) RecordCaller(stream uint64, e gpu.Event) error {
	return d.p.do(RecordCaller, func() error { return d.Device.RecordCaller(stream, e) })
}

func (d *Device) SyncCaller(stream uint64) error {
	return d.p.do(SyncCaller, func() error { return d.Device.SyncCaller(stream) })
}

func (d *Device) CopyIn(dst uint64, src []byte) error {
	return d.p.do(CopyIn, func() error { return d.Device.CopyIn(dst, src) })
}

func (d *Device) CopyOut(dst []byte, src uint64) error {
	return d.p.do(CopyOut, func() error { return d.Device.CopyOut(dst, src) })
}

// Stream is a stream with faults. Its embedded Stream is the one below.
type Stream struct {
	gpu.Stream
	p *Provider
}

func (s *Stream) Wait(e gpu.Event) error {
	return s.p.do(Wait, func() error { return s.Stream.Wait(e) })
}

func (s *Stream) Copy(copies []gpu.Copy) error {
	return s.p.do(Copy, func() error { return s.Stream.Copy(copies) })
}

func (s *Stream) Write64(addr, value uint64) error {
	return s.p.do(Write64, func() error { return s.Stream.Write64(addr, value) })
}

func (s *Stream) Record(e gpu.Event) error {
	return s.p.do(Record, func() error { return s.Stream.Record(e) })
}
