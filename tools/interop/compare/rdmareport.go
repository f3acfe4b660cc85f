package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// figure is what one kind has shown of one workload, and what it is held against.
type figure struct {
	What    string    `json:"what"`
	Kind    string    `json:"kind"`
	Unit    string    `json:"unit"`
	Samples []float64 `json:"samples"`
	Median  float64   `json:"median"`
	Against string    `json:"against,omitempty"` // the kind that Ratio is to
	Ratio   float64   `json:"ratio,omitempty"`   // of the medians
	Paired  float64   `json:"paired,omitempty"`  // median of the alternations' ratios
	AtLeast float64   `json:"at_least,omitempty"`
	AtMost  float64   `json:"at_most,omitempty"`
}

// What is wanted of medians.
const (
	latencyWanted = 0.1
	streamWanted  = 0.9
)

// judge fills in medians and what they are held against.
func (c *contest) judge() {
	slices.SortFunc(c.Figures, func(a, b *figure) int {
		return cmp.Or(cmp.Compare(a.place(), b.place()), cmp.Compare(a.What, b.What), strings.Compare(a.Kind, b.Kind))
	})
	for _, f := range c.Figures {
		f.Median = median(f.Samples)
	}
	for _, f := range c.Figures {
		switch {
		case f.Kind == mooncake || f.Kind == perftest:
			continue
		case f.streamed():
			f.Against, f.AtLeast = perftest, streamWanted
		case f.Unit == "ms":
			f.Against, f.AtMost = mooncake, latencyWanted
		case f.Unit == "MiB/s":
			f.Against, f.AtLeast = mooncake, 1
		default:
			f.Against, f.AtMost = mooncake, 1
		}
		for _, other := range c.Figures {
			if other.What == f.What && other.Kind == f.Against {
				f.Ratio, f.Paired = f.Median/other.Median, paired(f.Samples, other.Samples)
			}
		}
	}
}

func paired(a, b []float64) float64 {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		ratios = append(ratios, a[i]/b[i])
	}
	return median(ratios)
}

func (f *figure) streamed() bool { return strings.Contains(f.What, "in flight") }

// place is where a figure comes: one write, batches, streams.
func (f *figure) place() int {
	switch {
	case f.Unit == "ms":
		return 0
	case !f.streamed():
		return 1
	}
	return 2
}

// wanted says what the ratio should be, and whether it is.
func (f *figure) wanted() string {
	met := "missed"
	if f.AtLeast > 0 && f.Ratio >= f.AtLeast || f.AtMost > 0 && f.Ratio <= f.AtMost {
		met = "met"
	}
	switch {
	case f.AtLeast > 0:
		return fmt.Sprintf(">= %.4g of %s: %s", f.AtLeast, f.Against, met)
	case f.AtMost > 0:
		return fmt.Sprintf("<= %.4g of %s: %s", f.AtMost, f.Against, met)
	}
	return ""
}

// row is a figure in words.
func (f *figure) row() []string {
	ratio, paired := "", ""
	if f.Ratio > 0 {
		ratio, paired = fmt.Sprintf("%.3f", f.Ratio), fmt.Sprintf("%.3f", f.Paired)
	}
	return []string{f.What, f.Kind, fmt.Sprintf("%.3f %s", f.Median, f.Unit), fmt.Sprintf("%.3f to %.3f", slices.Min(f.Samples), slices.Max(f.Samples)), ratio, paired, f.wanted()}
}

var columns = []string{"write", "by", "median", "samples", "ratio", "paired", "wanted"}

func (c *contest) where() string {
	return fmt.Sprintf("%s, %d processors, Linux %s; Mooncake %s; perftest %s; %d alternations, in which Mooncake's failed %d times", c.Processor, c.Processors, c.Kernel, c.Wheel, c.Perftest, c.Alternations, c.Failures)
}

// table is for a terminal.
func (c *contest) table(out io.Writer) {
	fmt.Fprintln(out, c.where())
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(columns, "\t"))
	for _, f := range c.Figures {
		fmt.Fprintln(t, strings.Join(f.row(), "\t"))
	}
	t.Flush()
}

// writeDocs writes what docs/benchmarks-rdma.md says: the runs in a folder, the newest first.
func writeDocs(out io.Writer, folder string) error {
	fmt.Fprint(out, docsHead)
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return err
	}
	slices.Reverse(files)
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var c contest
		if err := json.Unmarshal(b, &c); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.judge()
		fmt.Fprintf(out, "\n## %s\n\n%s.\n%s.\n\n", strings.TrimSuffix(filepath.Base(name), ".json"), c.where(), c.Depths)
		fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
		for _, f := range c.Figures {
			fmt.Fprintf(out, "| %s |\n", strings.Join(f.row(), " | "))
		}
	}
	return nil
}

const docsHead = `# RDMA beside Mooncake and ib_write_bw

Written by "go run ./tools/interop/compare -docs bench/rxe" from bench/rxe; do not edit. "make bench-rxe" makes a new result, with all
samples, and writes this.

Two Soft-RoCE devices in an emulated machine of two processors (tools/rxe-vm): only ratios count. *Ratio* is that of the medians, *paired*
the median of the ratios in each alternation, which says more where the machine was used by others too, as the range of the samples shows.
All kinds have their turn at one workload before the next; processes are stopped while it is not theirs. Mooncake's are those of its newest
wheel that installs, through Python. Batches are of 128 x 64 KiB, each waited for before the next. Processor time is that of getrusage,
which on Soft-RoCE includes what the kernel does in the name of whoever posts or happens to run.

Runs 1 and 2 of 2026-12-01 shared their machine of two processors with other emulated machines and tests. One write is the most
sensitive to that: ours takes 0.3 ms while both emulated processors run, and milliseconds when one waits for its turn, while
Mooncake's is 16 ms or 32 in any case. Run 1 is of a build in which a caller lost its patience by one late answer. Run 3 had its
machine alone; in its build a caller is patient for 4 ms, and one report stands for several pieces.
`
