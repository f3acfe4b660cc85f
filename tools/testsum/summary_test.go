package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// feed runs lines through a summary and returns its output and exit status.
func feed(lines ...string) (string, int) {
	var out strings.Builder
	s := newSummary(&out)
	s.begin([]string{"./..."})
	for _, l := range lines {
		s.line([]byte(l + "\n"))
	}
	status := s.close()
	return out.String(), status
}

func TestSummary(t *testing.T) {
	const p = `"Package":"github.com/railhop/railhop/internal/lane"`
	pass := []string{
		`{"Action":"start",` + p + `}`,
		`{"Action":"run",` + p + `,"Test":"TestA"}`,
		`{"Action":"output",` + p + `,"Test":"TestA","Output":"=== RUN   TestA\n"}`,
		`{"Action":"pass",` + p + `,"Test":"TestA","Elapsed":0.1}`,
	}
	end := func(action string) string { return `{"Action":"` + action + `",` + p + `,"Elapsed":1.5}` }
	for _, tc := range []struct {
		name   string
		lines  []string
		status int
		last   string
		holds  []string
	}{
		{"pass", append(slices.Clone(pass), end("pass")), 0, "1 passed, 0 failed, 0 skipped", []string{"pass internal/lane                       1.5s  1 passed"}},
		{"skip", append(slices.Clone(pass),
			`{"Action":"run",`+p+`,"Test":"TestB/x"}`,
			`{"Action":"output",`+p+`,"Test":"TestB/x","Output":"=== RUN   TestB/x\n"}`,
			`{"Action":"output",`+p+`,"Test":"TestB/x","Output":"    lane_test.go:7: no GPU on this machine\n"}`,
			`{"Action":"output",`+p+`,"Test":"TestB/x","Output":"--- SKIP: TestB/x (0.00s)\n"}`,
			`{"Action":"skip",`+p+`,"Test":"TestB/x"}`, end("pass")),
			0, "1 passed, 0 failed, 1 skipped", []string{"skipped:\n  internal/lane TestB/x: no GPU on this machine\n"}},
		{"fail", append(slices.Clone(pass),
			`{"Action":"run",`+p+`,"Test":"TestB"}`,
			`{"Action":"output",`+p+`,"Test":"TestB","Output":"    lane_test.go:7: got 1, want 2\n"}`,
			`{"Action":"fail",`+p+`,"Test":"TestB"}`, end("fail")),
			1, "1 passed, 1 failed, 0 skipped", []string{"--- FAIL internal/lane TestB\n    lane_test.go:7: got 1, want 2\n", "failed:\n  internal/lane TestB\n"}},
		{"died", append(slices.Clone(pass),
			`{"Action":"run",`+p+`,"Test":"TestB"}`,
			`{"Action":"output",`+p+`,"Test":"TestB","Output":"panic: boom\n"}`, end("fail")),
			1, "1 passed, 1 failed, 0 skipped", []string{"TestB (did not end)\npanic: boom\n"}},
		{"exit in TestMain", append(slices.Clone(pass),
			`{"Action":"output",`+p+`,"Output":"leak\n"}`, end("fail")),
			1, "1 passed, 1 failed, 0 skipped", []string{"internal/lane (outside any test)\nleak\n"}},
		{"does not build", []string{
			`{"ImportPath":"x.test","Action":"build-output","Output":"x.go:1: undefined: y\n"}`,
			`{"Action":"fail",` + p + `,"FailedBuild":"x.test"}`},
			1, "0 passed, 1 failed, 0 skipped", []string{"x.go:1: undefined: y\n"}},
		{"nothing ran", []string{`{"Action":"skip",` + p + `}`}, 1, "0 passed, 0 failed, 0 skipped", []string{"no test passed"}},
		{"not an event", append([]string{"go: downloading"}, append(slices.Clone(pass), end("pass"))...), 0, "1 passed, 0 failed, 0 skipped", []string{"go: downloading\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, status := feed(tc.lines...)
			if status != tc.status {
				t.Errorf("status %d, want %d", status, tc.status)
			}
			if !strings.HasSuffix(out, "\n"+tc.last+"\n") {
				t.Errorf("want %q at the end of\n%s", tc.last, out)
			}
			for _, h := range tc.holds {
				if !strings.Contains(out, h) {
					t.Errorf("want %q in\n%s", h, out)
				}
			}
		})
	}
}

func TestBrokenRunFails(t *testing.T) {
	var out strings.Builder
	s := newSummary(&out)
	s.begin([]string{"-nonsense"})
	s.broken(errors.New("exit status 2"))
	if s.close() != 1 || !strings.HasSuffix(out.String(), "\n0 passed, 1 failed, 0 skipped\n") {
		t.Error(out.String())
	}
}

