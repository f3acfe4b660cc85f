package worker

import (
	"context"
	"encoding/json"

	"github.com/railhop/railhop/internal/workload"
)

// Open opens an engine.
func (p *Proc) Open(ctx context.Context, a OpenArgs) (Opened, error) {
	return Call[Opened](ctx, p, "open", a, nil)
}

// CloseEngine closes an engine.
func (p *Proc) CloseEngine(ctx context.Context, engine string) error {
	_, err := Call[None](ctx, p, "close", EngineArgs{engine}, nil)
	return err
}

// Alloc allocates memory and returns its address in the worker.
func (p *Proc) Alloc(ctx context.Context, a AllocArgs) (uint64, error) {
	r, err := Call[Allocated](ctx, p, "alloc", a, nil)
	return r.Addr, err
}

// Free frees memory.
func (p *Proc) Free(ctx context.Context, memory string) error {
	_, err := Call[None](ctx, p, "free", MemoryArgs{memory}, nil)
	return err
}

// Register registers memory with an engine.
func (p *Proc) Register(ctx context.Context, a RegisterArgs) error {
	_, err := Call[None](ctx, p, "register", a, nil)
	return err
}

// Unregister undoes Register.
func (p *Proc) Unregister(ctx context.Context, engine, memory string) error {
	_, err := Call[None](ctx, p, "unregister", RegisterArgs{Engine: engine, Memory: memory}, nil)
	return err
}

// Fill writes a pattern to memory.
func (p *Proc) Fill(ctx context.Context, a FillArgs) error {
	_, err := Call[None](ctx, p, "fill", a, nil)
	return err
}

// Poison sets all bytes of memory to a value.
func (p *Proc) Poison(ctx context.Context, memory string, value byte) error {
	return p.Fill(ctx, FillArgs{Memory: memory, Poison: true, Value: value})
}

// Verify compares memory with what Fill writes for the same arguments.
func (p *Proc) Verify(ctx context.Context, a FillArgs) (Verified, error) {
	return Call[Verified](ctx, p, "verify", a, nil)
}

// Segment opens a segment and returns its id.
func (p *Proc) Segment(ctx context.Context, engine, name string) (uint64, error) {
	r, err := Call[Segment](ctx, p, "segment", SegmentArgs{engine, name}, nil)
	return r.ID, err
}

// Stream moves a range. progress hears how far it is, and may be nil.
func (p *Proc) Stream(ctx context.Context, a StreamArgs, progress func(Streamed)) (Streamed, error) {
	return Call[Streamed](ctx, p, "stream", a, events(progress))
}

// Transfer moves spans as one batch.
func (p *Proc) Transfer(ctx context.Context, a TransferArgs) (Transferred, error) {
	return Call[Transferred](ctx, p, "transfer", a, nil)
}

// Stats returns an engine's counters.
func (p *Proc) Stats(ctx context.Context, engine string) (Stats, error) {
	return Call[Stats](ctx, p, "stats", EngineArgs{engine}, nil)
}

// Counters returns what the worker's NICs have counted, by peer.
func (p *Proc) Counters(ctx context.Context) ([]Counter, error) {
	return Call[[]Counter](ctx, p, "counters", None{}, nil)
}

// Usage returns what the process has used.
func (p *Proc) Usage(ctx context.Context) (Usage, error) {
	return Call[Usage](ctx, p, "usage", None{}, nil)
}

// PlainReceive receives a plain TCP stream. listening hears where.
func (p *Proc) PlainReceive(ctx context.Context, a PlainArgs, listening func(Listening)) (Streamed, error) {
	return Call[Streamed](ctx, p, "plain_receive", a, events(listening))
}

// PlainSend sends a plain TCP stream.
func (p *Proc) PlainSend(ctx context.Context, a PlainArgs) (Streamed, error) {
	return Call[Streamed](ctx, p, "plain_send", a, nil)
}

// events makes a function of typed events one of raw events.
func events[E any](f func(E)) func(json.RawMessage) {
	if f == nil {
		return nil
	}
	return func(raw json.RawMessage) {
		var e E
		if json.Unmarshal(raw, &e) == nil {
			f(e)
		}
	}
}

// ReplayLoad has the worker work a workload out.
func (p *Proc) ReplayLoad(ctx context.Context, o workload.Options) (Replayed, error) {
	return Call[Replayed](ctx, p, "replay_load", o, nil)
}

// ReplaySend sends all batches of a prefill rank. landed hears of each.
func (p *Proc) ReplaySend(ctx context.Context, a ReplaySendArgs, landed func(ReplayLanded)) (Streamed, error) {
	return Call[Streamed](ctx, p, "replay_send", a, events(landed))
}

// ReplayAllow tells a prefill rank which chunks may be overwritten.
func (p *Proc) ReplayAllow(ctx context.Context, chunk int) error {
	_, err := Call[None](ctx, p, "replay_allow", ReplayAllowArgs{chunk}, nil)
	return err
}

// ReplayCheck has a decode rank check the next batch of a flow.
func (p *Proc) ReplayCheck(ctx context.Context, a ReplayCheckArgs) (Verified, error) {
	return Call[Verified](ctx, p, "replay_check", a, nil)
}
