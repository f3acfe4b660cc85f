package trace

import (
	"container/heap"
	"math"
	"math/rand/v2"
)

// The shape of a generated trace is that of Mooncake's FAST'25 conversation trace
// (12,031 requests of one hour), taken apart into independent draws:
//
//   - Requests arrive in ticks of 3 s; their number in a tick is Poisson with mean
//     10.2 (the trace: 10.2, variance 11.2).
//   - Follow-ups of conversations come first, when they are due; the rest of a tick
//     are new conversations (the trace: 61 %). All begin with one shared block, the
//     system prompt.
//   - After turn d (from 0) a conversation goes on with probability 0.84 - 0.50 e^(-d/4):
//     0.34 after the first turn, 0.45 after the second, then ever more. The trace
//     shows 0.03 less, since its end cuts conversations off.
//   - A follow-up keeps the full blocks of the turn before it and adds that turn's
//     output and some new text. In 15 of 100 it keeps a part of them only, as when
//     a history is cut or edited, and goes on with other text.
//   - The input of a new conversation, the output, the pause between turns, the new
//     text and the kept part are drawn from the quantiles below.
const (
	tick         = 3000 // ms
	perTick      = 10.2
	editedShare  = 0.15
	longestInput = 126195 // tokens, the longest of the trace
)

// point says that share p of the values lie below x.
type point struct{ p, x float64 }

// quantiles is a distribution by its measured quantiles; between two, log(1+x) is
// linear in p.
type quantiles []point

var (
	newInput   = quantiles{{0, 891}, {.01, 894}, {.05, 897}, {.10, 905}, {.20, 1092}, {.30, 1756}, {.40, 3914}, {.50, 5264}, {.60, 7417}, {.70, 10775}, {.80, 15871}, {.90, 25561}, {.95, 38538}, {.99, 89869}, {1, longestInput}}
	output     = quantiles{{0, 1}, {.01, 3}, {.05, 10}, {.10, 24}, {.20, 100}, {.30, 213}, {.40, 291}, {.50, 350}, {.60, 399}, {.70, 447}, {.80, 504}, {.90, 597}, {.95, 698}, {.99, 1120}, {1, 2000}}
	pause      = quantiles{{0, 3000}, {.01, 12000}, {.05, 30000}, {.10, 42000}, {.20, 60000}, {.30, 75000}, {.40, 96000}, {.50, 123000}, {.60, 162000}, {.70, 222000}, {.80, 318000}, {.90, 483000}, {.95, 618000}, {.99, 1482000}, {1, 3030000}} // ms
	newText    = quantiles{{0, 1}, {.20, 7}, {.30, 11}, {.40, 16}, {.50, 26}, {.60, 52}, {.70, 172}, {.80, 695}, {.90, 4203}, {.95, 6922}, {.99, 16705}, {1, 91467}}
	editedText = quantiles{{0, 10}, {.01, 316}, {.05, 894}, {.10, 1707}, {.20, 4969}, {.30, 7013}, {.40, 8540}, {.50, 9567}, {.60, 10946}, {.70, 13687}, {.80, 15907}, {.90, 19913}, {.95, 26597}, {.99, 43120}, {1, 94968}}
	keptShare  = quantiles{{0, .015}, {.05, .053}, {.10, .068}, {.20, .097}, {.30, .129}, {.40, .167}, {.50, .214}, {.60, .290}, {.70, .400}, {.80, .524}, {.90, .833}, {1, .99}}
)

func (q quantiles) draw(r *rand.Rand) float64 {
	p := r.Float64()
	i := 1
	for q[i].p < p {
		i++
	}
	a, b := q[i-1], q[i]
	lo, hi := math.Log1p(a.x), math.Log1p(b.x)
	return math.Expm1(lo + (hi-lo)*(p-a.p)/(b.p-a.p))
}

// Generator draws requests of the shape of Mooncake's conversation trace, in the
// order of their arrival. Equal seeds give equal traces.
type Generator struct {
	rnd    *rand.Rand
	now    int64 // ms, the tick that is being drawn
	left   int   // requests still to come in this tick
	nextID uint64
	due    turns
}

// NewGenerator returns a generator that has no end.
func NewGenerator(seed uint64) *Generator {
	g := &Generator{rnd: rand.New(rand.NewPCG(seed, 0x7261696c686f70)), now: -tick, nextID: 1}
	return g
}

// Generate returns the first n requests of a seed.
func Generate(seed uint64, n int) []Request {
	g := NewGenerator(seed)
	all := make([]Request, n)
	for i := range all {
		all[i] = g.Next()
	}
	return all
}

// Next draws the next request.
func (g *Generator) Next() Request {
	for g.left == 0 {
		g.now += tick
		g.left = g.poisson(perTick)
	}
	g.left--
	var r Request
	depth := 0
	if len(g.due) > 0 && g.due[0].at <= g.now {
		t := heap.Pop(&g.due).(turn)
		r, depth = g.follow(&t), t.depth
	} else {
		r = g.request([]uint64{0}, int(newInput.draw(g.rnd)))
	}
	if g.rnd.Float64() < 0.84-0.50*math.Exp(-float64(depth)/4) {
		heap.Push(&g.due, turn{
			at:    g.now + int64(pause.draw(g.rnd)),
			order: g.nextID,
			depth: depth + 1,
			input: r.InputLength + r.OutputLength,
			kept:  r.HashIDs[:r.InputLength/BlockTokens],
		})
	}
	return r
}

// follow draws the next turn of a conversation.
func (g *Generator) follow(t *turn) Request {
	kept, input := t.kept, t.input+int(newText.draw(g.rnd))
	if g.rnd.Float64() < editedShare {
		n := max(1, int(float64(len(kept))*keptShare.draw(g.rnd)))
		kept = kept[:min(n, len(kept))]
		input = len(kept)*BlockTokens + int(editedText.draw(g.rnd))
	}
	return g.request(kept, input)
}

// request makes a request whose input begins with the blocks kept.
func (g *Generator) request(kept []uint64, input int) Request {
	input = min(input, longestInput)
	blocks := (input + BlockTokens - 1) / BlockTokens
	ids := make([]uint64, 0, blocks)
	ids = append(ids, kept[:min(len(kept), blocks)]...)
	for len(ids) < blocks {
		ids = append(ids, g.nextID)
		g.nextID++
	}
	return Request{Timestamp: g.now, InputLength: input, OutputLength: max(1, int(output.draw(g.rnd))), HashIDs: ids}
}

// poisson draws by Knuth's method, which is quick for small means.
func (g *Generator) poisson(mean float64) int {
	limit, n := math.Exp(-mean), 0
	for p := g.rnd.Float64(); p > limit; p *= g.rnd.Float64() {
		n++
	}
	return n
}

// turn is a follow-up that waits for its time.
type turn struct {
	at    int64  // ms
	order uint64 // breaks ties, so that a seed gives one trace
	depth int    // turns before it
	input int    // tokens of the conversation so far
	kept  []uint64
}

// turns is a heap, the earliest first.
type turns []turn

func (t turns) Len() int { return len(t) }
func (t turns) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].order < t[j].order
}
func (t turns) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *turns) Push(x any)   { *t = append(*t, x.(turn)) }
func (t *turns) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}
