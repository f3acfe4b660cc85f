package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// event is a line of go test -json (go doc test2json).
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a build event
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
}

// summary counts the events of one or more runs.
type summary struct {
	out                     io.Writer
	args                    []string // of the current run
	label                   string   // of the current run, behind its skips and failures
	pkgs                    map[string]*pkg
	builds                  map[string][]string // output by import path
	passed, failed, skipped int
	failures                []failure
	skips, flaky            []string
}

// failure is a test that failed, or with no test in it something that is not to be run again.
type failure struct {
	name      string // to be printed
	args      []string
	pkg, test string
}

// top is the test of which f is a subtest.
func (f *failure) top() string {
	top, _, _ := strings.Cut(f.test, "/")
	return top
}

// alone returns the arguments that run top alone.
func (f *failure) alone() []string {
	one := "^" + f.top() + "$"
	if f.args[0] == "exec" {
		rest := slices.DeleteFunc(slices.Clone(f.args), func(a string) bool { return strings.HasPrefix(a, ".") && strings.Contains(a, "=") })
		return append(rest, "."+strings.TrimPrefix(f.pkg, module)+"="+one)
	}
	rest := slices.DeleteFunc(slices.Clone(f.args), func(a string) bool {
		return a == "." || strings.HasPrefix(a, "./") || strings.HasPrefix(a, module)
	})
	return append(rest, "-count=1", "-run="+one, f.pkg)
}

// proof is in the output of what cannot fail by chance.
var proof = regexp.MustCompile(`\b(landed|differ|wrong)\b|DATA RACE`)

// second is a second run of a test that failed, alone.
type second struct {
	first failure
	args  []string
}

// pkg is a package whose tests run.
type pkg struct {
	open                    map[string][]string // output of each test that has not ended
	output                  []string            // outside any test
	passed, failed, skipped int
}

func newSummary(out io.Writer) *summary { return &summary{out: out} }

// begin opens a run of go test with args. Packages of different runs are kept
// apart.
func (s *summary) begin(args []string) {
	s.pkgs, s.builds, s.args, s.label = map[string]*pkg{}, map[string][]string{}, args, ""
	if slices.Contains(args, "-race") {
		s.label = " (-race)"
	}
	title := command(args)
	const most = 100 // a list of packages is long
	if len(title) > most {
		title = title[:most] + "…"
	}
	s.printf("%s\n", title)
}

// line takes one line of output. What is no event is passed through.
func (s *summary) line(text []byte) {
	var e event
	if err := json.Unmarshal(text, &e); err != nil || e.Action == "" {
		s.printf("%s", text)
		return
	}
	switch {
	case strings.HasPrefix(e.Action, "build-"):
		s.builds[e.ImportPath] = append(s.builds[e.ImportPath], e.Output)
	case e.Test == "":
		s.packageEvent(e)
	default:
		s.testEvent(e)
	}
}

func (s *summary) pkg(name string) *pkg {
	p := s.pkgs[name]
	if p == nil {
		p = &pkg{open: map[string][]string{}}
		s.pkgs[name] = p
	}
	return p
}

func (s *summary) testEvent(e event) {
	p := s.pkg(e.Package)
	name := short(e.Package) + " " + e.Test + s.label
	output := p.open[e.Test]
	switch e.Action {
	case "run":
		p.open[e.Test] = nil
		return
	case "output":
		p.open[e.Test] = append(output, e.Output)
		return
	case "pass":
		p.passed++
	case "skip":
		p.skipped++
		s.skips = append(s.skips, name+": "+reason(output))
	case "fail":
		p.failed++
		f := failure{name: name}
		if !proof.MatchString(strings.Join(output, "")) {
			f.args, f.pkg, f.test = s.args, e.Package, e.Test
		}
		s.failures = append(s.failures, f)
		s.printf("--- FAIL %s\n%s", name, strings.Join(output, ""))
	default: // pause, cont, bench, attr, artifacts
		return
	}
	delete(p.open, e.Test)
}

