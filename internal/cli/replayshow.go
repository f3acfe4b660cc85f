package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/railhop/railhop/internal/fabric"
	"github.com/railhop/railhop/internal/report"
	"github.com/railhop/railhop/internal/xfer"
)

// replayResult is what replay --json prints. Scripts rely on its names.
type replayResult struct {
	VerifiedBytes   uint64               `json:"verified_bytes"`
	MismatchedBytes uint64               `json:"mismatched_bytes"`
	IdleCPU         float64              `json:"idle_cpu_percent"` // of a core, the busiest process
	Fallbacks       map[string]uint64    `json:"fallbacks"`
	Paths           map[string]*demoPath `json:"paths"`
	Requests        int                  `json:"requests"`
	Latency         struct {
		P50 float64 `json:"p50"`
		P90 float64 `json:"p90"`
		P99 float64 `json:"p99"`
	} `json:"latency_ms"`
	Report       string  `json:"report"` // "" if none was asked for
	Bytes        uint64  `json:"bytes"`
	Seconds      float64 `json:"seconds"`
	SkippedLines int     `json:"skipped_lines"`
	Scale        string  `json:"scale"` // how the workload was made to fit, for a person
	SlotSize     uint64  `json:"slot_size"`
}

var wayNames = [...]string{"direct, same rail", "direct, cross rail", "relayed"}

// show prints the outcome and writes the page.
func (r *replay) show(cmd *cobra.Command, args []string) error {
	d := r.data(cmd, args)
	path := r.opts.report
	if abs, err := filepath.Abs(path); path != "" && err == nil {
		path = abs
	}
	if r.app.json {
		enc := json.NewEncoder(r.app.out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(r.result(d, path)); err != nil {
			return err
		}
	} else if err := report.Table(r.app.out, d); err != nil {
		return err
	}
	if path == "" {
		return nil
	}
	if err := writePage(path, d); err != nil {
		return err
	}
	if !r.app.json {
		fmt.Fprintf(r.app.out, "report: %s\n", path)
	}
	return nil
}

func writePage(path string, d report.Data) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	err = report.Write(f, d)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

func (r *replay) result(d report.Data, path string) replayResult {
	res := replayResult{
		VerifiedBytes: r.verify.Checked - r.verify.Mismatched, MismatchedBytes: r.verify.Mismatched, IdleCPU: r.idle.most,
		Fallbacks: r.fallbacks(), Paths: make(map[string]*demoPath), Requests: r.plan.Requests(), Report: path,
		Bytes: r.verify.Of, Seconds: r.elapsed.Seconds(), SkippedLines: r.trace.summary.Skipped, Scale: r.plan.Scale().String(), SlotSize: r.opts.slot,
	}
	for i, p := range d.Paths {
		res.Paths[ways[i]] = &demoPath{Bytes: p.Bytes, GBps: p.Rate / 1e9}
	}
	ms := func(q float64) float64 { return float64(d.Latency.Quantile(q)) / float64(time.Millisecond) }
	res.Latency.P50, res.Latency.P90, res.Latency.P99 = ms(.5), ms(.9), ms(.99)
	return res
}

// fallbacks counts them over all prefill ranks, by the reason's name.
func (r *replay) fallbacks() map[string]uint64 {
	sum := make(map[string]uint64)
	for _, s := range r.stats {
		for reason, f := range s.Fallbacks {
			sum[reason] += f.Ops
		}
	}
	return sum
}

func (r *replay) data(cmd *cobra.Command, args []string) report.Data {
	m := r.plan.Model()
	s := r.plan.Scale()
	d := report.Data{
		Title:   "Replay of " + r.trace.name,
		Intro:   r.what() + ".",
		Command: commandLine(cmd, args),
		Started: r.started, Elapsed: r.elapsed, Requests: r.plan.Requests(), Verify: r.verify, Latency: report.NewLatency(),
		Notes: []string{s.String()}, RailsTitle: "Bytes by the rail they were sent on", LanesTitle: "Bytes by lane",
		Params: []report.Fact{
			{Name: "Trace", Value: r.trace.name},
			{Name: "Model", Value: fmt.Sprintf("%s, %d of %d layers, %s of %d, pages of %d tokens", m.Name, m.Layers, r.layers, plural(m.KVHeads, "KV head"), m.HeadDim, m.PageTokens)},
			{Name: "Prefill TP, decode TP", Value: fmt.Sprintf("%d, %d", r.opts.prefill, r.opts.decode)},
			{Name: "Mapping", Value: r.work.Mapping.String()},
			{Name: "Speed", Value: speedText(r.opts.speed)},
			{Name: "Fabric", Value: r.fabricText()},
			{Name: "Relay", Value: r.relayText()},
		},
	}
	if n := r.trace.summary.Skipped; n > 0 {
		d.Notes = append(d.Notes, fmt.Sprintf("%s of the trace left out: they do not parse.", plural(n, "line")))
	}
	if r.opts.scale < 1 {
		d.Notes = append(d.Notes, fmt.Sprintf("--scale %v left %d of %d layers to begin with.", r.opts.scale, r.work.Model.Layers, r.layers))
	}
	if r.opts.idle > 0 {
		d.Facts = append(d.Facts, report.Fact{Name: "idle CPU", Value: fmt.Sprintf("%.3f %%", r.idle.most)})
	}
	for _, t := range r.requests {
		if t.flows == len(r.plan.Flows()) {
			from := t.at
			if r.opts.speed == 0 {
				from = t.sent
			}
			d.Latency.Record(t.landed - from)
		}
	}
	r.timeline(&d)
	r.bars(&d)
	for name, n := range r.fallbacks() {
		for _, reason := range xfer.Reasons() {
			if reason.String() == name {
				d.Fallbacks = append(d.Fallbacks, report.Fallback{Reason: reason, Count: n})
			}
		}
	}
	slices.SortFunc(d.Fallbacks, func(a, b report.Fallback) int { return int(a.Reason) - int(b.Reason) })
	return d
}

func commandLine(cmd *cobra.Command, args []string) string {
	words := []string{cmd.CommandPath()}
	words = append(words, args...)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case !f.Changed:
		case f.Value.Type() == "bool" && f.Value.String() == "true":
			words = append(words, "--"+f.Name)
		default:
			words = append(words, "--"+f.Name+"="+f.Value.String())
		}
	})
	return strings.Join(words, " ")
}