func TestRaceIsNamed(t *testing.T) {
	var out strings.Builder
	s := newSummary(&out)
	for _, args := range [][]string{{"./..."}, {"-race", strings.Repeat("x", 200)}} {
		s.begin(args)
		s.line([]byte(`{"Action":"run","Package":"p","Test":"TestA"}` + "\n"))
		s.line([]byte(`{"Action":"skip","Package":"p","Test":"TestA"}` + "\n"))
	}
	s.close()
	if !strings.Contains(out.String(), "  p TestA: no reason given\n  p TestA (-race): no reason given\n") || strings.Contains(out.String(), strings.Repeat("x", 100)) {
		t.Error(out.String())
	}
}

func TestReason(t *testing.T) {
	for _, tc := range []struct {
		name   string
		output []string
		want   string
	}{
		{"none", []string{"=== RUN   TestA\n", "--- SKIP: TestA (0.00s)\n"}, "no reason given"},
		{"two lines", []string{"    a_test.go:1: needs\n", "        two GPUs\n", "--- SKIP: TestA (0.00s)\n"}, "needs two GPUs"},
	} {
		if got := reason(tc.output); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestSplit(t *testing.T) {
	got := split([]string{"-v", "./...", "--", "--", "-race", "."})
	if len(got) != 2 || !slices.Equal(got[0], []string{"-v", "./..."}) || !slices.Equal(got[1], []string{"-race", "."}) {
		t.Errorf("got %q", got)
	}
}

func TestExec(t *testing.T) {
	var out strings.Builder
	s := newSummary(&out)
	const events = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
`
	for _, tc := range []struct {
		args []string
		err  string // a part of it
	}{
		{[]string{"exec", "printf", "%s", events}, ""},
		{[]string{"exec", "false"}, "testsum: false: exit status 1"},
		{[]string{"exec"}, "no command"},
	} {
		s.begin(tc.args)
		if err := runGroup(s, tc.args); (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%q: err = %v, want %q in it", tc.args, err, tc.err)
		}
	}
	if s.passed != 1 || strings.Contains(out.String(), "go test") {
		t.Errorf("%d passed, want 1:\n%s", s.passed, out.String())
	}
}

func TestAgain(t *testing.T) {
	const pkg = module + "/internal/lane"
	group := []string{"-race", "-timeout", "8m", "./...", module + "/x"}
	fail := func(test string) []string {
		return []string{
			`{"Action":"run","Package":"` + pkg + `","Test":"` + test + `"}`,
			`{"Action":"fail","Package":"` + pkg + `","Test":"` + test + `"}`,
		}
	}
	end := []string{`{"Action":"fail","Package":"` + pkg + `"}`}
	for _, tc := range []struct {
		name  string
		group []string
		lines []string
		want  []string // tests
	}{
		{"one with its subtests", group, slices.Concat(fail("TestA/x"), fail("TestA/y"), fail("TestA"), end), []string{"TestA"}},
		{"two", group, slices.Concat(fail("TestA"), fail("TestB"), end), []string{"TestA", "TestB"}},
		{"too many", group, slices.Concat(fail("TestA"), fail("TestB"), fail("TestC"), end), nil},
		{"wrong bytes", group, slices.Concat(fail("TestA")[:1],
			[]string{`{"Action":"output","Package":"` + pkg + `","Test":"TestA","Output":"x_test.go:7: 8 of 9 bytes differ"}`}, fail("TestA")[1:], end), nil},
		{"died", group, slices.Concat(fail("TestA"), fail("TestB")[:1], end), nil},
		{"outside", group, end, nil},
		{"command", []string{"exec", "vm", "-test.short", ".=TestB", "./x=^TestA"}, slices.Concat(fail("TestA"), end), []string{"TestA"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			s := newSummary(&out)
			s.begin(tc.group)
			for _, l := range tc.lines {
				s.line([]byte(l + "\n"))
			}
			all := s.again(2)
			var tests []string
			for _, a := range all {
				tests = append(tests, a.first.top())
				want := []string{"-race", "-timeout", "8m", "-count=1", "-run=^" + a.first.top() + "$", pkg}
				if tc.group[0] == "exec" {
					want = []string{"exec", "vm", "-test.short", "./internal/lane=^TestA$"}
				}
				if !slices.Equal(a.args, want) {
					t.Errorf("runs %q, want %q", a.args, want)
				}
			}
			if !slices.Equal(tests, tc.want) {
				t.Fatalf("runs %q again, want %q", tests, tc.want)
			}
			if len(all) == 0 {
				if s.close() != 1 {
					t.Error("the run passed")
				}
				return
			}
			failed := s.failed
			s.forgive(all[0])
			if s.passed == 0 || s.passed+s.failed != failed {
				t.Errorf("%d passed and %d failed, of %d", s.passed, s.failed, failed)
			}
			if status := s.close(); (status == 0) != (len(all) == 1) {
				t.Errorf("status %d with %d of %d forgiven", status, 1, len(all))
			}
			if !strings.Contains(out.String(), "flaky, each failed once and passed alone:\n  internal/lane TestA") {
				t.Error(out.String())
			}
		})
	}
}
