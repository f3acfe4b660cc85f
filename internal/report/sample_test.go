package report

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

// sample is a run as replay would report it.
func sample() Data {
	rnd := rand.New(rand.NewPCG(1, 2))
	d := Data{
		Title:    "Replay of conversation_trace.jsonl",
		Intro:    "200 requests of llama-3-70b from 4 prefill ranks to 2 decode ranks, rails rotated.",
		Command:  "railhop replay conversation_trace.jsonl --requests 200 --prefill-tp 4 --decode-tp 2",
		Started:  time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC),
		Elapsed:  21300 * time.Millisecond,
		Requests: 200,
		Params: []Fact{
			{"Trace", "conversation_trace.jsonl, 200 of 12,031 requests"}, {"Model", "llama-3-70b, 1 of 80 layers, 8 KV heads of 128, pages of 16 tokens"},
			{"Prefill TP, decode TP", "4, 2"}, {"Mapping", "rotated"}, {"Speed", "3 times trace time"}, {"Slots", "18 of 1 MiB a lane (MC_PXN_SLOT_SIZE)"},
		},
		Facts: []Fact{{"idle CPU", "0.04 %"}},
		Notes: []string{"Scaled down to 1 of 80 layers, to move at most 16 GiB: 10.61 GiB in place of 849.49 GiB. Span sizes are those of the full model."},
		Paths: []Path{
			{"direct, same rail", 5_696_000_000, 1.21e9}, {"direct, cross rail", 41_000_000, 0.31e9}, {"relayed", 5_655_300_000, 1.17e9},
		},
		Verify:    Verify{Checked: 1_139_230_720, Of: 11_392_300_000},
		Fallbacks: []Fallback{{xfer.SameRail, 920}, {xfer.NoCredit, 7}, {xfer.CPUDoorbell, 0}},
		Latency:   NewLatency(),
	}
	for range 200 {
		d.Latency.Record(time.Duration(math.Exp(rnd.NormFloat64()*0.9+4.6) * float64(time.Millisecond)))
	}
	d.Timeline = Timeline{Step: 50 * time.Millisecond, Paths: make([][]uint64, 3)}
	for i := range 426 {
		wave := 0.6 + 0.4*math.Sin(float64(i)/23)
		for s, scale := range []float64{27e6, 0.2e6, 26e6} {
			d.Timeline.Paths[s] = append(d.Timeline.Paths[s], uint64(scale*wave*(0.7+0.6*rnd.Float64())))
		}
	}
	for _, r := range []string{"rail 0", "rail 1", "rail 2", "rail 3"} {
		d.Rails = append(d.Rails, Bar{r, []uint64{uint64(1.2e9 + 4e8*rnd.Float64()), uint64(2e7 * rnd.Float64()), uint64(1.4e9 * rnd.Float64())}})
	}
	for _, r := range []string{"rank 0 to 1", "rank 0 to 2", "rank 1 to 2", "rank 3 to 1", "rank 3 to 2"} {
		d.Lanes = append(d.Lanes, Bar{r, []uint64{0, 0, uint64(1.4e9 * rnd.Float64())}})
	}
	return d
}