func speedText(speed float64) string {
	switch speed {
	case 0:
		return "as fast as it goes"
	case 1:
		return "as in the trace"
	}
	return fmt.Sprintf("%v times the trace's", speed)
}

func (r *replay) fabricText() string {
	if r.opts.rates.uncapped {
		return "software NICs, not capped"
	}
	return fmt.Sprintf("software NICs, %s/s each, %s/s across rails", formatSize(r.opts.rates.link), formatSize(r.opts.rates.cross))
}

func (r *replay) relayText() string {
	if !r.opts.relay {
		return "off"
	}
	return fmt.Sprintf("on, slots of %s (MC_PXN_SLOT_SIZE)", formatSize(r.opts.slot))
}

// bars are bytes by the rail that they were sent on, and by lane.
func (r *replay) bars(d *report.Data) {
	lanes := make(map[string]string) // what a lane carries, by relay's pid and number
	for i, s := range r.stats {
		for _, l := range s.Lanes {
			if fields := strings.Split(l.Peer, "."); len(fields) > 1 {
				lanes[fmt.Sprintf("%s/%d", fields[1], l.Lane)] = fmt.Sprintf("prefill %d through %%d", i)
			}
		}
	}
	for i, s := range r.stats {
		served := uint64(0)
		for lane, bytes := range s.Served {
			served += bytes
			if bytes == 0 {
				continue
			}
			name, known := lanes[fmt.Sprintf("%d/%d", r.prefill[i].PID(), lane)]
			if known {
				name = fmt.Sprintf(name, i)
			} else {
				name = fmt.Sprintf("through %d, lane %d", i, lane)
			}
			d.Lanes = append(d.Lanes, report.Bar{Name: name, Parts: []uint64{0, 0, bytes}})
		}
		d.Rails = append(d.Rails, report.Bar{Name: "rail " + fabric.Rail(i), Parts: []uint64{s.DirectSameRail.Bytes, s.DirectCrossRail.Bytes, served}})
	}
	slices.SortFunc(d.Lanes, func(a, b report.Bar) int { return strings.Compare(a.Name, b.Name) })
}
