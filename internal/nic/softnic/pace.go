package softnic

import (
	"sync"
	"time"
)

const (
	// paceQuantum is the shortest sleep that is worth its cost; less than that
	// stays owed.
	paceQuantum = 200 * time.Microsecond
	// paceCredit is how much of the past a busy sender may make up for, so that a
	// sleep that took too long costs no throughput.
	paceCredit = 20 * time.Millisecond
	// paceIdle is the same for a sender that had nothing to send: no bursts.
	paceIdle = paceQuantum
	// Bytes are paid for in chunks of what paceStep lets through, within bounds.
	paceStep     = 2 * time.Millisecond
	paceChunkMin = 64 << 10
	paceChunkMax = 1 << 20

	maxLatency = time.Minute
)

// bucket is a token bucket, kept as the instant up to which the wire is taken.
type bucket struct {
	rate uint64 // bytes a second; 0 means no limit

	mu   sync.Mutex
	free time.Duration
}

// take pays for n bytes at the instant now and returns how long to wait before
// they are sent. idle says that the sender comes from having nothing to send.
func (b *bucket) take(n int, now time.Duration, idle bool) time.Duration {
	if b.rate == 0 || n == 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	credit := paceCredit
	if idle {
		credit = paceIdle
	}
	start := max(b.free, now-credit)
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

// chunk is how many bytes to pay for at once.
func (p *pacer) chunk(cross bool) int {
	rate := p.all.rate
	if cross && p.cross.rate != 0 && (rate == 0 || p.cross.rate < rate) {
		rate = p.cross.rate
	}
	step := float64(rate) * paceStep.Seconds()
	return int(min(max(step, paceChunkMin), paceChunkMax))
}

func (p *pacer) take(n int, cross, idle bool) time.Duration {
	now := time.Since(p.start)
	wait := p.all.take(n, now, idle)
	if cross {
		wait = max(wait, p.cross.take(n, now, idle))
	}
	return wait
}
