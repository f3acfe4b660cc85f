package trace

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGenerateIsAFunctionOfTheSeed(t *testing.T) {
	if diff := cmp.Diff(Generate(7, 500), Generate(7, 500)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Generate(7, 500)[:100], Generate(7, 100)); diff != "" {
		t.Errorf("a longer trace begins otherwise: %s", diff)
	}
	if cmp.Equal(Generate(7, 500), Generate(8, 500)) {
		t.Error("seeds 7 and 8 give one trace")
	}
}

func TestGenerateMakesValidTraces(t *testing.T) {
	last := int64(0)
	for i, r := range Generate(3, 5000) {
		if err := r.Validate(); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if r.Timestamp < last {
			t.Fatalf("request %d goes back from %d to %d ms", i, last, r.Timestamp)
		}
		last = r.Timestamp
	}
}

// TestGenerateHasTheShapeOfTheTrace compares with figures measured on Mooncake's
// conversation trace, as many requests long.
func TestGenerateHasTheShapeOfTheTrace(t *testing.T) {
	const n = 12031
	all := Generate(1, n)
	var in, out []float64
	seen := map[uint64]bool{}
	blocks, hits, fresh := 0, 0, 0
	for _, r := range all {
		in, out = append(in, float64(r.InputLength)), append(out, float64(r.OutputLength))
		hit := 0
		for hit < len(r.HashIDs) && seen[r.HashIDs[hit]] {
			hit++
		}
		for _, id := range r.HashIDs[hit:] {
			if seen[id] {
				t.Fatalf("block %d is reused behind a new one", id)
			}
			seen[id] = true
		}
		blocks, hits = blocks+len(r.HashIDs), hits+hit
		if hit <= 1 {
			fresh++
		}
	}
	slices.Sort(in)
	slices.Sort(out)
	for _, tc := range []struct {
		name      string
		got, want float64
		within    float64 // share of want
	}{
		{"requests a second", n / all[n-1].At().Seconds(), 3.40, .05},
		{"median input", in[n/2], 6909, .10},
		{"90th percentile of input", in[n*9/10], 27367, .10},
		{"99th percentile of input", in[n*99/100], 85401, .15},
		{"median output", out[n/2], 350, .05},
		{"90th percentile of output", out[n*9/10], 597, .05},
		{"99th percentile of output", out[n*99/100], 1120, .10},
		{"share of reused blocks", float64(hits) / float64(blocks), 0.366, .12},
		{"share of new conversations", float64(fresh) / n, 0.613, .12},
	} {
		if math.Abs(tc.got-tc.want) > tc.within*tc.want {
			t.Errorf("%s: %.4g, the trace has %.4g", tc.name, tc.got, tc.want)
		}
	}
}

func TestQuantilesAreInOrder(t *testing.T) {
	for name, q := range map[string]quantiles{"newInput": newInput, "output": output, "pause": pause, "newText": newText, "editedText": editedText, "keptShare": keptShare} {
		if q[0].p != 0 || q[len(q)-1].p != 1 || !slices.IsSortedFunc(q, func(a, b point) int {
			if a.p < b.p && a.x <= b.x {
				return -1
			}
			return 1
		}) {
			t.Errorf("%s is not a distribution: %v", name, q)
		}
	}
}

func BenchmarkGenerate(b *testing.B) {
	g := NewGenerator(1)
	for b.Loop() {
		g.Next()
	}
}
