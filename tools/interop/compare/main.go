// Compare measures writes over TCP on the loopback, from one process to another, by
// our Python module, our engine in Go, and Mooncake's own wheel, side by side: each case
// by each kind in turns, so that whatever else the machine does hits all alike. It
// prints the medians, and how many times slower than our module the others are.
//
//	make compare
//
// tools/interop/peer.py is a process of either module; "compare peer" is one of the
// engine in Go.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/railhop/railhop"
)

const size = 256 << 20 // bytes that each process registers

func main() {
	python := flag.String("python", ".cache/interop/bin/python", "interpreter of the wheel")
	ours := flag.String("ours", ".cache/ours/bin/python", "interpreter with our module")
	overlay := flag.String("overlay", "", "folder where our module serves mooncake.engine")
	rounds := flag.Int("alternations", 20, "times that each kind has its turn")
	flag.Parse()
	run := func() error { return compare(*python, *ours, *overlay, *rounds) }
	if flag.Arg(0) == "peer" {
		run = peer
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// workload is one write or batch of writes, repeated.
type workload struct {
	count, length, repeat int
}

var workloads = []workload{
	{1, 4 << 10, 400},
	{512, 16 << 10, 3},
	{1024, 4 << 10, 3},
	{1, 1 << 20, 20},
	{1, 16 << 20, 3},
	{1, 256 << 20, 1},
}

func (w workload) String() string {
	unit := fmt.Sprintf("%d KiB", w.length>>10)
	if w.length >= 1<<20 {
		unit = fmt.Sprintf("%d MiB", w.length>>20)
	}
	if w.count == 1 {
		return unit
	}
	return fmt.Sprintf("%d x %s", w.count, unit)
}

// kind is an engine in some setting: two processes of it.
type kind struct {
	name          string
	from, to      *process
	times         map[workload][]float64
	command, envs []string
}

func compare(python, ours, overlay string, rounds int) (err error) {
	wheel := []string{python, "tools/interop/peer.py", "127.0.0.1", "P2PHANDSHAKE", fmt.Sprint(size)}
	kinds := []*kind{
		{name: "railhop", command: []string{ours, "tools/interop/peer.py", "127.0.0.1", "P2PHANDSHAKE", fmt.Sprint(size)}, envs: []string{"PYTHONPATH=" + overlay}},
		{name: "railhop, Go", command: []string{os.Args[0], "peer"}},
		{name: "wheel, pool", command: wheel, envs: []string{"MC_TCP_ENABLE_CONNECTION_POOL=1"}},
		{name: "wheel, no pool", command: wheel, envs: []string{"MC_TCP_ENABLE_CONNECTION_POOL=0"}},
	}
	for _, k := range kinds {
		k.times = make(map[workload][]float64)
		for _, p := range []**process{&k.to, &k.from} {
			if *p, err = launch(k.command, k.envs); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			defer (*p).close()
		}
	}
	for i := range rounds + 1 {
		for _, w := range workloads {
			for _, k := range kinds {
				times, err := k.from.measure(k.to, w)
				if err != nil {
					return fmt.Errorf("%s, %v: %w", k.name, w, err)
				}
				if i > 0 { // the first warms up
					k.times[w] = append(k.times[w], median(times))
				}
			}
		}
	}
	report(os.Stdout, kinds)
	return nil
}

func report(out io.Writer, kinds []*kind) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "write\t")
	for _, k := range kinds {
		fmt.Fprintf(t, "%s\t", k.name)
	}
	for range kinds[1:] {
		fmt.Fprint(t, "ratio\t")
	}
	fmt.Fprintln(t)
	for _, w := range workloads {
		fmt.Fprintf(t, "%v\t", w)
		first := median(kinds[0].times[w])
		for _, k := range kinds {
			s := median(k.times[w])
			if w.count == 1 && w.length < 1<<20 {
				fmt.Fprintf(t, "%.1f us\t", s*1e6)
			} else {
				fmt.Fprintf(t, "%.2f GB/s\t", float64(w.count*w.length)/s/1e9)
			}
		}
		for _, k := range kinds[1:] {
			fmt.Fprintf(t, "%.2f\t", median(k.times[w])/first)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// process is one end, driven by lines of JSON.
type process struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	name string
	addr uint64
}

// message is what a process says.
type message struct {
	RC    int       `json:"rc"`
	Name  string    `json:"name,omitempty"`
	Addr  uint64    `json:"addr,omitempty"`
	Times []float64 `json:"times,omitempty"`
}

func launch(command, env []string) (*process, error) {
	p := &process{cmd: exec.Command(command[0], command[1:]...)}
	p.cmd.Env = append(p.cmd.Environ(), append(env, "MC_FORCE_TCP=1")...)
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewScanner(out)
	p.out.Buffer(nil, 1<<20)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	hello, err := p.read()
	p.name, p.addr = hello.Name, hello.Addr
	return p, err
}

func (p *process) close() {
	p.in.Close()
	kill := time.AfterFunc(5*time.Second, func() { p.cmd.Process.Kill() })
	p.cmd.Wait()
	kill.Stop()
}

func (p *process) read() (m message, err error) {
	for p.out.Scan() {
		if json.Unmarshal(p.out.Bytes(), &m) == nil {
			if m.RC != 0 {
				err = fmt.Errorf("code %d", m.RC)
			}
			return m, err
		}
	}
	return m, errors.New("the process has ended")
}

func (p *process) measure(to *process, w workload) ([]float64, error) {
	line, err := json.Marshal([]any{"measure", to.name, to.addr, w.count, w.length, w.repeat})
	if err != nil {
		return nil, err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	m, err := p.read()
	if err == nil && len(m.Times) == 0 {
		err = errors.New("no times")
	}
	return m.Times, err
}

// peer is a process of our engine.
func peer() error {
	cfg, _ := railhop.FromEnvironment()
	cfg.Host, cfg.Protocol = "127.0.0.1", "tcp"
	e, err := railhop.Open(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	buf := make([]byte, size)
	for i := 0; i < size; i += 4096 {
		buf[i] = 1 // so that the pages are there
	}
	addr, err := e.RegisterBytes(buf)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	out.Encode(message{Name: e.Name(), Addr: addr})
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var (
			verb, target string
			remote       uint64
			w            workload
		)
		args := []any{&verb, &target, &remote, &w.count, &w.length, &w.repeat}
		if err := json.Unmarshal(in.Bytes(), &args); err != nil {
			return err
		}
		times, err := writes(e, target, addr, remote, w)
		if err != nil {
			return err
		}
		out.Encode(message{Times: times})
	}
	return nil
}

func writes(e *railhop.Engine, target string, addr, remote uint64, w workload) ([]float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	id, err := e.OpenSegment(ctx, target)
	if err != nil {
		return nil, err
	}
	b := e.NewBatch(w.count)
	reqs := make([]railhop.Request, w.count)
	for i := range reqs {
		at := uint64(i * w.length)
		reqs[i] = railhop.Request{Op: railhop.Write, Source: addr + at, Target: id, TargetAddr: remote + at, Length: uint64(w.length)}
	}
	times := make([]float64, w.repeat)
	for i := range times {
		start := time.Now()
		if w.count == 1 {
			err = e.Write(ctx, id, addr, remote, uint64(w.length))
		} else if err = b.Submit(reqs); err == nil {
			if err = b.Wait(ctx); err == nil {
				err = b.Reset()
			}
		}
		if err != nil {
			return nil, err
		}
		times[i] = time.Since(start).Seconds()
	}
	return times, nil
}
