package report

import (
	"bytes"
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"github.com/go-analyze/charts"
)

// theme is the colours of one rendering. The page holds each chart twice and shows
// the one that suits the reader's choice of light or dark.
type theme struct {
	class       string
	text, faint string
	grid, panel string
	series      []string
	dark        bool
}

// The series colours keep apart for colour-blind readers too, after Okabe and Ito.
func themes() [2]theme {
	return [2]theme{
		{class: "light", text: "#1d2733", faint: "#5b6b7c", grid: "#e3e8ee", panel: "#ffffff",
			series: []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a6ff0", "#8a6d00"}},
		{class: "dark", text: "#e6ebf1", faint: "#9aa8b8", grid: "#2c3846", panel: "#18212c",
			series: []string{"#56b4e9", "#f0883e", "#2fc597", "#e39ac3", "#a79fff", "#d9b838"}, dark: true},
	}
}

func (t *theme) palette() charts.ColorPalette {
	series := make([]charts.Color, len(t.series))
	for i, s := range t.series {
		series[i] = charts.ColorFromHex(s)
	}
	text, faint := charts.ColorFromHex(t.text), charts.ColorFromHex(t.faint)
	return charts.MakeTheme(charts.ThemeOption{
		IsDarkMode:         t.dark,
		AxisStrokeColor:    charts.ColorFromHex(t.grid),
		AxisSplitLineColor: charts.ColorFromHex(t.grid),
		BackgroundColor:    charts.ColorFromHex(t.panel),
		TextColor:          text,
		TextColorLabel:     text,
		TextColorLegend:    text,
		TextColorXAxis:     faint,
		TextColorYAxis:     faint,
		SeriesColors:       series,
	})
}

// chart is a drawing with its words.
type chart struct {
	Title string
	Note  string
	Wide  bool
	SVG   []template.HTML // light, dark
	Keys  []key
	Label string // for those who cannot see it
}

// key says what a colour stands for.
type key struct {
	Name  string
	Value string // "" if there is none to tell
	Color int
}

// keys names the paths.
func (d *Data) keys() []key {
	keys := make([]key, len(d.Paths))
	for i, p := range d.Paths {
		keys[i] = key{Name: p.Name, Color: color(i)}
	}
	return keys
}

// color is the number of a path's colour.
func color(path int) int { return path % len(themes()[0].series) }

// draw renders a chart once a theme.
func draw(width, height int, paint func(*charts.Painter, charts.ColorPalette) error) ([]template.HTML, error) {
	var out []template.HTML
	for _, t := range themes() {
		palette := t.palette()
		p := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: width, Height: height, Theme: palette})
		if err := paint(p, palette); err != nil {
			return nil, err
		}
		svg, err := p.Bytes()
		if err != nil {
			return nil, err
		}
		out = append(out, template.HTML(fmt.Sprintf(`<div class="%s">%s</div>`, t.class, bytes.TrimSpace(svg))))
	}
	return out, nil
}

const (
	wide   = 1080
	half   = 520
	height = 300
	small  = 11.0 // points of axis and legend text
)

// axis is a value axis from 0 over max, in at most six round steps, labelled in
// units of 10^9. The series are not: the library takes 1 off the least value of
// stacked ones, which has to be next to nothing.
func axis(max float64) charts.ValueAxisOption {
	step := 1e9
	if max > 0 {
		step = math.Pow(10, math.Floor(math.Log10(max/6)))
		for _, f := range []float64{1, 2, 2.5, 5, 10} {
			if max <= 6*f*step {
				step *= f
				break
			}
		}
	}
	n := math.Max(1, math.Ceil(max/step-1e-9))
	return charts.ValueAxisOption{
		Min: charts.Ptr(0.0), Max: charts.Ptr(n * step), LabelCount: int(n) + 1,
		RangeValuePaddingScale: charts.Ptr(0.0),
		LabelFontStyle:         font(),
		SplitLineShow:          charts.Ptr(true),
		ValueFormatter:         func(v float64) string { return fmt.Sprintf("%.3g", v/1e9) },
	}
}

// highest is the largest sum over the series at one place.
func highest(series [][]float64) float64 {
	most := 0.0
	for i := range series[0] {
		sum := 0.0
		for _, s := range series {
			sum += s[i]
		}
		most = math.Max(most, sum)
	}
	return most
}

