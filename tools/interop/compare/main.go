// Compare measures writes over TCP on the loopback, from one process to another, by
// our Python module, our engine in Go, and Mooncake's own wheel, side by side: each case
// by each kind in turns, so that whatever else the machine does hits all alike. It
// prints the medians, and how many times slower than our module the others are. What
// two processes reach that only write and read a socket stands beside them.
//
//	make compare
//	make bench-rxe
//
// The latter compares by RDMA, with perftest's ib_write_bw besides, in the machine of
// tools/rxe-vm.
//
// tools/interop/peer.py is a process of either module; "compare peer" is one of the
// engine in Go, and "compare plain" one with a bare socket.
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// Bytes that each process registers.
const size = 256 << 20

func main() {
	python := flag.String("python", ".cache/interop/bin/python", "interpreter of the wheel")
	ours := flag.String("ours", ".cache/ours/bin/python", "interpreter with our module")
	overlay := flag.String("overlay", "", "folder where our module serves mooncake.engine")
	rounds := flag.Int("alternations", 20, "times that each kind has its turn")
	only := flag.String("only", "", "writes to measure, such as 512x16384,1x4096, instead of all; by RDMA: one, batch or stream")
	rdma := flag.String("rdma", "", "two devices, such as rxe0,rxe1: compare by RDMA, and write all samples as JSON to standard output")
	docs := flag.String("docs", "", "folder of such samples: write docs/benchmarks-rdma.md to standard output, and measure nothing")
	flag.Parse()
	run := func() error { return compare(*python, *ours, *overlay, *only, *rounds) }
	switch {
	case flag.Arg(0) == "peer":
		run = func() error { return servePeer(flag.Arg(1), flag.Arg(2)) }
	case flag.Arg(0) == "plain":
		run = plain
	case *docs != "":
		run = func() error { return writeDocs(os.Stdout, *docs) }
	case *rdma != "":
		run = func() error { return compareRDMA(strings.Split(*rdma, ","), *python, *ours, *overlay, *only, *rounds) }
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
	{512, 16 << 10, 5},
	{1024, 4 << 10, 5},
	{1, 1 << 20, 20},
	{1, 16 << 20, 3},
	{1, 256 << 20, 1},
}

func (w workload) String() string {
	if w.count == 1 {
		return bytes(w.length)
	}
	return fmt.Sprintf("%d x %s", w.count, bytes(w.length))
}

func bytes(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// kind is an engine in some setting: two processes of it.
type kind struct {
	name          string
	from, to      *process
	times         map[workload][]float64
	command, envs []string
}

func compare(python, ours, overlay, only string, rounds int) error {
	wheel := []string{python, "tools/interop/peer.py", "127.0.0.1", "P2PHANDSHAKE", fmt.Sprint(size)}
	kinds := []*kind{
		{name: "railhop", command: []string{ours, "tools/interop/peer.py", "127.0.0.1", "P2PHANDSHAKE", fmt.Sprint(size)}, envs: []string{"PYTHONPATH=" + overlay}},
		{name: "railhop, Go", command: []string{os.Args[0], "peer", fmt.Sprint(size)}},
		{name: "wheel, pool", command: wheel, envs: []string{"MC_TCP_ENABLE_CONNECTION_POOL=1"}},
		{name: "wheel, no pool", command: wheel, envs: []string{"MC_TCP_ENABLE_CONNECTION_POOL=0"}},
		{name: "sockets", command: []string{os.Args[0], "plain"}},
	}
	for _, k := range kinds {
		k.times = make(map[workload][]float64)
		if err := k.start(); err != nil {
			return err
		}
		defer k.stop()
	}
	cases := slices.DeleteFunc(slices.Clone(workloads), func(w workload) bool {
		return only != "" && !slices.Contains(strings.Split(only, ","), fmt.Sprintf("%dx%d", w.count, w.length))
	})
	for i := range rounds + 1 {
		for _, w := range cases {
			for j := range kinds {
				k := kinds[(i+j)%len(kinds)]             // nobody always comes after the same
				if err := k.turn(w, i > 0); err != nil { // the first warms up
					return err
				}
			}
		}
	}
	report(os.Stdout, kinds, cases)
	return nil
}

func (k *kind) start() (err error) {
	for _, p := range []**process{&k.to, &k.from} {
		if *p, err = launch(k.command, append(k.envs, "MC_FORCE_TCP=1")); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
	}
	return nil
}

func (k *kind) stop() {
	k.from.close()
	k.to.close()
}

// turn measures a write. The wheel has been seen to turn for good in one that never ends; then its
// processes are started anew.
func (k *kind) turn(w workload, counts bool) error {
	limit := time.AfterFunc(time.Minute, func() { k.from.signal(syscall.SIGKILL) })
	times, err := k.from.measure(k.to, w)
	if !limit.Stop() {
		fmt.Fprintf(os.Stderr, "compare: %s, %v: no answer within a minute; started anew\n", k.name, w)
		k.stop()
		return k.start()
	}
	if err != nil {
		return fmt.Errorf("%s, %v: %w", k.name, w, err)
	}
	if counts {
		k.times[w] = append(k.times[w], median(times))
	}
	return nil
}

func report(out io.Writer, kinds []*kind, cases []workload) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "write\t")
	for _, k := range kinds {
		fmt.Fprintf(t, "%s\t", k.name)
	}
	for range kinds[1:] {
		fmt.Fprint(t, "ratio\t")
	}
	fmt.Fprintln(t)
	for _, w := range cases {
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
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
