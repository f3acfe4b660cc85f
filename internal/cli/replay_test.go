package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/fabric"
	"github.com/railhop/railhop/internal/report"
	"github.com/railhop/railhop/internal/trace"
	"github.com/railhop/railhop/internal/worker"
	"github.com/railhop/railhop/internal/workload"
)

func TestReplayJSON(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "page.html")
	status, out, errOut := runMain("replay", "--soft", "--json", "--model", "tiny", "--requests", "3", "--speed", "0", "--seed", "4",
		"--pool-bytes", "512KiB", "--slot-size", "256KiB", "--verify", "1", "--idle-seconds", "0.1", "--report", page)
	if status != 0 || errOut != "" {
		t.Fatalf("status %d, %q", status, errOut)
	}
	contract(t, out, "verified_bytes", "mismatched_bytes", "idle_cpu_percent", "fallbacks", "requests",
		"latency_ms.p50", "latency_ms.p90", "latency_ms.p99", "report", "paths.direct_same_rail.bytes",
		"paths.direct_cross_rail.gbytes_per_s", "paths.relayed.bytes", "paths.relayed.gbytes_per_s")
	var r replayResult
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Requests != 3 || r.MismatchedBytes != 0 || r.Bytes == 0 || r.VerifiedBytes != r.Bytes || r.Report != page || len(r.Fallbacks) != 0 {
		t.Errorf("result %+v", r)
	}
	// Of the four flows of TP 4 to TP 2, rails rotated, two cross rails.
	if r.Paths[sameRail].Bytes != r.Bytes/2 || r.Paths[relayed].Bytes != r.Bytes/2 || r.Paths[crossRail].Bytes != 0 {
		t.Errorf("paths %+v of %d bytes: want half direct on the same rail and half relayed", r.Paths, r.Bytes)
	}
	if l := r.Latency; l.P50 <= 0 || l.P90 < l.P50 || l.P99 < l.P90 {
		t.Errorf("latency %+v", l)
	}
	html, err := os.ReadFile(page)
	if err != nil || !bytes.Contains(html, []byte("prefill 0 through 1")) || !bytes.Contains(html, []byte("--verify=1")) {
		t.Errorf("page of %d bytes, %v: want its lanes and its command", len(html), err)
	}
}

