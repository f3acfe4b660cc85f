package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// cut lays the pools out and cuts the requests into chunks. A chunk takes at most
// a quarter of a pool, so that several can be on their way.
func (p *Plan) cut() error {
	perPage := uint64(p.model.PageTokens * p.model.pools() * p.model.Layers)
	total := p.pages()
	room := func(heads int) int { return int(min(p.opts.PoolBytes/(perPage*p.rowBytes(heads)), math.MaxUint32)) }
	p.srcPages, p.dstPages = room(p.srcHeads), room(p.dstHeads)
	chunk := max(1, min(p.opts.ChunkTokens/p.model.PageTokens, p.srcPages/4, p.dstPages/4))
	p.srcPages = int(min(uint64(p.srcPages), max(total, 1)))
	p.dstPages = int(min(uint64(p.dstPages), max(total, 1)))

	p.place = make([]uint32, p.dstPages)
	for i := range p.place {
		p.place[i] = uint32(i)
	}
	rnd := rand.New(rand.NewPCG(p.opts.Seed, 0x7061676573))
	rnd.Shuffle(len(p.place), func(i, j int) { p.place[i], p.place[j] = p.place[j], p.place[i] })

	// overwritten is the first chunk whose pages are not yet used anew.
	first, overwritten := uint64(0), 0
	for _, j := range p.jobs {
		for left := j.pages; left > 0; {
			n := min(left, chunk)
			left -= n
			for overwritten < len(p.steps) && first+uint64(n) > p.steps[overwritten].first+uint64(p.dstPages) {
				overwritten++
			}
			if len(p.steps) == math.MaxInt32 {
				return fmt.Errorf("workload: more than %d chunks; take fewer requests or larger pools", math.MaxInt32)
			}
			p.steps = append(p.steps, step{first: first, pages: int32(n), request: int32(j.request), after: int32(overwritten - 1), ends: left == 0})
			first += uint64(n)
		}
	}
	return nil
}

// srcPage and dstPage are the pages that the n-th page of the run uses. The
// decode side goes round in a scattered order, as a radix cache in use does; the
// prefill side goes up, and is shifted on each lap of the decode side, so that a
// page of that side is never overwritten with what it holds.
func (p *Plan) srcPage(n uint64) uint64 {
	dst, src := uint64(p.dstPages), uint64(p.srcPages)
	return (n%dst + n/dst*(src/3+1)) % src
}

func (p *Plan) dstPage(n uint64) uint64 { return uint64(p.place[n%uint64(p.dstPages)]) }

// at is when a request arrives at the chosen speed.
func (p *Plan) at(request int) time.Duration {
	if p.opts.Speed == 0 {
		return 0
	}
	return time.Duration(float64(p.opts.Requests[request].At()-p.opts.Requests[0].At()) / p.opts.Speed)
}

// Iterator yields the batches of a plan, chunk by chunk, in the same order in
// every process.
type Iterator struct {
	plan  *Plan
	flows []int
	step  int
	flow  int // index into flows
	layer int // counts the pools of the layers, keys before values
	pages []pair
}

// pair is a page on both sides.
type pair struct{ src, dst uint64 }

// Batches yields all batches.
func (p *Plan) Batches() *Iterator { return p.iterate(func(*Flow) bool { return true }) }

// From yields the batches that a prefill rank sends.
func (p *Plan) From(rank int) *Iterator {
	return p.iterate(func(f *Flow) bool { return f.From == rank })
}

// To yields the batches that a decode rank receives.
func (p *Plan) To(rank int) *Iterator { return p.iterate(func(f *Flow) bool { return f.To == rank }) }

// Through yields the batches of one flow, which is an index into [Plan.Flows].
func (p *Plan) Through(flow int) *Iterator {
	return p.iterate(func(f *Flow) bool { return f == &p.flows[flow] })
}

func (p *Plan) iterate(want func(*Flow) bool) *Iterator {
	it := &Iterator{plan: p}
	for i := range p.flows {
		if want(&p.flows[i]) {
			it.flows = append(it.flows, i)
		}
	}
	return it
}

// Next fills b with the next batch, reusing its spans, and reports whether there
// was one.
func (it *Iterator) Next(b *Batch) bool {
	p := it.plan
	if len(it.flows) == 0 || it.step == len(p.steps) {
		return false
	}
	s := &p.steps[it.step]
	if it.flow == 0 && it.layer == 0 {
		it.pages = it.pages[:0]
		for n := s.first; n < s.first+uint64(s.pages); n++ {
			it.pages = append(it.pages, pair{p.srcPage(n), p.dstPage(n)})
		}
	}
	f := &p.flows[it.flows[it.flow]]
	layers := p.model.Layers * p.model.pools()
	perLayer := len(it.pages)
	if !p.whole(f) {
		perLayer *= p.model.PageTokens
	}
	end := min(layers, it.layer+max(1, p.opts.MaxSpans/perLayer))

	b.Request, b.Chunk, b.At = int(s.request), it.step, p.at(int(s.request))
	b.Flow, b.From, b.To = it.flows[it.flow], f.From, f.To
	b.After, b.Final, b.Ends = int(s.after), end == layers, s.ends
	b.Bytes = uint64(end-it.layer) * uint64(len(it.pages)) * p.pageBytes(f) / uint64(p.model.pools())
	b.Spans = b.Spans[:0]
	for ; it.layer < end; it.layer++ {
		b.Spans = p.spans(b.Spans, f, it.layer, it.pages)
	}
	if b.Final {
		it.layer = 0
		if it.flow++; it.flow == len(it.flows) {
			it.flow = 0
			it.step++
		}
	}
	return true
}

// whole reports whether both sides of f hold the same heads, so that pages need
// not be cut.
func (p *Plan) whole(f *Flow) bool { return f.heads == p.srcHeads && f.heads == p.dstHeads }

// spans appends what flow f carries of some pages in one layer's pool.
func (p *Plan) spans(to []Span, f *Flow, layer int, pages []pair) []Span {
	tokens := uint64(p.model.PageTokens)
	srcRow, dstRow, length := p.rowBytes(p.srcHeads), p.rowBytes(p.dstHeads), p.rowBytes(f.heads)
	srcPage, dstPage := srcRow*tokens, dstRow*tokens
	srcPool := uint64(layer*p.srcPages) * srcPage
	dstPool := uint64(layer*p.dstPages) * dstPage
	if p.whole(f) {
		began := len(to)
		for _, pg := range pages {
			s := Span{Src: srcPool + pg.src*srcPage, Dst: dstPool + pg.dst*dstPage, Length: srcPage}
			if n := len(to); n > began && to[n-1].Src+to[n-1].Length == s.Src && to[n-1].Dst+to[n-1].Length == s.Dst {
				to[n-1].Length += srcPage
				continue
			}
			to = append(to, s)
		}
		return to
	}
	srcPool += p.rowBytes(f.srcHead)
	dstPool += p.rowBytes(f.dstHead)
	for _, pg := range pages {
		src, dst := srcPool+pg.src*srcPage, dstPool+pg.dst*dstPage
		for range tokens {
			to = append(to, Span{Src: src, Dst: dst, Length: length})
			src, dst = src+srcRow, dst+dstRow
		}
	}
	return to
}
