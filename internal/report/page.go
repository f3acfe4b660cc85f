package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"

	"github.com/railhop/railhop/internal/xfer"
)

//go:embed page.html
var pageSource string

// page is what the template shows: text only, but for the drawings.
type page struct {
	Title, Intro, Command, Started string
	Notes                          []string
	Good                           bool
	Verdict                        string
	Tiles                          []Fact
	Throughput                     *chart
	Paths                          []pathRow
	Total, Rate                    string
	Charts                         []*chart
	Percentiles                    []Fact
	Fallbacks                      []fallbackRow
	Verify                         []Fact
	Params                         []Fact
	Light, Dark                    []template.CSS
}

type pathRow struct {
	Name, Bytes, Share, Rate string
	Color                    int
}

type fallbackRow struct {
	Reason, Kind, Count string
}

// Write writes the page. It keeps nothing of d.
func Write(w io.Writer, d Data) error {
	p, err := d.page()
	if err != nil {
		return err
	}
	t, err := template.New("page").Parse(pageSource)
	if err != nil {
		return fmt.Errorf("report: parse page: %w", err)
	}
	// A page is written whole or not at all.
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return fmt.Errorf("report: fill page: %w", err)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("report: write page: %w", err)
	}
	return nil
}

func (d *Data) page() (*page, error) {
	p := &page{
		Title: d.Title, Intro: d.Intro, Command: d.Command, Notes: d.Notes, Params: d.Params,
		Good: d.Verify.ok(), Verdict: d.Verify.String(),
		Total: formatBytes(d.bytes()), Rate: fmt.Sprintf("%.2f", d.rate()/1e9),
	}
	if p.Title == "" {
		p.Title = "railhop"
	}
	if !d.Started.IsZero() {
		p.Started = d.Started.Format("2006-01-02 15:04:05 MST")
	}
	themes := themes()
	for i := range themes[0].series {
		p.Light = append(p.Light, template.CSS(themes[0].series[i]))
		p.Dark = append(p.Dark, template.CSS(themes[1].series[i]))
	}
	p.tiles(d)
	for i, path := range d.Paths {
		p.Paths = append(p.Paths, pathRow{
			Name: path.Name, Bytes: formatBytes(path.Bytes), Share: share(path.Bytes, d.bytes()),
			Rate: fmt.Sprintf("%.2f", path.Rate/1e9), Color: color(i),
		})
	}
	p.fallbacks(d)
	p.Verify = []Fact{
		{"Bytes compared", group(d.Verify.Checked)},
		{"Bytes that differ", group(d.Verify.Mismatched)},
	}
	if d.Verify.Of > 0 {
		p.Verify = append(p.Verify, Fact{"Share of bytes received", share(d.Verify.Checked, d.Verify.Of)})
	}
	return p, p.charts(d)
}

func (p *page) tiles(d *Data) {
	if d.Requests > 0 {
		p.Tiles = append(p.Tiles, Fact{"requests", group(uint64(d.Requests))})
	}
	p.Tiles = append(p.Tiles,
		Fact{"moved", formatBytes(d.bytes())},
		Fact{"elapsed", formatDuration(d.Elapsed)},
		Fact{"mean rate", formatRate(d.rate())})
	if l := d.Latency; l != nil && l.Count() > 0 {
		for _, q := range []struct {
			name string
			q    float64
		}{{"p50 latency", .5}, {"p90 latency", .9}, {"p99 latency", .99}} {
			p.Tiles = append(p.Tiles, Fact{q.name, formatDuration(l.Quantile(q.q))})
		}
		for _, q := range []float64{.5, .75, .9, .95, .99, .999} {
			p.Percentiles = append(p.Percentiles, Fact{fmt.Sprintf("%.4g %%", q*100), formatDuration(l.Quantile(q))})
		}
		p.Percentiles = append(p.Percentiles, Fact{"100 %", formatDuration(l.Max())})
	}
	p.Tiles = append(p.Tiles, d.Facts...)
}

func (p *page) fallbacks(d *Data) {
	kinds := map[xfer.Class]string{xfer.ByDesign: "by design", xfer.Degraded: "degraded", xfer.Lesser: "slower means"}
	all := slices.Clone(d.Fallbacks)
	slices.SortStableFunc(all, func(a, b Fallback) int {
		switch {
		case a.Count > b.Count:
			return -1
		case a.Count < b.Count:
			return 1
		}
		return 0
	})
	for _, f := range all {
		if f.Count > 0 {
			p.Fallbacks = append(p.Fallbacks, fallbackRow{f.Reason.String(), kinds[f.Reason.Class()], group(f.Count)})
		}
	}
}

func (p *page) charts(d *Data) error {
	var err error
	if p.Throughput, err = d.throughputChart(); err != nil {
		return err
	}
	rails, lanes := d.RailsTitle, d.LanesTitle
	if rails == "" {
		rails = "Bytes by rail"
	}
	if lanes == "" {
		lanes = "Bytes by lane"
	}
	for _, draw := range []func() (*chart, error){
		d.shareChart,
		d.latencyChart,
		func() (*chart, error) { return d.barChart(rails, "GB (10⁹ bytes), by path.", d.Rails) },
		func() (*chart, error) { return d.barChart(lanes, "GB (10⁹ bytes), by path.", d.Lanes) },
	} {
		c, err := draw()
		if err != nil {
			return err
		}
		if c != nil {
			p.Charts = append(p.Charts, c)
		}
	}
	return nil
}