// TestReplayOfATrace replays a file with bad lines at the trace's own times,
// without the relay.
func TestReplayOfATrace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, page := filepath.Join(dir, "t.jsonl"), filepath.Join(dir, "r.html")
	var b bytes.Buffer
	w := trace.NewWriter(&b)
	for i, ms := range []int64{0, 100, 300} {
		if err := w.Write(trace.Request{Timestamp: ms, InputLength: 200, HashIDs: []uint64{uint64(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(b.String(), "\n")
	if err := os.WriteFile(file, []byte(lines[0]+"rubbish\n"+lines[1]+`{"timestamp": -1}`+"\n"+lines[2]), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, errOut := runMain("replay", file, "--soft", "--model", "tiny", "--prefill-tp", "2", "--decode-tp", "2", "--relay=false",
		"--slot-size", "256KiB", "--idle-seconds", "0", "--report", page)
	if status != 0 {
		t.Fatalf("status %d, %q", status, errOut)
	}
	if n := strings.Count(errOut, "\n"); n != 2 || !strings.Contains(errOut, "t.jsonl: line 2: ") || !strings.Contains(errOut, "t.jsonl: line 4: ") {
		t.Errorf("messages %q: want lines 2 and 4 named", errOut)
	}
	for _, want := range []string{
		"3 requests of tiny from 2 prefill ranks to 2 decode ranks, rails rotated", "2 lines left out: they do not parse",
		"All 2 layers of 3 requests are replayed", "requests   3", "direct, cross rail │ ", "100.0 %", "fallbacks  none", "verified: ", "report: " + page,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if strings.Contains(out, "MC_PXN_SLOT_SIZE") {
		t.Errorf("slots are told of without a relay:\n%s", out)
	}
	// The last request comes 300 ms after the first.
	r := strings.SplitN(out, "elapsed", 2)
	if len(r) < 2 {
		t.Fatalf("no elapsed time in:\n%s", out)
	}
	text, _, _ := strings.Cut(strings.TrimSpace(r[1]), "\n")
	if d, err := time.ParseDuration(strings.ReplaceAll(text, " ", "")); err != nil || d < 300*time.Millisecond {
		t.Errorf("elapsed %q, %v: want 300 ms or more", text, err)
	}
}

// testReplay is a replay of which nothing runs.
func testReplay(t *testing.T, prefill, decode int) *replay {
	t.Helper()
	o := replayOptions{prefill: prefill, decode: decode, model: "tiny", mapping: "rotated", maxBytes: 1 << 30, pool: 128 << 10, speed: 1}
	w, err := o.workload(trace.Generate(1, 3))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := workload.New(w)
	if err != nil {
		t.Fatal(err)
	}
	return newReplay(&app{}, o, replayTrace{}, w, plan, fabric.New(fabric.Options{}), 2)
}

// TestChunksAreReceivedInOrder allows a chunk only when all flows have checked
// all before it.
func TestChunksAreReceivedInOrder(t *testing.T) {
	r := testReplay(t, 2, 1)
	flows := r.plan.Flows()
	if len(flows) != 2 || r.plan.Chunks() < 4 {
		t.Fatalf("%d flows, %d chunks: want 2 and 4 or more", len(flows), r.plan.Chunks())
	}
	for _, step := range []struct {
		flow, chunk int
		final       bool
		received    int
	}{
		{0, 0, false, -1}, {0, 0, true, -1}, {0, 1, true, -1}, {1, 0, true, 0}, {0, 2, true, 0},
		{1, 2, true, 0}, {1, 1, false, 0}, {1, 1, true, 2},
	} {
		r.note(worker.ReplayLanded{Flow: step.flow, Chunk: step.chunk, Final: step.final}, worker.Verified{Bytes: 10}, flows[step.flow])
		if r.received != step.received {
			t.Fatalf("after %+v: received %d", step, r.received)
		}
	}
	if len(r.allow[0]) != 1 || len(r.allow[1]) != 1 || r.verify.Checked != 80 {
		t.Errorf("allowed %d and %d, checked %d", len(r.allow[0]), len(r.allow[1]), r.verify.Checked)
	}
}

// TestReplayVerdict wants a failure for each thing that must not be.
func TestReplayVerdict(t *testing.T) {
	for _, tc := range []struct {
		name string
		harm func(*replay)
		want string // "" is a good run
	}{
		{"good", func(*replay) {}, ""},
		{"a byte differs", func(r *replay) {
			r.note(worker.ReplayLanded{Request: 2}, worker.Verified{Bytes: 9, Mismatched: 1, First: 5}, r.plan.Flows()[0])
		}, "request 2, prefill 0 to decode 0: 1 of 9 bytes differ, the first at offset 5"},
		{"a byte is missing", func(r *replay) { r.arrived-- }, "the decode ranks have counted"},
		{"a chunk is missing", func(r *replay) { r.received-- }, "chunks were received"},
		{"a write failed", func(r *replay) { r.stats = []worker.Stats{{Failed: worker.Flow{Ops: 2}}} }, "2 writes failed"},
	} {
		r := testReplay(t, 2, 1)
		r.arrived, r.received = r.verify.Of, r.plan.Chunks()-1
		tc.harm(r)
		err := r.verdict()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v: want %q", tc.name, err, tc.want)
		}
	}
}

func TestTimeline(t *testing.T) {
	r := testReplay(t, 1, 1)
	r.elapsed = 900 * time.Millisecond
	for _, s := range []struct {
		ms   int
		same uint64
		hop  uint64
	}{{100, 0, 0}, {300, 200, 0}, {700, 200, 800}, {910, 260, 800}} {
		r.samples = append(r.samples, sample{at: time.Duration(s.ms) * time.Millisecond, bytes: [len(ways)]uint64{s.same, 0, s.hop}})
	}
	r.end([]worker.Stats{{DirectSameRail: worker.Flow{Bytes: 260}, Relayed: worker.Flow{Bytes: 800}}})
	var d report.Data
	d.Elapsed = r.elapsed
	r.timeline(&d)
	if want := []uint64{100, 100, 0, 30, 30}; len(d.Timeline.Paths) != 3 || !slices.Equal(d.Timeline.Paths[0], want) {
		t.Errorf("same rail by step %v: want %v", d.Timeline.Paths[0], want)
	}
	if want := []uint64{0, 200, 400, 200, 0}; !slices.Equal(d.Timeline.Paths[2], want) {
		t.Errorf("relayed by step %v: want %v", d.Timeline.Paths[2], want)
	}
	if p := d.Paths[2]; p.Bytes != 800 || p.Rate < 1333 || p.Rate > 1334 {
		t.Errorf("relayed %+v: want 800 bytes in 600 ms", p)
	}
}
