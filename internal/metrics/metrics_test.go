package metrics

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/path/pxn"
	"github.com/railhop/railhop/internal/path/rdma"
	"github.com/railhop/railhop/internal/path/tcp"
	"github.com/railhop/railhop/internal/xfer"
)

var update = flag.Bool("update", false, "rewrite testdata")

type fixed railhop.Stats

func (f fixed) Stats() railhop.Stats { return railhop.Stats(f) }

func sample() railhop.Stats {
	return railhop.Stats{
		Segment:         "10.0.0.1:15003",
		DirectSameRail:  railhop.Flow{Ops: 2, Bytes: 131072},
		DirectCrossRail: railhop.Flow{Ops: 1, Bytes: 65536},
		Relayed:         railhop.Flow{Ops: 4, Bytes: 1 << 40},
		Submitted:       railhop.Flow{Ops: 9, Bytes: 1<<40 + 196608 + 7},
		Failed:          railhop.Flow{Ops: 1, Bytes: 7},
		Reasons: map[railhop.Reason]railhop.Flow{
			xfer.SameRail:    {Ops: 2, Bytes: 131072},
			xfer.NoLane:      {Ops: 1, Bytes: 65536},
			xfer.CPUDoorbell: {Ops: 1},
		},
		Served: []uint64{5, 0, 0, 0, 0, 0, 3},
		Lanes:  []pxn.Status{{Peer: "0.41.7.9", Lane: 2, InFlight: 3, Queued: 8, Quarantined: true}},
		Direct: rdma.Stats{
			Posted: 3, Posts: 2, Retries: 1, Flushed: 1, Failed: 1, Fetches: 2, FetchFailures: 1, Deactivations: 1,
			NICs: []rdma.NICStats{
				{Name: "mlx5_0", Rail: "rail0", Active: true, Endpoints: endpoint.Stats{Endpoints: 2, Dials: 3, Connects: 2, Reconnects: 1, Failures: 1, Evictions: 4}},
				{Name: "mlx5_1", Rail: "rail1"},
			},
			Links: []rdma.LinkStats{
				{NIC: "mlx5_0", Peer: "10.0.0.2:15004@mlx5_0", Bytes: 131072, Ops: 2},
				{NIC: "mlx5_0", Peer: `odd"name\@mlx5_1`, Bytes: 65536, Ops: 1, Errors: 1},
			},
		},
		TCP:       tcp.Stats{Ops: 6, Bytes: 4096, Failed: 1, Dials: 3, DialFailures: 2, Refusals: 1, Timeouts: 4, Shuts: 5, Lost: 7},
		TCPServed: tcp.ServerStats{Open: 2, Reads: 3, Writes: 4, ReadBytes: 30, WriteBytes: 40, Refused: 5, Stale: 6},
		MayLand:   []railhop.Range{{Segment: "10.0.0.2:15004", Addr: 4096, Length: 100}, {Segment: "10.0.0.2:15004", Addr: 8192, Length: 20}},
		Parks:     77,
	}
}

func scrape(t *testing.T, s Source) string {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(s).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestExposition(t *testing.T) {
	got := scrape(t, fixed(sample()))
	const file = "testdata/exposition.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("go test -update rewrites it:\n%s", d)
	}
	problems, err := promlint.New(bytes.NewBufferString(got)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}

// An engine without a rank and without traffic has every counter, at zero.
func TestIdleEngine(t *testing.T) {
	got := scrape(t, fixed{Segment: "a:1"})
	for _, want := range []string{
		`railhop_path_bytes_total{path="relayed"} 0`,
		`railhop_reasons_total{class="degraded",reason="no_lane"} 0`,
		`railhop_may_still_land_ranges 0`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no line %q", want)
		}
	}
	for _, r := range xfer.Reasons() {
		if !strings.Contains(got, fmt.Sprintf("reason=%q", r)) {
			t.Errorf("reason %s is not shown", r)
		}
	}
}

func TestLinksAreBounded(t *testing.T) {
	var s railhop.Stats
	add := func(peer string, bytes uint64) {
		s.Direct.Links = append(s.Direct.Links, rdma.LinkStats{NIC: "n", Peer: peer, Bytes: bytes, Ops: 1})
	}
	for i := range MaxLinks {
		add(fmt.Sprintf("p%d", i), 1)
	}
	c := New(nil)
	if got := c.bounded(s); len(got) != MaxLinks {
		t.Fatalf("%d links, want %d", len(got), MaxLinks)
	}
	add("late", 10)
	add("later", 32)
	got := c.bounded(s)
	if len(got) != MaxLinks+1 {
		t.Fatalf("%d links, want %d", len(got), MaxLinks+1)
	}
	if o := got[MaxLinks]; o.peer != Other || o.bytes != 42 || o.ops != 2 {
		t.Errorf("the rest is %+v, want 42 bytes in 2 operations of %q", o, Other)
	}
	// The first ones are gone, and the late ones stay where they are counted.
	s.Direct.Links = s.Direct.Links[MaxLinks:]
	if got := c.bounded(s); len(got) != 1 || got[0].bytes != 42 {
		t.Errorf("%+v, want one link with 42 bytes", got)
	}
}

// A peer's name is whatever the peer says.
func TestNamesOfPeers(t *testing.T) {
	long := strings.Repeat("x", 300)
	got := scrape(t, fixed{Segment: "a\xff:1", Direct: rdma.Stats{Links: []rdma.LinkStats{
		{NIC: "n", Peer: "\xfe\n", Bytes: 1},
		{NIC: "n", Peer: long + "1", Bytes: 2},
		{NIC: "n", Peer: long + "2", Bytes: 3},
	}}})
	for _, want := range []string{
		"railhop_engine_info{segment=\"a\uFFFD:1\"} 1\n",
		"railhop_link_bytes_total{nic=\"n\",peer=\"\uFFFD\\n\"} 1\n",
		"railhop_link_bytes_total{nic=\"n\",peer=\"" + long[:256] + "\"} 5\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no line %q", want)
		}
	}
}

func TestServer(t *testing.T) {
	v, err := Listen("127.0.0.1:0", fixed(sample()))
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	resp, err := http.Get(v.URL())
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte("railhop_pump_parks_total 77\n")) {
		t.Errorf("status %d, %v: %s", resp.StatusCode, err, body)
	}
	if _, err := Listen(strings.TrimSuffix(strings.TrimPrefix(v.URL(), "http://"), "/metrics"), fixed{}); err == nil {
		t.Error("the same port twice: no error")
	}
	for range 2 {
		if err := v.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if _, err := http.Get(v.URL()); err == nil {
		t.Error("it answers after Close")
	}
}
