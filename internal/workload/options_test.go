package workload

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/railhop/railhop/internal/trace"
)

func TestBadOptionsNameTheValueAndWhatIsValid(t *testing.T) {
	base := Options{Model: model(t, "llama-3-70b"), PrefillTP: 4, DecodeTP: 2, Requests: []trace.Request{request(0, 5000, 0)}}
	for _, tc := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"TP 0", func(o *Options) { o.PrefillTP = 0 }, "prefill TP 0, valid is 1 to 64"},
		{"TP negative", func(o *Options) { o.DecodeTP = -2 }, "decode TP -2, valid is 1 to 64"},
		{"TP too large", func(o *Options) { o.DecodeTP = 128 }, "decode TP 128, valid is 1 to 64"},
		{"TP 3", func(o *Options) { o.PrefillTP = 3 }, "prefill TP 3 can neither split nor replicate the 8 KV heads of llama-3-70b; valid are 1, 2, 4, 8, 16, 24,"},
		{"TP 12", func(o *Options) { o.DecodeTP = 12 }, "decode TP 12 can neither split nor replicate the 8 KV heads"},
		{"too few rails", func(o *Options) { o.Rails = 3 }, "3 rails for prefill TP 4 and decode TP 2: each rank of a host needs a rail of its own, valid is 4 to 64"},
		{"too many rails", func(o *Options) { o.Rails = 65 }, "65 rails for"},
		{"unknown mapping", func(o *Options) { o.Mapping = 9 }, "unknown mapping 9; valid are aligned, rotated, shuffled"},
		{"no requests", func(o *Options) { o.Requests = nil }, "no requests"},
		{"bad request", func(o *Options) { o.Requests = []trace.Request{{}} }, "request 0: input_length 0"},
		{"out of order", func(o *Options) { o.Requests = []trace.Request{request(5, 1, 0), request(4, 1, 0)} }, "request 1 arrives before request 0"},
		{"speed", func(o *Options) { o.Speed = -1 }, "speed -1, valid are 0"},
		{"speed NaN", func(o *Options) { o.Speed = math.NaN() }, "speed NaN, valid are 0"},
		{"speed infinite", func(o *Options) { o.Speed = math.Inf(1) }, "speed +Inf, valid are 0"},
		{"chunk", func(o *Options) { o.ChunkTokens = -1 }, "-1 chunk tokens, valid is 0 to"},
		{"spans", func(o *Options) { o.MaxSpans = -1 }, "-1 spans a batch, valid is 0 to"},
		{"blocks", func(o *Options) { o.ReuseBlocks = -1 }, "-1 reuse blocks, valid is 0 to"},
		{"small pool", func(o *Options) { o.PoolBytes = 1000 }, "pools of 1000 B do not hold 64 pages of one layer of llama-3-70b; at least 2 MiB is needed"},
		{"small limit", func(o *Options) { o.MaxBytes = 1000 }, "the first request alone moves 19.56 MiB in one layer of llama-3-70b; the limit is 1000 B"},
		{"no layers", func(o *Options) { o.Model.Layers = 0 }, "model llama-3-70b: 0 layers, valid is 1 to"},
		{"no page", func(o *Options) { o.Model.PageTokens = 0 }, "0 tokens a page, valid is 1 to"},
		{"latent heads", func(o *Options) { o.Model.Latent = true }, "a latent model has 1 KV head, not 8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := base
			tc.change(&o)
			_, err := New(o)
			if err == nil || !strings.HasPrefix(err.Error(), "workload: ") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
	if _, err := ModelByName("gpt-5"); err == nil || err.Error() != `workload: unknown model "gpt-5"; valid are deepseek-v3, llama-3-70b, llama-3-8b, mistral-7b, qwen2.5-72b, qwen3-235b, tiny` {
		t.Errorf("unknown model: %v", err)
	}
	if _, err := ParseMapping("diagonal"); err == nil || err.Error() != `workload: unknown mapping "diagonal"; valid are aligned, rotated, shuffled` {
		t.Errorf("unknown mapping: %v", err)
	}
}

