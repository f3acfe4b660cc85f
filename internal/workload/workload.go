// Package workload turns the requests of a trace into the writes that carry their
// KV cache from prefill ranks to decode ranks, as SGLang and vLLM do it.
//
// Each rank holds pools of pages, one for the keys and one for the values of each
// layer, back to back in one buffer of its own:
//
//	| K layer 0 | K layer 1 | ... | V layer 0 | ...      a pool: pages of PageTokens tokens
//	| token 0: head, head, ... | token 1: ... |          a page: this rank's heads only
//
// Where both sides of a [Flow] hold the same heads, whole pages travel. Where
// their tensor parallel sizes differ, each token of each page is a span of its
// own, since its heads are a slice of a longer row on one side: the small-block,
// huge-batch case.
//
// A [Plan] is a function of its [Options]: every process of a run makes its own
// and gets the same. It moves no byte and knows no engine. Plans are read-only and
// may be shared between goroutines; an [Iterator] belongs to one.
package workload

import (
	"fmt"
	"math"
	"time"

	"github.com/railhop/railhop/internal/trace"
)

// Defaults of [Options].
const (
	DefaultMaxBytes    = 16 << 30
	DefaultPoolBytes   = 256 << 20
	DefaultChunkTokens = 8192
	DefaultMaxSpans    = 16384
)

// MaxTP is the largest tensor parallel size.
const MaxTP = 64

// minPages is the least number of pages of a pool: below it, a run would consist
// of waiting for pages.
const minPages = 64

// Options describe a workload. Zero values mean what each field says.
type Options struct {
	Model     Model
	PrefillTP int // ranks that send, 1 to 64
	DecodeTP  int // ranks that receive, 1 to 64
	Mapping   Mapping
	Rails     int // rails of a host; 0: as many as the larger side has ranks
	Requests  []trace.Request
	Speed     float64 // how many times as fast as the trace; 0: all at once
	Seed      uint64  // of page placement, shuffled rails and contents

	// Reuse leaves out the blocks that the decode side holds already, by hash id,
	// and ReuseBlocks is how many it can hold; 0 is no limit.
	Reuse       bool
	ReuseBlocks int

	MaxBytes    uint64 // bytes of the whole run; 0: 16 GiB
	PoolBytes   uint64 // bytes of one rank's pools; 0: 256 MiB
	ChunkTokens int    // tokens that are prefilled and sent at once; 0: 8192
	MaxSpans    int    // spans of a batch, unless one layer of a chunk has more; 0: 16384
}

// Span is one contiguous run of a batch. Offsets count from the start of the
// sending and of the receiving rank's buffer.
type Span struct {
	Src, Dst, Length uint64
}

// Batch is a set of spans from one rank to another.
type Batch struct {
	Request int           // index into the requests
	Chunk   int           // counts the chunks of all requests, in the order of sending
	At      time.Duration // when the request arrives, from the start of the run
	Flow    int           // index into [Plan.Flows]
	From    int           // prefill rank
	To      int           // decode rank
	// After is the last chunk whose pages this batch overwrites, -1 if there is
	// none: that chunk has to be received, and checked, before this one is sent.
	After int
	Final bool // the last batch of its chunk and flow
	Ends  bool // the chunk is the last of its request
	Bytes uint64
	Spans []Span // valid until the next call of Next
}

// Plan is a workload worked out.
type Plan struct {
	opts  Options
	model Model // with the layers that Scale has left
	flows []Flow
	scale Scale
	jobs  []job
	steps []step

	srcPages, dstPages int      // of a pool
	srcHeads, dstHeads int      // of a rank
	place              []uint32 // the order in which pages of the decode side are used
}

// job is what is to be sent of one request.
type job struct {
	request int
	pages   int
	held    int // tokens left out
}

// step is a chunk: pages first to first+pages, counted over the whole run.
type step struct {
	first   uint64
	pages   int32
	request int32
	after   int32
	ends    bool
}

