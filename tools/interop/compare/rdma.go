package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Bytes that each process registers.
const pinned = 16 << 20

const (
	inGo, inPython = "railhop, Go", "railhop, Python"
	mooncake       = "Mooncake"
	perftest       = "ib_write_bw"
)

// contest is a run of all workloads by RDMA, from one device to another.
type contest struct {
	Date         string    `json:"date"`
	Kernel       string    `json:"kernel"`
	Processor    string    `json:"processor"`
	Processors   int       `json:"processors"`
	Wheel        string    `json:"wheel"`
	Perftest     string    `json:"perftest"`
	Depths       string    `json:"depths"`
	Alternations int       `json:"alternations"`
	Failures     int       `json:"failures"` // of Mooncake's, after each of which it has started afresh
	Figures      []*figure `json:"figures"`

	only    string // the sort of workload to measure; "" for all
	devices []string
	pairs   map[string]*pair
}

// pair is two processes of one kind. They are stopped while it is not their turn, for
// Mooncake's threads never sleep.
type pair struct {
	command, envs []string
	from, to      *process
}

// stream is a workload of writes with so many in flight all the time.
type stream struct{ length, depth, repeat int }

var (
	oneWrite   = workload{1, 4 << 10, 60}
	batchWrite = workload{128, 64 << 10, 2}
	streamed   = []stream{{64 << 10, 128, 3}, {1 << 20, 16, 2}}
)

func compareRDMA(devices []string, python, ours, overlay, only string, rounds int) error {
	if len(devices) != 2 {
		return fmt.Errorf("devices %q: want two", devices)
	}
	c := &contest{Date: time.Now().Format(time.DateOnly), Processors: runtime.NumCPU(), Alternations: rounds, only: only, devices: devices, pairs: make(map[string]*pair)}
	if err := c.describe(python); err != nil {
		return err
	}
	script := []string{"tools/interop/peer.py", "127.0.0.1", "P2PHANDSHAKE", fmt.Sprint(pinned), "rdma"}
	for _, k := range []struct {
		name    string
		command []string
		envs    []string
	}{
		{inGo, []string{os.Args[0], "peer", fmt.Sprint(pinned)}, nil},
		{inPython, append([]string{ours}, script...), []string{"PYTHONPATH=" + overlay}},
		{mooncake, append([]string{python}, script...), []string{"MC_GID_INDEX=1", "MC_TRANSFER_TIMEOUT=300"}},
	} {
		envs := append(k.envs, "MC_TCP_BIND_ADDRESS=127.0.0.1", "PYTHONDONTWRITEBYTECODE=1")
		p := &pair{command: k.command, envs: envs}
		defer func() { p.close() }()
		if err := p.start(c.devices); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		c.pairs[k.name] = p
	}
	var failed error
	for round := 0; round <= rounds && failed == nil; round++ { // the first warms up
		if failed = c.round(round); failed == nil {
			c.Alternations = round
			fmt.Fprintf(os.Stderr, "alternation %d of %d\n", round, rounds)
		}
	}
	c.judge()
	c.table(os.Stderr)
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	return cmp.Or(failed, out.Encode(c))
}

// describe says on what the contest runs.
func (c *contest) describe(python string) error {
	for _, f := range []struct {
		to      *string
		command []string
	}{
		{&c.Kernel, []string{"uname", "-rm"}},
		{&c.Processor, []string{"sed", "-n", `s/^model name\t*: //p;T;q`, "/proc/cpuinfo"}},
		{&c.Perftest, []string{"dpkg-query", "-W", "-f", "${Version}", "perftest"}},
		{&c.Wheel, []string{python, "-c", "import importlib.metadata as m; print(m.version('mooncake-transfer-engine-non-cuda'))"}},
	} {
		out, err := exec.Command(f.command[0], f.command[1:]...).Output()
		if err != nil {
			return fmt.Errorf("%s: %w", f.command[0], err)
		}
		*f.to = strings.TrimSpace(string(out))
	}
	c.Depths = fmt.Sprintf("%s: --tx-depth as many as ours has in flight, one queue pair; ours: %d batches, two queue pairs, pieces of 64 KiB", perftest, streams)
	return nil
}

func (p *pair) start(devices []string) (err error) {
	for i, end := range []**process{&p.from, &p.to} {
		if *end, err = launch(append(slices.Clone(p.command), devices[i]), p.envs); err != nil {
			return err
		}
	}
	return p.turn(syscall.SIGSTOP)
}

func (p *pair) close() {
	for _, end := range []**process{&p.from, &p.to} {
		if *end != nil {
			(*end).close()
			*end = nil
		}
	}
}

