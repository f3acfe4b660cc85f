package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

func html(t *testing.T, d Data) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, d); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var (
	// reference is whatever makes a browser fetch something.
	reference = regexp.MustCompile(`(?i)(\b(src|href|srcset|data|action|poster|background)\s*=|url\(|@import|<script|<link|<iframe|<object|<embed)`)
	address   = regexp.MustCompile(`(?i)\b(https?|ftp|wss?):/?/?[^"'\s<>]*|["'(]//[a-z]`)
)

func TestPageNeedsNoNetwork(t *testing.T) {
	d := sample()
	d.Command = "railhop replay" // the reader's own words may hold an address
	page := html(t, d)
	if found := reference.FindString(page); found != "" {
		t.Errorf("the page refers to something outside: %q", found)
	}
	for _, found := range address.FindAllString(page, -1) {
		// The names of XML namespaces look like addresses and are never fetched.
		if found != "http://www.w3.org/2000/svg" && found != "http://www.w3.org/1999/xlink" {
			t.Errorf("the page holds an address: %q", found)
		}
	}
	for _, bad := range []string{`<script src="https://cdn.example/x.js">`, `<img src=x.png>`, `a { background: url(x.png) }`} {
		if !reference.MatchString(bad) {
			t.Errorf("the test does not see %q", bad)
		}
	}
}

func TestPageShowsTheRun(t *testing.T) {
	page := html(t, sample())
	for _, want := range []string{
		"<title>Replay of conversation_trace.jsonl</title>", "200 requests of llama-3-70b",
		"✓ verified: 1,139,230,720 bytes equal", "Scaled down to 1 of 80 layers",
		"Throughput over time", "Share by path", "Latency of requests", "Bytes by rail", "Bytes by lane",
		"direct, same rail", "direct, cross rail", "relayed", "5.66 GB", "49.6 %", "1.17",
		"p50 latency", "p90 latency", "p99 latency", "same_rail", "no_credit", "degraded", "rank 3 to 2",
		"--prefill-tp 4", "Started 2026-03-01 12:30:00 UTC", "prefers-color-scheme: dark",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, "cpu_doorbell") {
		t.Error("the page shows a fallback that did not occur")
	}
	if n := strings.Count(page, "<svg"); n != 10 {
		t.Errorf("%d drawings, want 5 in two themes", n)
	}
	if len(page) > 400<<10 {
		t.Errorf("the page has %d bytes, want at most 400 KiB", len(page))
	}
}

func TestBadRunsLookBad(t *testing.T) {
	for _, tc := range []struct {
		name   string
		verify Verify
		want   string
	}{
		{"bytes differ", Verify{Checked: 5000, Mismatched: 1200}, "✗ 1,200 of 5,000 bytes differ"},
		{"nothing checked", Verify{}, "✗ nothing verified"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := sample()
			d.Verify = tc.verify
			if page := html(t, d); !strings.Contains(page, tc.want) || !strings.Contains(page, `class="verdict bad"`) {
				t.Errorf("the page lacks %q in red", tc.want)
			}
		})
	}
}

func TestNamesAreEscaped(t *testing.T) {
	const evil = `<script>alert("x")</script>&amp;'`
	d := sample()
	d.Title, d.Intro, d.Command, d.Notes = evil, evil, evil, []string{evil}
	d.Params, d.Facts = []Fact{{evil, evil}}, []Fact{{evil, evil}}
	d.Paths[0].Name, d.Rails[0].Name, d.Lanes[0].Name, d.RailsTitle = evil, evil, evil, evil
	page := html(t, d)
	if strings.Contains(page, "<script") || strings.Contains(page, "alert(\"") {
		t.Error("a name became markup")
	}
	wellFormed(t, page)
}

func TestDrawingsAreWellFormed(t *testing.T) {
	d := sample()
	d.Rails[0].Name, d.Rails[1].Name, d.Rails[2].Name = "\xff\xfe", "<&>", strings.Repeat("é", 300)
	wellFormed(t, html(t, d))
}

// wellFormed parses the drawings of a page.
func wellFormed(t *testing.T, page string) {
	t.Helper()
	for i, svg := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(page, -1) {
		dec := xml.NewDecoder(strings.NewReader(svg))
		for {
			if _, err := dec.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("drawing %d: %v", i, err)
			}
		}
		if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Errorf("drawing %d has a number that is none", i)
		}
	}
}

