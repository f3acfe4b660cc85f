package main

import "testing"

func TestAverage(t *testing.T) {
	const out = ` #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             18.97              13.91  		   0.000223
`
	if got, err := average(out, 64<<10); err != nil || got != 13.91 {
		t.Errorf("got %v, %v, want 13.91", got, err)
	}
	if got, err := average(out, 1<<20); err == nil {
		t.Errorf("a row of another length gives %v", got)
	}
}

func TestJudge(t *testing.T) {
	c := contest{Figures: []*figure{
		{What: "64 KiB, 128 in flight", Kind: perftest, Unit: "MiB/s", Samples: []float64{10, 12, 11}},
		{What: "64 KiB, 128 in flight", Kind: inGo, Unit: "MiB/s", Samples: []float64{5, 9.9, 20}},
		{What: "128 x 64 KiB", Kind: mooncake, Unit: "MiB/s", Samples: []float64{10}},
		{What: "128 x 64 KiB", Kind: inGo, Unit: "MiB/s", Samples: []float64{9}},
		{What: "one write", Kind: mooncake, Unit: "ms", Samples: []float64{16}},
		{What: "one write", Kind: inPython, Unit: "ms", Samples: []float64{1.6}},
	}}
	c.judge()
	want := []struct{ what, kind, wanted string }{
		{"one write", mooncake, ""},
		{"one write", inPython, "<= 0.1 of Mooncake: met"},
		{"128 x 64 KiB", mooncake, ""},
		{"128 x 64 KiB", inGo, ">= 1 of Mooncake: missed"},
		{"64 KiB, 128 in flight", perftest, ""},
		{"64 KiB, 128 in flight", inGo, ">= 0.9 of ib_write_bw: met"},
	}
	for i, w := range want {
		if f := c.Figures[i]; f.What != w.what || f.Kind != w.kind || f.wanted() != w.wanted {
			t.Errorf("place %d: %s by %s, %q, want %+v", i, f.What, f.Kind, f.wanted(), w)
		}
	}
}
