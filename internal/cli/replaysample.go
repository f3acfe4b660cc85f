package cli

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/railhop/railhop/internal/fabric"
	"github.com/railhop/railhop/internal/report"
	"github.com/railhop/railhop/internal/worker"
)

const sampleEvery = 200 * time.Millisecond

// sample is the bytes by way at an instant.
type sample struct {
	at    time.Duration
	bytes [len(ways)]uint64
}

// watch samples how many bytes have gone which way.
func (r *replay) watch(ctx context.Context, done <-chan struct{}) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			// A sample that cannot be had is left out: the next covers its time.
			if stats, err := r.allStats(ctx); err == nil {
				r.add(time.Since(r.started), stats)
			}
		case <-done:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (r *replay) add(at time.Duration, stats []worker.Stats) {
	s := sample{at: at}
	for _, st := range stats {
		for i, f := range [...]worker.Flow{st.DirectSameRail, st.DirectCrossRail, st.Relayed} {
			s.bytes[i] += f.Bytes
		}
	}
	r.samples = append(r.samples, s)
	r.bar.set(s.bytes[0] + s.bytes[1] + s.bytes[2])
}

// end puts the final counters in place of the samples that came after the end.
func (r *replay) end(stats []worker.Stats) {
	r.samples = slices.DeleteFunc(r.samples, func(s sample) bool { return s.at >= r.elapsed })
	r.add(r.elapsed, stats)
}

func (r *replay) allStats(ctx context.Context) ([]worker.Stats, error) {
	stats, errs := make([]worker.Stats, len(r.prefill)), make([]error, len(r.prefill))
	fabric.Each(len(r.prefill), func(i int) { stats[i], errs[i] = r.prefill[i].Stats(ctx, fabric.Engine) })
	return stats, errors.Join(errs...)
}

// timeline spreads the samples over equal steps, and works out how fast each way
// was while it was in use.
func (r *replay) timeline(d *report.Data) {
	step := sampleEvery
	for d.Elapsed/step > 600 {
		step *= 2
	}
	n := int((d.Elapsed + step - 1) / step)
	d.Timeline = report.Timeline{Step: step, Paths: make([][]uint64, len(ways))}
	for way := range ways {
		d.Timeline.Paths[way] = make([]uint64, n)
		total, used, last := uint64(0), time.Duration(0), uint64(0)
		for i := range n {
			end := min(time.Duration(i+1)*step, d.Elapsed)
			at := r.bytesAt(way, end)
			moved := at - min(last, at)
			d.Timeline.Paths[way][i] = moved
			if moved > 0 {
				used += end - time.Duration(i)*step
			}
			last, total = max(at, last), total+moved
		}
		p := report.Path{Name: wayNames[way], Bytes: total}
		if used > 0 {
			p.Rate = float64(total) / used.Seconds()
		}
		d.Paths = append(d.Paths, p)
	}
}

// bytesAt is how much had gone a way at an instant, between the samples around it.
func (r *replay) bytesAt(way int, at time.Duration) uint64 {
	var a sample
	for _, b := range r.samples {
		if at <= b.at {
			if b.at == a.at {
				return b.bytes[way]
			}
			part := float64(at-a.at) / float64(b.at-a.at)
			return a.bytes[way] + uint64(part*float64(b.bytes[way]-a.bytes[way]))
		}
		a = b
	}
	return a.bytes[way]
}