func font() charts.FontStyle { return charts.NewFontStyleWithSize(small) }

// maxPoints is how many steps of a timeline are drawn: more cannot be told apart.
const maxPoints = 270

// thin adds neighbouring steps together until few enough are left.
func (t *Timeline) thin() (step time.Duration, paths [][]float64) {
	n := 0
	for _, p := range t.Paths {
		n = max(n, len(p))
	}
	by := max(1, (n+maxPoints-1)/maxPoints)
	step = t.Step * time.Duration(by)
	for _, p := range t.Paths {
		rates := make([]float64, (n+by-1)/by)
		for i, b := range p {
			rates[i/by] += float64(b)
		}
		for i := range rates {
			// The last step may be made of fewer.
			took := min(by, n-i*by)
			rates[i] /= t.Step.Seconds() * float64(took)
		}
		paths = append(paths, rates)
	}
	return step, paths
}

func (d *Data) throughputChart() (*chart, error) {
	if d.Timeline.Step <= 0 || len(d.Timeline.Paths) == 0 || len(d.Timeline.Paths) > len(d.Paths) {
		return nil, nil
	}
	step, rates := d.Timeline.thin()
	if len(rates[0]) < 2 {
		return nil, nil
	}
	labels := make([]string, len(rates[0]))
	for i := range labels {
		labels[i] = fmt.Sprintf("%.3g s", (step * time.Duration(i)).Seconds())
	}
	labels[len(labels)-1] = "" // the library always writes it, over its neighbour if need be
	svg, err := draw(wide, height, func(p *charts.Painter, theme charts.ColorPalette) error {
		opt := charts.NewLineChartOptionWithSeries(charts.NewSeriesListLine(rates))
		opt.Theme = theme
		opt.StackSeries = charts.Ptr(true)
		opt.FillOpacity = 150
		opt.LineStrokeWidth = 1.2
		opt.Symbol.Shape = charts.SymbolNone
		opt.Padding = charts.NewBox(8, 12, 24, 4)
		opt.Legend.Show = charts.Ptr(false)
		opt.XAxis.Labels = labels
		opt.XAxis.LabelCount = min(11, len(labels))
		opt.XAxis.LabelFontStyle = font()
		opt.XAxis.BoundaryGap = charts.Ptr(false)
		opt.YAxis = []charts.YAxisOption{axis(highest(rates))}
		return p.LineChart(opt)
	})
	if err != nil {
		return nil, fmt.Errorf("report: draw throughput: %w", err)
	}
	return &chart{
		Title: "Throughput over time", Wide: true, SVG: svg, Keys: d.keys()[:len(rates)],
		Note:  fmt.Sprintf("GB/s (10⁹ bytes), averaged over %s; the paths lie on top of each other.", formatDuration(step)),
		Label: "Stacked areas of the throughput of each path over time",
	}, nil
}

func (d *Data) shareChart() (*chart, error) {
	total := d.bytes()
	if total == 0 {
		return nil, nil
	}
	values := make([]float64, len(d.Paths))
	for i, p := range d.Paths {
		values[i] = float64(p.Bytes)
	}
	svg, err := draw(half, height, func(p *charts.Painter, theme charts.ColorPalette) error {
		opt := charts.NewDoughnutChartOptionWithData(values)
		opt.Theme = theme
		opt.Padding = charts.NewBox(8, 8, 8, 8)
		opt.RadiusRing, opt.RadiusCenter = "47%", "31%"
		opt.SegmentGap = 1
		opt.Legend.Show = charts.Ptr(false)
		for i := range opt.SeriesList {
			opt.SeriesList[i].Name = d.Paths[i].Name
			opt.SeriesList[i].Label.Show = charts.Ptr(false)
		}
		opt.CenterValues = "sum"
		opt.CenterValuesFontStyle = charts.NewFontStyleWithSize(15)
		opt.ValueFormatter = func(v float64) string { return formatBytes(uint64(v)) }
		return p.DoughnutChart(opt)
	})
	if err != nil {
		return nil, fmt.Errorf("report: draw shares: %w", err)
	}
	keys := d.keys()
	for i := range keys {
		keys[i].Value = share(d.Paths[i].Bytes, total)
	}
	return &chart{Title: "Share by path", Keys: keys, SVG: svg, Note: "Bytes, of all that were moved.", Label: "Ring of the share of each path"}, nil
}

