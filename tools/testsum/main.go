// Command testsum runs go test and says what came of it: one line a package, the
// output of what failed, each skip with its reason, and a closing line of the
// form "N passed, N failed, N skipped".
//
//	testsum ./... -- -race ./internal/lane
//
// runs go test once for each group of arguments between "--". A group with -race
// runs with cgo, which the race detector needs, the others without, as the
// product is built. A group that begins with "exec" is a command, which takes ./PACKAGE=TESTS
// and prints what go test -json would. The exit status is 0 if nothing failed and something passed.
//
// With -again as the first argument, tests that failed run once more, each alone, if
// they are no more than mostAgain. What passes then is listed as flaky, below the
// output of its failure, and does not fail the run. There is no second run for a process
// that died, and for wrong bytes or a data race: to see one once is proof.
//
// Tests and subtests count alike. A package that fails outside any test (it does
// not build, or its process dies) counts as one failure.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// mostAgain is how many tests may fail for chance to be a reason: a busy machine, not a
// change that broke them.
const mostAgain = 3

func main() {
	args := os.Args[1:]
	again := len(args) > 0 && args[0] == "-again"
	if again {
		args = args[1:]
	}
	groups := split(args)
	if len(groups) == 0 {
		fmt.Fprintln(os.Stderr, "usage: testsum [-again] GO_TEST_ARGS... [-- GO_TEST_ARGS...]...")
		os.Exit(2)
	}
	s := newSummary(os.Stdout)
	for _, args := range groups {
		s.begin(args)
		if err := runGroup(s, args); err != nil {
			s.broken(err)
		}
	}
	if again {
		runAgain(s)
	}
	os.Exit(s.close())
}

func runAgain(s *summary) {
	for _, a := range s.again(mostAgain) {
		alone := newSummary(s.out)
		alone.begin(a.args)
		if err := runGroup(alone, a.args); err == nil && alone.failed == 0 && alone.passed > 0 {
			s.forgive(a)
		}
	}
}

// split cuts args at "--" and drops empty groups.
func split(args []string) [][]string {
	var groups [][]string
	var group []string
	for _, a := range append(slices.Clone(args), "--") {
		if a != "--" {
			group = append(group, a)
		} else if len(group) > 0 {
			groups, group = append(groups, group), nil
		}
	}
	return groups
}

// runGroup runs go test and feeds its events to s. An error is one that no
// event tells of.
func runGroup(s *summary, args []string) error {
	cgo := "CGO_ENABLED=0"
	if slices.Contains(args, "-race") {
		cgo = "CGO_ENABLED=1"
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	if args[0] == "exec" {
		if len(args) == 1 {
			return errors.New("testsum: exec: no command")
		}
		cmd = exec.Command(args[1], args[2:]...)
	}
	cmd.Env = append(cmd.Environ(), cgo)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("testsum: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("testsum: %w", err)
	}
	before := s.failed
	readErr := readLines(out, s.line)
	err = cmd.Wait()
	if readErr != nil {
		return fmt.Errorf("testsum: read go test: %w", readErr)
	}
	if err != nil && s.failed == before {
		return fmt.Errorf("testsum: %s: %w", command(args), err)
	}
	return nil
}

// command is what a group runs, in words.
func command(args []string) string {
	if args[0] == "exec" {
		return strings.Join(args[1:], " ")
	}
	return "go test " + strings.Join(args, " ")
}

func readLines(r io.Reader, each func(line []byte)) error {
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadBytes('\n')
		if len(line) > 0 {
			each(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