func (s *summary) packageEvent(e event) {
	p := s.pkg(e.Package)
	switch e.Action {
	case "output":
		p.output = append(p.output, e.Output)
		return
	case "pass", "fail":
	case "skip": // no test files, or none that is to run
		return
	default:
		return
	}
	for _, test := range slices.Sorted(maps.Keys(p.open)) {
		// Only a process that has died leaves a test open.
		p.failed++
		s.fail(short(e.Package) + " " + test + s.label + " (did not end)")
		s.printf("--- FAIL %s %s (did not end)\n%s", short(e.Package), test, strings.Join(p.open[test], ""))
	}
	if e.Action == "fail" && p.failed == 0 {
		p.failed++
		s.fail(short(e.Package) + s.label + " (outside any test)")
		s.printf("--- FAIL %s (outside any test)\n%s%s", short(e.Package), strings.Join(s.builds[e.FailedBuild], ""), strings.Join(p.output, ""))
	}
	if p.passed+p.failed+p.skipped > 0 {
		s.printf("%-4s %-32s %6.1fs  %s\n", e.Action, short(e.Package), e.Elapsed, counts(p.passed, p.failed, p.skipped))
	}
	s.passed += p.passed
	s.failed += p.failed
	s.skipped += p.skipped
	delete(s.pkgs, e.Package)
}

// broken counts a run that failed as a whole.
func (s *summary) broken(err error) {
	s.failed++
	s.fail(err.Error())
}

// fail notes what is not to be run again.
func (s *summary) fail(name string) { s.failures = append(s.failures, failure{name: name}) }

// again returns what to run again: each test that failed, unless they are more than
// most, or something else failed.
func (s *summary) again(most int) []second {
	var all []second
	for _, f := range s.failures {
		if f.test == "" {
			return nil
		}
		if slices.ContainsFunc(all, func(a second) bool { return a.covers(f) }) {
			continue
		}
		all = append(all, second{f, f.alone()})
	}
	if len(all) > most {
		return nil
	}
	return all
}

// covers reports whether f ran again with a.
func (a *second) covers(f failure) bool {
	return f.pkg == a.first.pkg && f.top() == a.first.top() && slices.Equal(f.args, a.first.args)
}

// forgive turns failures into flaky tests.
func (s *summary) forgive(a second) {
	kept := s.failures[:0]
	for _, f := range s.failures {
		if a.covers(f) {
			s.flaky = append(s.flaky, f.name)
			s.failed--
			s.passed++
		} else {
			kept = append(kept, f)
		}
	}
	s.failures = kept
}

// close prints the lists and the closing line, and returns the exit status.
func (s *summary) close() int {
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		s.printf("\n%s:\n", title)
		for _, l := range lines {
			s.printf("  %s\n", l)
		}
	}
	list("skipped", s.skips)
	list("flaky, each failed once and passed alone", s.flaky)
	var failed []string
	for _, f := range s.failures {
		failed = append(failed, f.name)
	}
	list("failed", failed)
	if s.passed == 0 {
		s.printf("\nno test passed\n")
	}
	s.printf("\n%s\n", counts(s.passed, s.failed, s.skipped))
	if s.failed > 0 || s.passed == 0 {
		return 1
	}
	return 0
}

func (s *summary) printf(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format, args...) }

func counts(passed, failed, skipped int) string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", passed, failed, skipped)
}

// place is what testing puts before a message: "    lane_test.go:12: ".
var place = regexp.MustCompile(`^\s*\S+_test\.go:\d+: `)

// reason finds what a test said when it was skipped.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || strings.HasPrefix(trimmed, "=== ") || strings.HasPrefix(trimmed, "--- ") {
			continue
		}
		said = append(said, strings.TrimSpace(place.ReplaceAllString(line, "")))
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}

const module = "github.com/railhop/railhop"

// short cuts the module's own path off a package's.
func short(pkg string) string {
	if pkg == module {
		return "railhop"
	}
	return strings.TrimPrefix(pkg, module+"/")
}
