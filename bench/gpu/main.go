// Command gpu measures the GPU layer on this machine, in two processes that share a
// device: a sender, this one, and a relay that imports nothing but its own arena.
//
// It owns the measurements and their correctness checks; the copies are those of
// package cuda, and what they are compared with is bare calls of the driver. While a
// ring is timed the relay launches nothing: it reads one word and writes another.
//
// The result is a table on standard output and a JSON file with every raw sample. With
// -docs it writes docs/benchmarks.md from the files in bench/gpu/results instead.
//
// Threads: all runs on the main goroutine, locked to its thread, which has the
// device's context; the load of "beside a model" has a thread of its own.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/railhop/railhop/internal/gpu/cuda"
)

// relayArg, as the only argument, makes this process the relay.
const relayArg = "relay"

func main() {
	var err error
	if len(os.Args) == 2 && os.Args[1] == relayArg {
		err = serveRelay(os.Stdin, os.Stdout)
	} else if len(os.Args) == 2 && os.Args[1] == rankArg {
		err = serveRank(os.Stdin, os.Stdout)
	} else {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/gpu:", err)
		os.Exit(1)
	}
}

func run() error {
	var (
		out    = flag.String("out", "bench/gpu/results", "folder for the JSON file")
		docs   = flag.Bool("docs", false, "write docs/benchmarks.md from the results and measure nothing")
		only   = flag.String("only", "", "comma-separated groups to run; all by default")
		blas   = flag.String("cublas", "", "libcublas to multiply with, where the loader does not find libcublas.so.13 or .12")
		commit = flag.String("commit", "", "the commit that this was built from, if git does not say")
	)
	flag.Parse()
	if *docs {
		return writeDocs(filepath.FromSlash(*out), "docs/benchmarks.md")
	}
	p, err := cuda.Open(cuda.Options{})
	if errors.Is(err, errors.ErrUnsupported) {
		fmt.Println("bench/gpu: nothing to measure:", err)
		return nil
	} else if err != nil {
		return err
	}
	runtime.LockOSThread()
	b, err := newBench(p, *blas)
	if err != nil {
		return err
	}
	r := &b.report
	r.Date = time.Now().UTC().Format(time.RFC3339)
	r.Commit = cmp(*commit, gitCommit())
	r.Driver, r.Runtime, r.Device = p.Driver(), runtimeFacts(), b.info
	fmt.Printf("%s, driver %d, %s\n", b.info.Name, r.Driver, strings.Join(r.Runtime, ", "))

	groups := []struct {
		name string
		run  func(*bench) error
	}{
		{"correct", correct}, {"fence", fence}, {"contiguous", contiguous}, {"gather", gather},
		{"laying out", layingOut}, {"latency", latency}, {"crossover", crossover}, {"beside a model", besideModel}, {"engine", throughEngine},
	}
	for _, g := range groups {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), g.name) {
			continue
		}
		start := time.Now()
		if err := g.run(b); err != nil {
			// What was measured so far is worth keeping.
			r.Failed = append(r.Failed, fmt.Sprintf("%s: %v", g.name, err))
			fmt.Printf("%s: FAILED: %v\n", g.name, err)
		}
		fmt.Printf("(%s: %.1fs)\n", g.name, time.Since(start).Seconds())
		if _, err := r.write(*out); err != nil { // a later group may hang
			return err
		}
	}
	if err := b.close(); err != nil {
		r.Failed = append(r.Failed, err.Error())
	}
	fmt.Print(r.table())
	name, err := r.write(*out)
	if err != nil {
		return err
	}
	fmt.Println("written:", name)
	if len(r.Failed) > 0 {
		return fmt.Errorf("%d groups failed: %s", len(r.Failed), strings.Join(r.Failed, "; "))
	}
	return nil
}

func cmp(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func gitCommit() string {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return string(bytes.TrimSpace(out))
}