func (d *Data) latencyChart() (*chart, error) {
	l := d.Latency
	if l == nil || l.Count() < 2 || l.Max() <= l.Quantile(0) {
		return nil, nil
	}
	const points = 121
	lo, hi := math.Log(float64(l.Quantile(0))), math.Log(float64(l.Max())*1.001)
	labels, values := make([]string, points), make([]float64, points)
	for i := range points {
		at := time.Duration(math.Exp(lo + (hi-lo)*float64(i)/(points-1)))
		labels[i] = formatDuration(at)
		values[i] = 100 * l.below(at)
	}
	labels[points-1] = ""
	svg, err := draw(half, height, func(p *charts.Painter, theme charts.ColorPalette) error {
		opt := charts.NewLineChartOptionWithData([][]float64{values})
		opt.Theme = theme
		opt.FillArea = charts.Ptr(true)
		opt.FillOpacity = 60
		opt.LineStrokeWidth = 2
		opt.Symbol.Shape = charts.SymbolNone
		opt.Padding = charts.NewBox(12, 14, 24, 8)
		opt.Legend.Show = charts.Ptr(false)
		opt.XAxis.Labels = labels
		opt.XAxis.LabelCount = 6
		opt.XAxis.LabelFontStyle = font()
		opt.XAxis.BoundaryGap = charts.Ptr(false)
		y := axis(100)
		y.ValueFormatter = func(v float64) string { return fmt.Sprintf("%.0f %%", v) }
		opt.YAxis = []charts.YAxisOption{y}
		return p.LineChart(opt)
	})
	if err != nil {
		return nil, fmt.Errorf("report: draw latency: %w", err)
	}
	return &chart{Title: "Latency of requests", SVG: svg, Note: "Share of requests done within a time, on a logarithmic scale.", Label: "Cumulative distribution of request latency"}, nil
}

// label makes a name fit for a drawing. The library does not escape what it
// writes, and the space keeps the bars at a distance.
func label(name string) string {
	const most = 24
	if r := []rune(name); len(r) > most {
		name = string(r[:most-1]) + "…"
	}
	return template.HTMLEscapeString(strings.ToValidUTF8(name, "\ufffd")) + "\u00a0"
}

// maxBars is how many bars are drawn.
const maxBars = 32

func (d *Data) barChart(title, note string, bars []Bar) (*chart, error) {
	if len(bars) == 0 || len(d.Paths) == 0 {
		return nil, nil
	}
	if n := len(bars) - maxBars; n > 0 {
		bars = bars[:maxBars]
		note += fmt.Sprintf(" %d more are not shown.", n)
	}
	// The library draws from the bottom up.
	labels := make([]string, len(bars))
	series := make([][]float64, len(d.Paths))
	for s := range series {
		series[s] = make([]float64, len(bars))
	}
	for i := range bars {
		at := len(bars) - 1 - i
		labels[at] = label(bars[i].Name)
		for s, v := range bars[i].Parts[:min(len(bars[i].Parts), len(series))] {
			series[s][at] = float64(v)
		}
	}
	svg, err := draw(half, max(120, 60+28*len(bars)), func(p *charts.Painter, theme charts.ColorPalette) error {
		opt := charts.NewBarChartOptionWithSeries(charts.NewSeriesListBar(series))
		opt.Theme = theme
		opt.Horizontal = true
		opt.StackSeries = charts.Ptr(true)
		opt.BarSize = 0.6
		opt.Padding = charts.NewBox(8, 8, 28, 8)
		opt.Legend.Show = charts.Ptr(false)
		opt.CategoryAxis.Labels = labels
		opt.CategoryAxis.LabelFontStyle = font()
		opt.CategoryAxis.LabelCount = len(labels)
		opt.ValueAxis = []charts.ValueAxisOption{axis(highest(series))}
		return p.BarChart(opt)
	})
	if err != nil {
		return nil, fmt.Errorf("report: draw %s: %w", title, err)
	}
	return &chart{Title: title, SVG: svg, Keys: d.keys(), Note: note, Label: "Bars of " + title}, nil
}