func TestPresets(t *testing.T) {
	for _, m := range Models() {
		if err := m.validate(); err != nil {
			t.Error(err)
		}
		if trace.BlockTokens%m.PageTokens != 0 {
			t.Errorf("%s: a page of %d tokens does not divide a block", m.Name, m.PageTokens)
		}
	}
	if !slices.IsSorted(ModelNames()) || !slices.Contains(ModelNames(), DefaultModel) {
		t.Errorf("names %v, want them sorted and with %s", ModelNames(), DefaultModel)
	}
	for name, want := range map[string]int{"llama-3-70b": 320 << 10, "llama-3-8b": 128 << 10, "deepseek-v3": 61 * 576 * 2} {
		if m := model(t, strings.ToUpper(name)); m.TokenBytes() != want {
			t.Errorf("%s: %d bytes a token, want %d", name, m.TokenBytes(), want)
		}
	}
}

func TestMappings(t *testing.T) {
	for _, tc := range []struct {
		name       string
		mapping    Mapping
		p, d       int
		rails      int
		cross      int // flows
		wantRails  []int
		wantRelays []int
	}{
		{"aligned", Aligned, 4, 4, 0, 0, []int{0, 1, 2, 3}, []int{-1, -1, -1, -1}},
		{"rotated", Rotated, 4, 4, 0, 4, []int{1, 2, 3, 0}, []int{1, 2, 3, 0}},
		{"aligned, sizes differ", Aligned, 4, 2, 0, 3, []int{0, 0, 1, 1}, []int{-1, 0, 1, 1}},
		{"rotated, sizes differ", Rotated, 4, 2, 0, 2, []int{1, 1, 2, 2}, []int{1, -1, -1, 2}},
		{"no prefill rank on that rail", Rotated, 2, 2, 4, 2, []int{1, 2}, []int{1, -1}},
		{"one rail", Rotated, 1, 1, 0, 0, []int{0}, []int{-1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := plan(t, Options{Model: model(t, "tiny"), PrefillTP: tc.p, DecodeTP: tc.d, Rails: tc.rails, Mapping: tc.mapping, Requests: []trace.Request{request(0, 10, 0)}})
			var rails, relays []int
			cross := 0
			for _, f := range p.Flows() {
				rails, relays = append(rails, f.ToRail), append(relays, f.Relay)
				if f.Crosses() {
					cross++
				}
			}
			if diff := cmp.Diff(tc.wantRails, rails); diff != "" {
				t.Errorf("rails: %s", diff)
			}
			if diff := cmp.Diff(tc.wantRelays, relays); diff != "" {
				t.Errorf("relays: %s", diff)
			}
			if cross != tc.cross {
				t.Errorf("%d flows cross, want %d", cross, tc.cross)
			}
		})
	}
	for seed := range uint64(50) {
		p := plan(t, Options{Model: model(t, "tiny"), PrefillTP: 2, DecodeTP: 2, Mapping: Shuffled, Seed: seed, Requests: []trace.Request{request(0, 10, 0)}})
		if f := p.Flows(); f[0].ToRail != 1 || f[1].ToRail != 0 {
			t.Fatalf("seed %d: shuffled rails are %d, %d, want them crossed", seed, f[0].ToRail, f[1].ToRail)
		}
	}
}

