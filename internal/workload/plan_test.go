package workload

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/trace"
)

// request makes a request whose blocks are numbered from id.
func request(ms int64, tokens int, id uint64) trace.Request {
	r := trace.Request{Timestamp: ms, InputLength: tokens, OutputLength: 1}
	for range ceilDiv(tokens, trace.BlockTokens) {
		r.HashIDs = append(r.HashIDs, id)
		id++
	}
	return r
}

func model(t testing.TB, name string) Model {
	t.Helper()
	m, err := ModelByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func plan(t testing.TB, o Options) *Plan {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// content is what every rank that holds a head has for one token of one page.
func content(dst []byte, layer int, page uint64, token, head int) {
	pattern.Fill(dst, uint64(layer)<<48|page<<16|uint64(token)<<8|uint64(head), 0)
}

// TestHeadsArriveWhereTheyBelong plays the copies of whole plans and looks each
// head of each token up on the decode side, whose layout it works out anew.
func TestHeadsArriveWhereTheyBelong(t *testing.T) {
	tiny, latent := model(t, "tiny"), Model{Name: "latent", Layers: 2, KVHeads: 1, HeadDim: 24, DTypeBytes: 2, PageTokens: 4, Latent: true}
	twelve := Model{Name: "twelve", Layers: 1, KVHeads: 12, HeadDim: 4, DTypeBytes: 2, PageTokens: 2}
	for _, tc := range []struct {
		model Model
		p, d  int
	}{
		{tiny, 1, 1}, {tiny, 2, 2}, {tiny, 4, 4}, // alike
		{tiny, 4, 2}, {tiny, 2, 4}, {tiny, 1, 4}, {tiny, 4, 1}, // sliced
		{tiny, 8, 4}, {tiny, 4, 8}, {tiny, 8, 8}, {tiny, 8, 2}, {tiny, 1, 8}, {tiny, 16, 8}, // copied
		{twelve, 3, 4}, {twelve, 4, 3}, {twelve, 6, 4}, // heads of a rank from several ranks
		{latent, 1, 1}, {latent, 4, 2}, {latent, 2, 4}, {latent, 3, 2},
	} {
		t.Run(fmt.Sprintf("%s %d to %d", tc.model.Name, tc.p, tc.d), func(t *testing.T) {
			p := plan(t, Options{
				Model: tc.model, PrefillTP: tc.p, DecodeTP: tc.d, Seed: 5,
				Requests:  []trace.Request{request(0, 700, 0), request(0, 3, 9), request(0, 513, 20)},
				PoolBytes: 1 << 20, MaxSpans: 50, ChunkTokens: 256,
			})
			m := p.Model()
			src := make([][]byte, tc.p)
			for i := range src {
				src[i] = make([]byte, p.PrefillBytes())
				eachHead(&m, tc.p, i, p.srcPages, func(off, layer int, page uint64, token, head int) {
					content(src[i][off:off+m.headBytes()], layer, page, token, head)
				})
			}
			dst := make([][]byte, tc.d)
			times := make([][]uint8, tc.d) // how often a byte was written
			for j := range dst {
				dst[j], times[j] = make([]byte, p.DecodeBytes()), make([]uint8, p.DecodeBytes())
			}
			perFlow := make([]uint64, len(p.Flows()))
			var b Batch
			for it := p.Batches(); it.Next(&b); {
				n := uint64(0)
				for _, s := range b.Spans {
					copy(dst[b.To][s.Dst:s.Dst+s.Length], src[b.From][s.Src:s.Src+s.Length])
					for k := s.Dst; k < s.Dst+s.Length; k++ {
						times[b.To][k]++
					}
					n += s.Length
				}
				if n != b.Bytes {
					t.Fatalf("a batch says %d bytes, its spans have %d", b.Bytes, n)
				}
				perFlow[b.Flow] += n
			}
			from := map[uint64]uint64{} // of each page of the decode side, that of the prefill side
			for n := range p.pages() {
				from[p.dstPage(n)] = p.srcPage(n)
			}
			want := make([]byte, m.headBytes())
			for j := range dst {
				eachHead(&m, tc.d, j, p.dstPages, func(off, layer int, page uint64, token, head int) {
					content(want, layer, from[page], token, head)
					if got := dst[j][off : off+len(want)]; string(got) != string(want) {
						t.Fatalf("decode rank %d, layer pool %d, page %d, token %d, head %d: wrong bytes", j, layer, page, token, head)
					}
				})
				for k, n := range times[j] {
					if n != 1 {
						t.Fatalf("decode rank %d: byte %d was written %d times", j, k, n)
					}
				}
			}
			sum := uint64(0)
			for i, n := range perFlow {
				if n != p.FlowBytes(i) {
					t.Errorf("flow %d moved %d bytes, FlowBytes says %d", i, n, p.FlowBytes(i))
				}
				sum += n
			}
			if sum != p.Scale().Bytes {
				t.Errorf("moved %d bytes, Scale says %d", sum, p.Scale().Bytes)
			}
		})
	}
}

// eachHead visits all heads in a rank's buffer.
func eachHead(m *Model, tp, rank, pages int, visit func(off, layer int, page uint64, token, head int)) {
	off := 0
	first := rank * m.KVHeads / tp
	count := max(1, m.KVHeads/tp)
	for layer := range m.Layers * m.pools() {
		for page := range pages {
			for token := range m.PageTokens {
				for h := range count {
					visit(off, layer, uint64(page), token, first+h)
					off += m.headBytes()
				}
			}
		}
	}
}

func TestSpanSizesAreThoseOfTheModel(t *testing.T) {
	for _, tc := range []struct {
		model string
		p, d  int
		size  uint64
	}{
		{"llama-3-70b", 4, 4, 16 * 2 * 128 * 2}, // a page of 2 heads
		{"llama-3-70b", 4, 2, 2 * 128 * 2},      // 2 heads of a token
		{"llama-3-70b", 2, 4, 2 * 128 * 2},
		{"llama-3-70b", 8, 1, 1 * 128 * 2},
		{"qwen3-235b", 8, 8, 16 * 1 * 128 * 2},
		{"deepseek-v3", 8, 4, 64 * 576 * 2},
	} {
		t.Run(fmt.Sprintf("%s %d to %d", tc.model, tc.p, tc.d), func(t *testing.T) {
			p := plan(t, Options{Model: model(t, tc.model), PrefillTP: tc.p, DecodeTP: tc.d, Requests: []trace.Request{request(0, 2000, 0)}})
			small := uint64(1 << 62)
			var b Batch
			for it := p.Batches(); it.Next(&b); {
				for _, s := range b.Spans {
					if s.Length%tc.size != 0 {
						t.Fatalf("a span of %d bytes, want a multiple of %d", s.Length, tc.size)
					}
					small = min(small, s.Length)
				}
			}
			if small != tc.size {
				t.Errorf("the smallest span has %d bytes, want %d", small, tc.size)
			}
		})
	}
}

// TestPagesAreNotOverwrittenEarly walks a plan whose pools go round many times.
func TestPagesAreNotOverwrittenEarly(t *testing.T) {
	var reqs []trace.Request
	for i := range 40 {
		reqs = append(reqs, request(int64(i), 100+137*i, uint64(i)*100))
	}
	m := model(t, "tiny")
	p := plan(t, Options{Model: m, PrefillTP: 2, DecodeTP: 2, Requests: reqs, PoolBytes: 300 * 4 * 32 * 4, Seed: 3})
	if p.dstPages >= int(p.pages())/10 {
		t.Fatalf("%d pages for %d: the pool goes round too few times", p.dstPages, p.pages())
	}
	type writer struct{ chunk, src int }
	last := map[uint64]writer{} // by page of the decode side
	late := 0
	for c, s := range p.steps {
		need := -1
		for n := s.first; n < s.first+uint64(s.pages); n++ {
			page := p.dstPage(n)
			if w, ok := last[page]; ok {
				need = max(need, w.chunk)
				if w.src == int(p.srcPage(n)) {
					t.Fatalf("chunk %d overwrites page %d with what it holds", c, page)
				}
				if w.chunk == c {
					t.Fatalf("chunk %d uses page %d twice", c, page)
				}
			}
			last[page] = writer{c, int(p.srcPage(n))}
		}
		if int(s.after) != need {
			t.Fatalf("chunk %d waits for %d, want %d", c, s.after, need)
		}
		if need >= 0 {
			late = max(late, c-need)
		}
	}
	if late < 4 {
		t.Errorf("at most %d chunks on their way, want 4 or more", late)
	}
}

func TestRanksSeeTheSamePlan(t *testing.T) {
	o := Options{
		Model: model(t, "tiny"), PrefillTP: 4, DecodeTP: 2, Mapping: Shuffled, Seed: 11,
		Requests: trace.Generate(2, 5), PoolBytes: 1 << 18, Speed: 10,
	}
	type key struct{ chunk, flow int }
	want := map[key][]Span{}
	var b Batch
	for it := plan(t, o).Batches(); it.Next(&b); {
		k := key{b.Chunk, b.Flow}
		want[k] = append(want[k], b.Spans...)
	}
	for _, side := range []struct {
		name  string
		ranks int
		of    func(*Plan, int) *Iterator
	}{{"from", 4, (*Plan).From}, {"to", 2, (*Plan).To}} {
		got := map[key][]Span{}
		for rank := range side.ranks {
			chunk := 0
			for it := side.of(plan(t, o), rank); it.Next(&b); {
				if b.Chunk < chunk {
					t.Fatalf("%s rank %d: chunk %d after %d", side.name, rank, b.Chunk, chunk)
				}
				chunk = b.Chunk
				k := key{b.Chunk, b.Flow}
				got[k] = append(got[k], b.Spans...)
			}
		}
		if !maps.EqualFunc(want, got, slices.Equal) {
			t.Errorf("the plans seen %s each rank do not add up to the whole", side.name)
		}
	}
}

func TestBatchesMarkTheirEnds(t *testing.T) {
	p := plan(t, Options{
		Model: model(t, "tiny"), PrefillTP: 2, DecodeTP: 2, Speed: 2, ChunkTokens: 64, MaxSpans: 1,
		Requests: []trace.Request{request(1000, 100, 0), request(3000, 64, 5)},
	})
	type mark struct {
		Request, Chunk, To int
		At                 time.Duration
		Final, Ends        bool
	}
	var got []mark
	var b Batch
	for it := p.To(1); it.Next(&b); {
		got = append(got, mark{b.Request, b.Chunk, b.To, b.At, b.Final, b.Ends})
	}
	var want []mark
	for _, c := range []mark{{0, 0, 1, 0, false, false}, {0, 1, 1, 0, false, true}, {1, 2, 1, time.Second, false, true}} {
		for layer := range 4 { // 2 layers, keys and values: a batch each
			c.Final = layer == 3
			want = append(want, c)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNextDoesNotAllocate(t *testing.T) {
	p := plan(t, Options{Model: model(t, "llama-3-70b"), PrefillTP: 4, DecodeTP: 2, Requests: trace.Generate(1, 50)})
	it := p.Batches()
	var b Batch
	for range 20 {
		it.Next(&b)
	}
	if n := testing.AllocsPerRun(50, func() {
		if !it.Next(&b) {
			t.Fatal("the plan is too short for this test")
		}
	}); n > 0.5 {
		t.Errorf("%v allocations a batch, want none", n)
	}
}

func BenchmarkNext(b *testing.B) {
	for _, d := range []int{4, 2} {
		b.Run(fmt.Sprintf("4 to %d", d), func(b *testing.B) {
			p := plan(b, Options{Model: model(b, "llama-3-70b"), PrefillTP: 4, DecodeTP: d, Requests: trace.Generate(1, 200)})
			it := p.Batches()
			var batch Batch
			var spans, bytes uint64
			for b.Loop() {
				if !it.Next(&batch) {
					it = p.Batches()
				}
				spans, bytes = spans+uint64(len(batch.Spans)), bytes+batch.Bytes
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(spans), "ns/span")
			b.ReportMetric(float64(bytes)/float64(spans), "bytes/span")
		})
	}
}

func FuzzSpansStayInTheirBuffers(f *testing.F) {
	f.Add(4, 2, 16, 100, uint16(64), uint8(1))
	f.Add(8, 16, 3, 5000, uint16(1), uint8(2))
	f.Fuzz(func(t *testing.T, p, d, page, tokens int, pool uint16, mapping uint8) {
		m := Model{Name: "fuzz", Layers: 3, KVHeads: 4, HeadDim: 4, DTypeBytes: 2, PageTokens: page}
		if tokens < 1 || tokens > 20000 {
			t.Skip()
		}
		o := Options{
			Model: m, PrefillTP: p, DecodeTP: d, Mapping: Mapping(mapping),
			PoolBytes: uint64(pool) * 1024, Requests: []trace.Request{request(0, tokens, 0), request(0, tokens/2+1, 0)},
		}
		plan, err := New(o)
		if err != nil {
			return
		}
		if plan.PrefillBytes() > o.PoolBytes && pool != 0 || plan.DecodeBytes() > o.PoolBytes && pool != 0 {
			t.Fatalf("buffers of %d and %d bytes, the limit is %d", plan.PrefillBytes(), plan.DecodeBytes(), o.PoolBytes)
		}
		var b Batch
		for it := plan.Batches(); it.Next(&b); {
			for _, s := range b.Spans {
				if s.Length == 0 || s.Src+s.Length > plan.PrefillBytes() || s.Dst+s.Length > plan.DecodeBytes() {
					t.Fatalf("%+v in buffers of %d and %d bytes", s, plan.PrefillBytes(), plan.DecodeBytes())
				}
			}
		}
	})
}
