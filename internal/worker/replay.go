package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/workload"
)

// ReplayMemory is the name of a rank's KV pools.
const ReplayMemory = "kv pools"

// Replayed describes a plan that a rank has made for itself.
type Replayed struct {
	PrefillBytes uint64 `json:"prefill_bytes"`
	DecodeBytes  uint64 `json:"decode_bytes"`
	Chunks       int    `json:"chunks"`
}

// ReplaySendArgs has a prefill rank send all its batches.
type ReplaySendArgs struct {
	Engine   string   `json:"engine"`
	Rank     int      `json:"rank"`
	Segments []uint64 `json:"segments"` // by decode rank
	Addrs    []uint64 `json:"addrs"`    // of their pools
	Start    int64    `json:"start_ns"` // of the trace, on the machine's monotonic clock
	Requests int      `json:"requests"` // of a batch of the engine's
	Window   int      `json:"window"`   // of them in flight
}

// ReplayLanded is the event of a batch of the plan that has arrived.
type ReplayLanded struct {
	Flow    int   `json:"flow"`
	Chunk   int   `json:"chunk"`
	Request int   `json:"request"`
	Final   bool  `json:"final"` // the last of its chunk and flow
	Ends    bool  `json:"ends"`  // the chunk is the last of its request
	At      int64 `json:"at"`    // when the request arrived, from Start on, in ns
	Sent    int64 `json:"sent"`  // when the batch was handed to the engine
	Landed  int64 `json:"landed"`
}

// ReplayAllowArgs allows what overwrites chunks up to Chunk.
type ReplayAllowArgs struct {
	Chunk int `json:"chunk"`
}

// ReplayCheckArgs has a decode rank check the next batch of a flow.
type ReplayCheckArgs struct {
	Flow int `json:"flow"`
	// Every span of this number is compared; 1 means all.
	Every int `json:"every"`
}

// replay is a plan at work.
type replay struct {
	plan *workload.Plan

	mu      sync.Mutex
	allowed int
	changed chan struct{}     // closed when allowed has risen
	checked map[int]*checking // by flow
}

// checking is how far a flow has been checked. It belongs to one command at a
// time.
type checking struct {
	it    *workload.Iterator
	batch workload.Batch
	spans int // seen so far
	buf   []byte
}