func TestScale(t *testing.T) {
	// 1,000 requests of 1,024 tokens at 4 KiB a token and layer: 4,000 MiB a layer.
	var reqs []trace.Request
	for i := range 1000 {
		reqs = append(reqs, request(0, 1024, uint64(2*i)))
	}
	for _, tc := range []struct {
		name     string
		max      uint64
		pool     uint64
		reqs     int
		layers   int
		requests int
		sentence string
	}{
		{"fits", 1 << 40, 1 << 40, 1000, 80, 1000, "All 80 layers of 1000 requests are replayed: 312.5 GiB."},
		{"fewer layers", 16 << 30, 0, 1000, 4, 1000, "Scaled down to 4 of 80 layers, to move at most 16 GiB: 15.62 GiB in place of 312.5 GiB. Span sizes are those of the full model."},
		{"the default limit", 0, 0, 1000, 4, 1000, "Scaled down to 4 of 80 layers, to move at most 16 GiB: 15.62 GiB in place of 312.5 GiB. Span sizes are those of the full model."},
		{"exactly one layer", 4000 << 20, 0, 1000, 1, 1000, "Scaled down to 1 of 80 layers, to move at most 3.9 GiB: 3.9 GiB in place of 312.5 GiB. Span sizes are those of the full model."},
		{"fewer requests", 1 << 30, 0, 1000, 1, 256, "Scaled down to 1 of 80 layers and the first 256 of 1000 requests, to move at most 1 GiB: 1 GiB in place of 312.5 GiB. Span sizes are those of the full model."},
		{"small pools", 1 << 40, 64 << 20, 10, 64, 10, "Scaled down to 64 of 80 layers, so that the pools of a rank take at most 64 MiB: 2.5 GiB in place of 3.12 GiB. Span sizes are those of the full model."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := plan(t, Options{Model: model(t, "llama-3-70b"), PrefillTP: 4, DecodeTP: 4, Requests: reqs[:tc.reqs], MaxBytes: tc.max, PoolBytes: tc.pool})
			s := p.Scale()
			if s.Layers != tc.layers || s.Requests != tc.requests || p.Model().Layers != tc.layers || p.Requests() != tc.requests {
				t.Errorf("got %d layers, %d requests, want %d, %d", s.Layers, s.Requests, tc.layers, tc.requests)
			}
			if s.Bytes > s.MaxBytes {
				t.Errorf("%d bytes, the limit is %d", s.Bytes, s.MaxBytes)
			}
			if s.String() != tc.sentence {
				t.Errorf("got  %q\nwant %q", s, tc.sentence)
			}
		})
	}
}

func TestReuse(t *testing.T) {
	seq := func(tokens int, ids ...uint64) trace.Request {
		return trace.Request{InputLength: tokens, OutputLength: 1, HashIDs: ids}
	}
	for _, tc := range []struct {
		name  string
		limit int
		reqs  []trace.Request
		pages []int // of 4 tokens
	}{
		{"nothing shared", 0, []trace.Request{seq(1024, 1, 2), seq(1024, 3, 4)}, []int{256, 256}},
		{"shared prefix", 0, []trace.Request{seq(1024, 1, 2), seq(1500, 1, 2, 3)}, []int{256, 119}},
		{"all held", 0, []trace.Request{seq(1001, 1, 2), seq(1001, 1, 2)}, []int{251, 0}},
		{"not a prefix", 0, []trace.Request{seq(1024, 1, 2), seq(1024, 3, 2)}, []int{256, 256}},
		{"dropped, last used first", 2, []trace.Request{seq(1024, 1, 2), seq(512, 3), seq(1024, 1, 2)}, []int{256, 128, 128}},
		{"use keeps", 2, []trace.Request{seq(512, 1), seq(512, 2), seq(512, 1), seq(512, 3), seq(512, 1)}, []int{128, 128, 0, 128, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := Options{Model: model(t, "tiny"), PrefillTP: 2, DecodeTP: 2, Requests: tc.reqs, Reuse: true, ReuseBlocks: tc.limit}
			got := make([]int, len(tc.reqs))
			p := plan(t, o)
			for i, j := range p.jobs {
				got[i] = j.pages
			}
			if diff := cmp.Diff(tc.pages, got); diff != "" {
				t.Error(diff)
			}
			o.Reuse = false
			if all := plan(t, o); all.ReusedTokens() != 0 || all.pages() < p.pages() {
				t.Errorf("without reuse %d tokens are left out and %d pages sent", all.ReusedTokens(), all.pages())
			}
		})
	}
}

func TestEverythingHeldIsAnEmptyPlan(t *testing.T) {
	p := plan(t, Options{Model: model(t, "tiny"), PrefillTP: 1, DecodeTP: 1, Reuse: true,
		Requests: []trace.Request{request(0, 1, 0), request(0, 1, 0)}})
	if p.Requests() != 2 || p.Chunks() != 1 {
		t.Errorf("%d requests in %d chunks, want 2 in 1", p.Requests(), p.Chunks())
	}
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1<<30 - 1: "1023.99 MiB", 1 << 30: "1 GiB", 100 << 30: "100 GiB", 10 << 20: "10 MiB", math.MaxUint64: "16 EiB"} {
		if got := FormatBytes(n); got != want {
			t.Errorf("FormatBytes(%d) = %q, want %q", n, got, want)
		}
	}
}
