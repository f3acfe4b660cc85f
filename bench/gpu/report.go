package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/railhop/railhop/internal/gpu"
)

// report is what a run has found, with every raw sample.
type report struct {
	Date    string
	Commit  string
	Driver  int
	Runtime []string // of the machine: kernel, locks and the like
	Device  gpu.Info
	Samples []sample
	Failed  []string `json:",omitempty"`
}

// sample is one row: the same thing measured several times.
type sample struct {
	Group  string
	Case   string // what is moved
	Way    string // by what
	Blocks int    `json:",omitempty"`
	Unit   string
	Values []float64
	Engine []float64 `json:",omitempty"` // the same through the engine's way
	Want   string    `json:",omitempty"` // what was asked for, such as ">= 120"
}

func (s sample) median() float64 {
	v := slices.Sorted(slices.Values(s.Values))
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}

func (r *report) add(s sample) {
	r.Samples = append(r.Samples, s)
	fmt.Printf("  %-14s %-24s %-44s %4s %s %s\n", s.Group, s.Case, s.Way, blocksText(s.Blocks), s.text(), s.engine().text())
}

func blocksText(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// engine is the second column.
func (s sample) engine() sample { return sample{Unit: s.Unit, Values: s.Engine} }

func (s sample) text() string {
	v := slices.Sorted(slices.Values(s.Values))
	if len(v) == 0 {
		return ""
	}
	text := fmt.Sprintf("%s %s", number(s.median()), s.Unit)
	if len(v) > 1 {
		text += fmt.Sprintf(" (%s..%s)", number(v[0]), number(v[len(v)-1]))
	}
	return text
}

func number(x float64) string {
	if x >= 100 || x == float64(int(x)) {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// table is the report as Markdown.
func (r *report) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s, %s\n\n", r.Device.Name, r.Date[:10])
	fmt.Fprintf(&b, "Commit %s, driver %d, %s. Median, and least to greatest, of the raw samples.\n", r.Commit, r.Driver, strings.Join(r.Runtime, ", "))
	for _, failed := range r.Failed {
		fmt.Fprintf(&b, "\nFailed: %s\n", failed)
	}
	group, engine := "", false
	for _, s := range r.Samples {
		if s.Group != group {
			group = s.Group
			engine = slices.ContainsFunc(r.Samples, func(o sample) bool { return o.Group == group && len(o.Engine) > 0 })
			fmt.Fprintf(&b, "\n### %s\n\n", strings.ToUpper(group[:1])+group[1:])
			if engine {
				b.WriteString("| what | how | blocks | measured | through path/pxn | wanted |\n| --- | --- | --- | --- | --- | --- |\n")
			} else {
				b.WriteString("| what | how | blocks | measured | wanted |\n| --- | --- | --- | --- | --- |\n")
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |", s.Case, s.Way, blocksText(s.Blocks), s.text())
		if engine {
			fmt.Fprintf(&b, " %s |", s.engine().text())
		}
		fmt.Fprintf(&b, " %s |\n", s.Want)
	}
	return b.String()
}

const docsHead = `# Benchmarks

Written by ` + "`go run ./bench/gpu -docs`" + ` from bench/gpu/results; do not edit. ` + "`make bench-gpu`" + ` makes a new result.

Two processes share one GPU: a sender, and a relay whose arena the sender has imported. A *ring* is pieces of 8 MiB, 18 slots
in flight, each with its number stored in shared memory behind its bytes and echoed by the relay, which launches nothing
meanwhile. *Stream doorbell* is a stream memory operation behind the copies; *kernel doorbell* is a store by the gather kernel
itself. In the column *through path/pxn* the same pieces go through the engine's relayed way, to a relay that takes each as sent
at once: queue, packing, descriptor, copy, doorbell, completion. Rates are of payload. Before it measures, a run compares every
byte of spans of all sizes and alignments. One GPU says nothing about NVLink, nor about a NIC's reads.

A row of long pieces takes turns on six streams (copies: on four) and its doorbells are stored by one more; a way with *one stream*
does not. *As the engine* is how path/pxn gives pieces of a few copies: behind others, up to six share a call and a doorbell, and
where their sources lie back to back they are one copy.

*Crossover*: a run of 700 KiB or more goes to a copy engine (with 4 blocks), which is where that is as fast as one launch on one
stream; a row of launches would be faster still, but copy engines take no multiprocessor from the model.

*Beside a model*: the product is one kernel whose 132 blocks take a whole multiprocessor each (384 threads of 168 registers: no
room for even one warp) and stay until the end. So a launch runs only between two products, whatever its priority, and one stream
gets two of them through for each: 11 GB/s with pieces of 8 MiB. Six streams get twelve through. They go in rounds, each of which
waits for the one before: without rounds (commit 8540334) launches of high priority held their multiprocessors for good, and took
21 % from the products at 395 GB/s. Streams have high priority, not for its own sake: the driver shares a few queues among all
streams of one priority, and a launch that shares one with the model's stream waits for all that the model has queued.

*Engine* is whole writes in four processes that share the GPU and are time-sliced on it: a sender, a relay, and a target on the
rail of each. The wire is TCP of software NICs on loopback, which copy GPU memory to and from a stage: it shows that the bytes
are right and the fence holds, and its rates are the wire's, not the engine's beside a real NIC.

`

// write writes the JSON file, whose name it returns.
func (r *report) write(folder string) (name string, err error) {
	name = filepath.Join(folder, fmt.Sprintf("%s-%s.json", strings.ReplaceAll(strings.ToLower(r.Device.Name), " ", "-"), r.Date[:10]))
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	return name, os.WriteFile(name, append(text, '\n'), 0o644)
}

// render makes the page from all results, by name.
func render(folder string) (string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(docsHead)
	for i, file := range slices.Sorted(slices.Values(files)) {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		var r report
		if err := json.Unmarshal(text, &r); err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		if len(r.Date) < 10 {
			return "", fmt.Errorf("%s: date %q: want RFC 3339", file, r.Date)
		}
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(r.table())
	}
	return b.String(), nil
}

func writeDocs(folder, page string) error {
	text, err := render(folder)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(text), 0o644)
}
