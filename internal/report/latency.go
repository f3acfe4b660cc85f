package report

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latency is a histogram of durations from 1 µs to 10 hours, exact to 0.1 %.
// It belongs to one goroutine.
type Latency struct {
	h *hdrhistogram.Histogram
}

const (
	leastLatency = int64(1)                                 // µs
	mostLatency  = int64(10 * time.Hour / time.Microsecond) // µs
)

// NewLatency returns an empty histogram.
func NewLatency() *Latency {
	return &Latency{h: hdrhistogram.New(leastLatency, mostLatency, 3)}
}

// Record counts one duration. Those out of range count as the nearest in range.
func (l *Latency) Record(d time.Duration) {
	us := int64((d + time.Microsecond/2) / time.Microsecond)
	// In range, it cannot fail.
	_ = l.h.RecordValue(min(max(us, leastLatency), mostLatency))
}

// Merge counts all that o has counted.
func (l *Latency) Merge(o *Latency) { l.h.Merge(o.h) }

// Count is how many durations were recorded.
func (l *Latency) Count() int64 { return l.h.TotalCount() }

// Quantile is the duration below which share q, from 0 to 1, of all lie. It is 0
// if there is none.
func (l *Latency) Quantile(q float64) time.Duration {
	if l.Count() == 0 {
		return 0
	}
	return time.Duration(l.h.ValueAtQuantile(q*100)) * time.Microsecond
}

// Max is the longest duration.
func (l *Latency) Max() time.Duration { return time.Duration(l.h.Max()) * time.Microsecond }

// below is the share of durations of at most d.
func (l *Latency) below(d time.Duration) float64 {
	if l.Count() == 0 {
		return 0
	}
	n := int64(0)
	for _, b := range l.h.Distribution() {
		if b.From > int64(d/time.Microsecond) {
			break
		}
		n += b.Count
	}
	return float64(n) / float64(l.Count())
}