// try gives a kind its turn. Mooncake's engine now and then fails on devices that are
// emulated: that is counted, and it starts afresh.
func (c *contest) try(kind string, do func() error) error {
	const most = 3
	for i := 1; ; i++ {
		err := do()
		if err == nil {
			return nil
		}
		if kind != mooncake || i == most {
			return fmt.Errorf("%s: %w", kind, err)
		}
		c.Failures++
		fmt.Fprintf(os.Stderr, "%s starts afresh: %v\n", kind, err)
		p := c.pairs[kind]
		p.close()
		if err := p.start(c.devices); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
}

func (p *pair) turn(s syscall.Signal) error {
	return cmp.Or(p.from.signal(s), p.to.signal(s))
}

// round gives every kind its turn at every workload. Who begins changes.
func (c *contest) round(round int) error {
	kinds := []string{inGo, inPython, mooncake}
	first := round % len(kinds)
	kinds = append(kinds[first:], kinds[:first]...)
	for _, w := range []struct {
		sort    string
		measure func(round int, kind string) error
	}{{"one", c.one}, {"batch", c.batch}} {
		if c.only != "" && c.only != w.sort {
			continue
		}
		for _, kind := range kinds {
			if err := c.try(kind, func() error { return w.measure(round, kind) }); err != nil {
				return err
			}
		}
	}
	if c.only != "" && c.only != "stream" {
		return nil
	}
	for _, s := range streamed {
		turns := []func() error{func() error { return c.stream(round, s) }, func() error { return c.perftest(round, s) }}
		for i := range turns {
			if err := turns[(i+round)%len(turns)](); err != nil {
				return fmt.Errorf("stream of %s: %w", bytes(s.length), err)
			}
		}
	}
	return nil
}

// add keeps a sample of all rounds but the first.
func (c *contest) add(round int, what, kind, unit string, sample float64) {
	if round == 0 {
		return
	}
	i := slices.IndexFunc(c.Figures, func(f *figure) bool { return f.What == what && f.Kind == kind })
	if i < 0 {
		i = len(c.Figures)
		c.Figures = append(c.Figures, &figure{What: what, Kind: kind, Unit: unit})
	}
	c.Figures[i].Samples = append(c.Figures[i].Samples, sample)
}

func (c *contest) one(round int, kind string) error {
	times, err := c.timed(kind, oneWrite)
	if err != nil {
		return err
	}
	c.add(round, "one write of "+bytes(oneWrite.length)+", p50", kind, "ms", median(times)*1e3)
	return nil
}

func (c *contest) timed(kind string, w workload) (times []float64, err error) {
	p := c.pairs[kind]
	return times, p.during(func() error {
		times, err = p.from.measure(p.to, w)
		return err
	})
}

// during has the pair run while do does.
func (p *pair) during(do func() error) error {
	if err := p.turn(syscall.SIGCONT); err != nil {
		return err
	}
	return cmp.Or(do(), p.turn(syscall.SIGSTOP))
}

// batch measures how fast batches are, and what processor time both ends use for them.
func (c *contest) batch(round int, kind string) error {
	p := c.pairs[kind]
	var used [2]float64
	var times []float64
	err := p.during(func() error {
		for i, end := range []*process{p.from, p.to} {
			u, err := end.usage()
			if err != nil {
				return err
			}
			used[i] -= u
		}
		var err error
		if times, err = p.from.measure(p.to, batchWrite); err != nil {
			return err
		}
		for i, end := range []*process{p.from, p.to} {
			u, err := end.usage()
			if err != nil {
				return err
			}
			used[i] += u
		}
		return nil
	})
	if err != nil {
		return err
	}
	took := 0.0
	for _, t := range times {
		took += t
	}
	what := batchWrite.String()
	mib := float64(batchWrite.count*batchWrite.length*len(times)) / (1 << 20)
	c.add(round, what, kind, "MiB/s", mib/took)
	c.add(round, what+", processor time of both", kind, "ms/MiB", (used[0]+used[1])*1e3/mib)
	c.add(round, what+", of the initiator", kind, "ms/MiB", used[0]*1e3/mib)
	c.add(round, what+", of the target", kind, "ms/MiB", used[1]*1e3/mib)
	return nil
}

func (s stream) String() string { return fmt.Sprintf("%s, %d in flight", bytes(s.length), s.depth) }

// mib is how much a sample of a stream is.
func (s stream) mib() float64 { return float64(s.length*s.depth*s.repeat) / (1 << 20) }

func (c *contest) stream(round int, s stream) error {
	p := c.pairs[inGo]
	return p.during(func() error {
		took, err := p.from.ask("stream", p.to.name, p.to.addr, s.depth, s.length, s.repeat)
		if err == nil {
			c.add(round, s.String(), inGo, "MiB/s", s.mib()/took[0])
		}
		return err
	})
}