func (h *host) replayLoad(_ context.Context, o workload.Options, _ func(any)) (Replayed, error) {
	plan, err := workload.New(o)
	if err != nil {
		return Replayed{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.replay = &replay{plan: plan, allowed: -1, changed: make(chan struct{}), checked: make(map[int]*checking)}
	return Replayed{PrefillBytes: plan.PrefillBytes(), DecodeBytes: plan.DecodeBytes(), Chunks: plan.Chunks()}, nil
}

func (h *host) loaded() (*replay, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.replay == nil {
		return nil, errors.New("worker: no plan is loaded")
	}
	return h.replay, nil
}

func (h *host) replayAllow(_ context.Context, a ReplayAllowArgs, _ func(any)) (None, error) {
	r, err := h.loaded()
	if err != nil {
		return None{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.Chunk > r.allowed {
		r.allowed = a.Chunk
		close(r.changed)
		r.changed = make(chan struct{})
	}
	return None{}, nil
}

// await waits until a chunk may be overwritten.
func (r *replay) await(ctx context.Context, chunk int) error {
	for {
		r.mu.Lock()
		allowed, changed := r.allowed, r.changed
		r.mu.Unlock()
		if chunk <= allowed {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (h *host) replaySend(ctx context.Context, a ReplaySendArgs, emit func(any)) (Streamed, error) {
	var s Streamed
	r, err := h.loaded()
	if err != nil {
		return s, err
	}
	e, err := h.engine(a.Engine)
	if err != nil {
		return s, err
	}
	m, err := h.named(ReplayMemory)
	if err != nil {
		return s, err
	}
	if a.Requests < 1 || a.Window < 1 || len(a.Segments) != len(a.Addrs) {
		return s, fmt.Errorf("worker: replay with %d requests a batch, %d batches in flight, %d segments and %d addresses", a.Requests, a.Window, len(a.Segments), len(a.Addrs))
	}
	p := newPipeline(ctx, e, a.Window, a.Requests)
	began := time.Now()
	var b workload.Batch
	reqs := make([]railhop.Request, 0, a.Requests)
	for it := r.plan.From(a.Rank); it.Next(&b) && err == nil; {
		if b.To >= len(a.Segments) {
			err = fmt.Errorf("worker: replay: decode rank %d of %d", b.To, len(a.Segments))
			break
		}
		if err = r.await(p.ctx, b.After); err != nil {
			break
		}
		if err = sleepUntil(p.ctx, a.Start+int64(b.At)); err != nil {
			break
		}
		landed := ReplayLanded{Flow: b.Flow, Chunk: b.Chunk, Request: b.Request, Final: b.Final, Ends: b.Ends, At: int64(b.At)}
		if landed.Sent, err = monotonic(); err != nil {
			break
		}
		landed.Sent -= a.Start
		for spans := b.Spans; len(spans) > 0 && err == nil; {
			part := spans[:min(len(spans), a.Requests)]
			spans = spans[len(part):]
			reqs = reqs[:0]
			bytes := uint64(0)
			for _, s := range part {
				reqs = append(reqs, railhop.Request{
					Op: railhop.Write, Source: m.addr + s.Src, Target: railhop.SegmentID(a.Segments[b.To]), TargetAddr: a.Addrs[b.To] + s.Dst, Length: s.Length,
				})
				bytes += s.Length
			}
			var tell func()
			if len(spans) == 0 {
				tell = func() {
					if now, err := monotonic(); err == nil {
						landed.Landed = now - a.Start
					}
					emit(landed)
				}
			}
			err = p.submit(reqs, bytes, tell)
		}
	}
	if failed := p.close(); failed != nil {
		err = failed
	}
	return Streamed{Bytes: p.bytes.Load(), Requests: p.requests.Load(), Nanoseconds: int64(time.Since(began))}, err
}

// sleepUntil waits until the machine's clock has reached an instant.
func sleepUntil(ctx context.Context, at int64) error {
	now, err := monotonic()
	if err != nil || now >= at {
		return err
	}
	t := time.NewTimer(time.Duration(at - now))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// replayCheck compares the next batch of a flow. Nothing may overwrite it before
// the answer: the parent allows that afterwards.
func (h *host) replayCheck(_ context.Context, a ReplayCheckArgs, _ func(any)) (Verified, error) {
	v := Verified{First: -1}
	r, err := h.loaded()
	if err != nil {
		return v, err
	}
	m, err := h.named(ReplayMemory)
	if err != nil {
		return v, err
	}
	if a.Every < 1 || a.Flow < 0 || a.Flow >= len(r.plan.Flows()) {
		return v, fmt.Errorf("worker: check every %d-th span of flow %d of %d", a.Every, a.Flow, len(r.plan.Flows()))
	}
	r.mu.Lock()
	c := r.checked[a.Flow]
	if c == nil {
		c = &checking{it: r.plan.Through(a.Flow)}
		r.checked[a.Flow] = c
	}
	r.mu.Unlock()
	if !c.it.Next(&c.batch) {
		return v, fmt.Errorf("worker: flow %d has no further batch", a.Flow)
	}
	seed := r.plan.ContentSeed(c.batch.From)
	for _, s := range c.batch.Spans {
		c.spans++
		if c.spans%a.Every != 0 {
			continue
		}
		if uint64(len(c.buf)) < s.Length {
			c.buf = make([]byte, s.Length)
		}
		got := c.buf[:s.Length]
		if err := m.get(got, s.Dst); err != nil {
			return v, err
		}
		first, n := pattern.Mismatch(got, seed, s.Src)
		if n > 0 && v.First < 0 {
			v.First = int64(s.Dst) + int64(first)
		}
		v.Bytes += s.Length
		v.Mismatched += uint64(n)
	}
	return v, nil
}