// New works a workload out. Its errors name the value that is wrong and what is
// valid.
func New(opts Options) (*Plan, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	p := &Plan{opts: opts, model: opts.Model}
	var err error
	if p.flows, err = flows(&opts); err != nil {
		return nil, err
	}
	p.srcHeads, p.dstHeads = shard(&opts.Model, opts.PrefillTP), shard(&opts.Model, opts.DecodeTP)
	p.jobs = jobs(&opts)
	if err := p.fit(); err != nil {
		return nil, err
	}
	if err := p.cut(); err != nil {
		return nil, err
	}
	return p, nil
}

// complete fills in defaults and checks what needs no other value.
func (o *Options) complete() error {
	if err := o.Model.validate(); err != nil {
		return err
	}
	if len(o.Requests) == 0 {
		return fmt.Errorf("workload: no requests")
	}
	for i := range o.Requests {
		if err := o.Requests[i].Validate(); err != nil {
			return fmt.Errorf("workload: request %d: %w", i, err)
		}
		if i > 0 && o.Requests[i].Timestamp < o.Requests[i-1].Timestamp {
			return fmt.Errorf("workload: request %d arrives before request %d", i, i-1)
		}
	}
	if !(o.Speed >= 0) || math.IsInf(o.Speed, 0) {
		return fmt.Errorf("workload: speed %v, valid are 0 (all at once) and positive numbers", o.Speed)
	}
	for _, f := range []struct {
		name  string
		value *int
		zero  int
		max   int
	}{
		{"chunk tokens", &o.ChunkTokens, DefaultChunkTokens, trace.MaxTokens},
		{"spans a batch", &o.MaxSpans, DefaultMaxSpans, 1 << 24},
		{"reuse blocks", &o.ReuseBlocks, 0, math.MaxInt32},
	} {
		if *f.value < 0 || *f.value > f.max {
			return fmt.Errorf("workload: %d %s, valid is 0 to %d", *f.value, f.name, f.max)
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.PoolBytes == 0 {
		o.PoolBytes = DefaultPoolBytes
	}
	return nil
}

// Model is the model with as many layers as are replayed.
func (p *Plan) Model() Model { return p.model }

// Scale tells how the workload was made to fit.
func (p *Plan) Scale() Scale { return p.scale }

// Flows lists who sends to whom.
func (p *Plan) Flows() []Flow { return append([]Flow(nil), p.flows...) }

// Requests is how many requests are replayed, those with nothing to send included.
func (p *Plan) Requests() int { return len(p.jobs) }

// Chunks is how many chunks the requests are cut into.
func (p *Plan) Chunks() int { return len(p.steps) }

// ReusedTokens is how many tokens are left out because the decode side holds them.
func (p *Plan) ReusedTokens() uint64 {
	var n uint64
	for _, j := range p.jobs {
		n += uint64(j.held)
	}
	return n
}

// FlowBytes is how much goes through one flow in the whole run.
func (p *Plan) FlowBytes(flow int) uint64 {
	return p.pages() * uint64(p.model.Layers) * p.pageBytes(&p.flows[flow])
}

// PrefillBytes and DecodeBytes are the sizes of one rank's buffer.
func (p *Plan) PrefillBytes() uint64 { return p.bufferBytes(p.srcPages, p.srcHeads) }
func (p *Plan) DecodeBytes() uint64  { return p.bufferBytes(p.dstPages, p.dstHeads) }

func (p *Plan) bufferBytes(pages, heads int) uint64 {
	return uint64(pages) * p.rowBytes(heads) * uint64(p.model.PageTokens*p.model.pools()*p.model.Layers)
}

// ContentSeed is the seed of what a prefill rank's buffer is filled with.
func (p *Plan) ContentSeed(rank int) uint64 { return p.opts.Seed<<8 + uint64(rank) + 1 }

// pages is how many pages are sent of all requests.
func (p *Plan) pages() uint64 {
	var n uint64
	for _, j := range p.jobs {
		n += uint64(j.pages)
	}
	return n
}

// rowBytes is the size of some heads of one token in one pool.
func (p *Plan) rowBytes(heads int) uint64 { return uint64(heads * p.model.headBytes()) }

// pageBytes is what a flow carries of one page and layer.
func (p *Plan) pageBytes(f *Flow) uint64 {
	return p.rowBytes(f.heads) * uint64(p.model.PageTokens*p.model.pools())
}
