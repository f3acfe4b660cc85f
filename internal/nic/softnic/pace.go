package softnic

import (
	"sync"
	"time"
)

const (
	// paceQuantum is the shortest sleep that is worth its cost; less than that
	// stays owed.
	paceQuantum = 200 * time.Microsecond
	// paceCredit is how much of the past may be made up for, so that a sleep that
	// took too long costs no throughput.
	paceCredit = 4 * time.Millisecond
	// paceChunk is how many bytes are paid for at once.
	paceChunk = 1 << 20

	maxLatency = time.Minute
)

// bucket is a token bucket, kept as the instant up to which the wire is taken.
type bucket struct {
	rate uint64 // bytes a second; 0 means no limit

	mu   sync.Mutex
	free time.Duration
}

// take pays for n bytes at the instant now and returns how long to wait before
// they are sent.
func (b *bucket) take(n int, now time.Duration) time.Duration {
	if b.rate == 0 || n == 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	start := max(b.free, now-paceCredit)
	b.free = start + time.Duration(float64(n)*1e9/float64(b.rate))
	if wait := start - now; wait >= paceQuantum {
		return wait
	}
	return 0
}

// pacer holds a device to its rates.
type pacer struct {
	start time.Time
	all   bucket
	cross bucket
}

func newPacer(rate, cross uint64) *pacer {
	return &pacer{start: time.Now(), all: bucket{rate: rate}, cross: bucket{rate: cross}}
}

// limited reports whether anything has to be paid for.
func (p *pacer) limited(cross bool) bool {
	return p.all.rate != 0 || (cross && p.cross.rate != 0)
}

func (p *pacer) take(n int, cross bool) time.Duration {
	now := time.Since(p.start)
	wait := p.all.take(n, now)
	if cross {
		wait = max(wait, p.cross.take(n, now))
	}
	return wait
}