func TestSparseRuns(t *testing.T) {
	one := NewLatency()
	one.Record(time.Millisecond)
	same := NewLatency()
	same.Record(time.Millisecond)
	same.Record(time.Millisecond)
	paths := []Path{{Name: "direct"}, {Name: "relayed", Bytes: 5, Rate: 3}}
	var lanes []Bar
	for i := range 100 {
		lanes = append(lanes, Bar{Name: fmt.Sprintf("lane %d", i), Parts: []uint64{0, uint64(i)}})
	}
	for _, tc := range []struct {
		name string
		data Data
		svgs int
	}{
		{"nothing", Data{}, 0},
		{"one request", Data{Requests: 1, Paths: paths, Latency: one}, 2},
		{"equal latencies", Data{Paths: paths, Latency: same}, 2},
		{"no latencies", Data{Paths: paths, Latency: NewLatency()}, 2},
		{"no bytes", Data{Paths: paths[:1]}, 0},
		{"one step", Data{Paths: paths, Timeline: Timeline{Step: time.Second, Paths: [][]uint64{{1}, {2}}}}, 2},
		{"steps of nothing", Data{Paths: paths, Timeline: Timeline{Step: time.Second, Paths: [][]uint64{{0, 0, 0}, {0, 0, 0}}}}, 4},
		{"uneven timeline", Data{Paths: paths, Timeline: Timeline{Step: time.Second, Paths: [][]uint64{{1}, {1, 2, 3, 4}}}}, 4},
		{"more lines than paths", Data{Paths: paths, Timeline: Timeline{Step: time.Second, Paths: [][]uint64{{1, 2}, {1, 2}, {1, 2}}}}, 2},
		{"bars without paths", Data{Rails: lanes}, 0},
		{"bars of nothing", Data{Paths: paths, Rails: []Bar{{Name: "rail 0"}}}, 4},
		{"many bars", Data{Paths: paths, Lanes: lanes}, 4},
		{"long timeline", Data{Paths: paths, Timeline: Timeline{Step: time.Millisecond, Paths: [][]uint64{make([]uint64, 100000), make([]uint64, 99999)}}}, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			page := html(t, tc.data)
			if n := strings.Count(page, "<svg"); n != tc.svgs {
				t.Errorf("%d drawings, want %d", n, tc.svgs)
			}
			if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
				t.Error("the page has a number that is none")
			}
			if len(page) > 400<<10 {
				t.Errorf("the page has %d bytes", len(page))
			}
			if err := Table(io.Discard, tc.data); err != nil {
				t.Error(err)
			}
		})
	}
	if page := html(t, Data{Paths: paths, Lanes: lanes}); !strings.Contains(page, "68 more are not shown") {
		t.Error("the page does not say that bars are left out")
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errDisk }

var errDisk = errors.New("disk full")

func TestErrorsOfTheWriterAreReturned(t *testing.T) {
	if err := Write(full{}, sample()); !errors.Is(err, errDisk) {
		t.Errorf("Write = %v, want %v", err, errDisk)
	}
	if err := Table(full{}, sample()); !errors.Is(err, errDisk) {
		t.Errorf("Table = %v, want %v", err, errDisk)
	}
}

func TestTimelineIsThinned(t *testing.T) {
	line := Timeline{Step: 100 * time.Millisecond, Paths: [][]uint64{make([]uint64, 2*maxPoints+1)}}
	for i := range line.Paths[0] {
		line.Paths[0][i] = 1000
	}
	step, rates := line.thin()
	if step != 300*time.Millisecond || len(rates[0]) != (2*maxPoints+1+2)/3 {
		t.Fatalf("%d steps of %v", len(rates[0]), step)
	}
	for i, r := range rates[0] {
		if r < 9999.9 || r > 10000.1 {
			t.Fatalf("step %d: %v bytes a second, want 10000", i, r)
		}
	}
}

func TestTable(t *testing.T) {
	d := sample()
	d.Fallbacks = append(d.Fallbacks, Fallback{xfer.RelaySuspected, 1})
	var b bytes.Buffer
	if err := Table(&b, d); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/table.txt")
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", &b, want)
	}
	if strings.Contains(b.String(), "\x1b") {
		t.Error("escape codes in what is no terminal")
	}
}
