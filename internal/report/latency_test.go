package report

import (
	"math"
	"testing"
	"time"
)

func TestLatencyQuantiles(t *testing.T) {
	l := NewLatency()
	for i := 1; i <= 1000; i++ {
		l.Record(time.Duration(i) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.9: 900 * time.Millisecond, 0.99: 990 * time.Millisecond, 1: time.Second} {
		got := l.Quantile(q)
		if math.Abs(float64(got-want)) > float64(want)/500 {
			t.Errorf("Quantile(%v) = %v, want %v", q, got, want)
		}
		if s := l.below(got); math.Abs(s-q) > 0.002 {
			t.Errorf("%v are below %v, want %v", s, got, q)
		}
	}
}

func TestLatencyOutOfRange(t *testing.T) {
	l := NewLatency()
	l.Record(-time.Second)
	l.Record(0)
	l.Record(1000 * time.Hour)
	if l.Count() != 3 || l.Quantile(0.5) != time.Microsecond || l.Max() < 9*time.Hour {
		t.Errorf("count %d, median %v, longest %v", l.Count(), l.Quantile(0.5), l.Max())
	}
	if empty := NewLatency(); empty.Quantile(0.5) != 0 || empty.below(time.Hour) != 0 || empty.Max() != 0 {
		t.Error("an empty histogram has values")
	}
}

func TestLatencyMerge(t *testing.T) {
	a, b := NewLatency(), NewLatency()
	a.Record(time.Millisecond)
	b.Record(3 * time.Second)
	a.Merge(b)
	if a.Count() != 2 || a.Max() < 2900*time.Millisecond || b.Count() != 1 {
		t.Errorf("merged: %d, %v; other: %d", a.Count(), a.Max(), b.Count())
	}
}

func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		group(0): "0", group(999): "999", group(1000): "1,000", group(1234567): "1,234,567",
		formatBytes(0): "0 B", formatBytes(999): "999 B", formatBytes(1000): "1.00 kB", formatBytes(999_600): "1.00 MB", formatBytes(12_345_678): "12.3 MB", formatBytes(math.MaxUint64): "18.4 EB",
		formatRate(0): "0.00 GB/s", formatRate(1.234e9): "1.23 GB/s", formatRate(1e6): "0.001 GB/s",
		formatDuration(0): "0 ns", formatDuration(1500): "1.5 µs", formatDuration(999_900): "1 ms", formatDuration(98200 * time.Microsecond): "98.2 ms", formatDuration(21300 * time.Millisecond): "21.3 s", formatDuration(100 * time.Minute): "1h40m0s",
		share(0, 0): "0 %", share(1, 3): "33.3 %", share(1, 100000): "< 0.1 %", share(99999, 100000): "> 99.9 %", share(5, 5): "100.0 %",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
