package capi

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// bounds are the upper ends of the classes of latency, Mooncake's.
var bounds = [...]time.Duration{
	10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

// meter logs now and then what has been transferred, as MC_TE_METRIC asks for. A nil
// one counts nothing.
type meter struct {
	stop chan struct{}
	done chan struct{}
	once sync.Once

	mu     sync.Mutex
	bytes  uint64
	counts [len(bounds) + 1]uint64
}

// newMeter returns one that logs a line every so often in which there was anything.
func newMeter(log *slog.Logger, every time.Duration) *meter {
	m := &meter{stop: make(chan struct{}), done: make(chan struct{})}
	go m.run(log, every)
	return m
}

func (m *meter) run(log *slog.Logger, every time.Duration) {
	defer close(m.done)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-tick.C:
			if line := m.line(every); line != "" {
				log.Info(line)
			}
		}
	}
}

func (m *meter) close() {
	if m != nil {
		m.once.Do(func() { close(m.stop) })
		<-m.done
	}
}

// add counts a transfer that is done: a call's or a batch's, or a task's of a C caller.
func (m *meter) add(took time.Duration, bytes uint64) {
	if m == nil {
		return
	}
	k := 0
	for k < len(bounds) && took > bounds[k] {
		k++
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += bytes
	m.counts[k]++
}

// line is what has been counted since it was called last, in Mooncake's words, or "".
func (m *meter) line(every time.Duration) string {
	m.mu.Lock()
	bytes, counts := m.bytes, m.counts
	m.bytes, m.counts = 0, [len(m.counts)]uint64{}
	m.mu.Unlock()
	all := uint64(0)
	for _, n := range counts {
		all += n
	}
	if all == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[Metrics] Transfer Engine Stats (over last %.0fs):", every.Seconds())
	if bytes > 0 {
		fmt.Fprintf(&b, " Throughput: %.2f MB/s", float64(bytes)/every.Seconds()/(1<<20))
	}
	fmt.Fprintf(&b, " | Latency Distribution (count=%d): ", all)
	comma := ""
	for k, n := range counts {
		share := 100 * float64(n) / float64(all)
		if share < 0.1 {
			continue
		}
		b.WriteString(comma)
		comma = ", "
		if k == len(bounds) {
			fmt.Fprintf(&b, ">%dμs", bounds[k-1].Microseconds())
		} else {
			from := int64(0)
			if k > 0 {
				from = bounds[k-1].Microseconds()
			}
			fmt.Fprintf(&b, "%d-%dμs", from, bounds[k].Microseconds())
		}
		fmt.Fprintf(&b, ":%.1f%%", share)
	}
	return b.String()
}
