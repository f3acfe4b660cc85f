package capi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop"
)

func TestMeter(t *testing.T) {
	type sample struct {
		took  time.Duration
		bytes uint64
	}
	tests := []struct {
		name    string
		samples []sample
		want    string
	}{
		{"nothing", nil, ""},
		{"one", []sample{{10 * time.Microsecond, 5 << 20}}, "[Metrics] Transfer Engine Stats (over last 5s): Throughput: 1.00 MB/s | Latency Distribution (count=1): 0-10μs:100.0%"},
		{"no bytes", []sample{{11 * time.Microsecond, 0}}, "[Metrics] Transfer Engine Stats (over last 5s): | Latency Distribution (count=1): 10-20μs:100.0%"},
		{"the longest", []sample{{time.Minute, 0}}, "[Metrics] Transfer Engine Stats (over last 5s): | Latency Distribution (count=1): >10000000μs:100.0%"},
		{"some", []sample{{time.Millisecond, 1 << 20}, {time.Millisecond, 0}, {1500 * time.Microsecond, 0}}, "[Metrics] Transfer Engine Stats (over last 5s): Throughput: 0.20 MB/s | Latency Distribution (count=3): 500-1000μs:66.7%, 1000-2000μs:33.3%"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var m meter
			for _, s := range test.samples {
				m.add(s.took, s.bytes)
			}
			if got := m.line(5 * time.Second); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
			if got := m.line(5 * time.Second); got != "" {
				t.Errorf("what was said is said again: %q", got)
			}
		})
	}
	var none *meter
	none.add(0, 0)
	none.close()
}

// TestMetricsAreLogged has a batch and a single transfer counted, and said once.
func TestMetricsAreLogged(t *testing.T) {
	dir := t.TempDir()
	l := NewLibrary()
	id, err := l.Open(Options{Host: "127.0.0.1", Metadata: "P2PHANDSHAKE", Environ: []string{
		"MC_FORCE_TCP=1", "RAILHOP_PROVIDERS=", "MC_LOG_DIR=" + dir, "MC_TE_METRIC=1", "MC_TE_METRIC_INTERVAL_SECONDS=1",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Destroy(id) })
	e, err := l.Engine(id)
	if err != nil {
		t.Fatal(err)
	}
	name, err := e.Name()
	if err != nil {
		t.Fatal(err)
	}
	at, err := e.Allocate(8192)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Pieces{
		{[]uint64{at}, []uint64{at + 4096}, []uint64{8}},
		{[]uint64{at, at + 8}, []uint64{at + 4096, at + 5000}, []uint64{8, 8}},
	} {
		if err := e.Transfer(railhop.Write, name, p, nil); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		logs, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(logs) != 1 {
			t.Fatalf("logs %q, %v", logs, err)
		}
		text, err := os.ReadFile(logs[0])
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "[Metrics] Transfer Engine Stats (over last 1s): Throughput: 0.00 MB/s | Latency Distribution (count=2): ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the log says nothing of two transfers:\n%s", text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
