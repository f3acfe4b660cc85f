package main_test

import (
	"bufio"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// built is where the library and the C programs lie, which all tests share.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(built.dir)
	os.Exit(code)
}

// build compiles the library and the C programs of testdata, and returns the folder.
func build(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc: tools/setup.sh installs it")
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "libtransfer_engine"); built.err != nil {
			return
		}
		lib := filepath.Join(built.dir, "libtransfer_engine.so")
		commands := [][]string{
			{"go", "build", "-trimpath", "-buildvcs=false", "-tags=netgo,osusergo", "-buildmode=c-shared", "-o", lib, "."},
			{"gcc", "-Wall", "-Wextra", "-Werror", "-I.", "-o", filepath.Join(built.dir, "peer"), "testdata/peer.c", lib},
			{"gcc", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(built.dir, "signals"), "testdata/signals.c", "-ldl"},
		}
		for _, c := range commands {
			cmd := exec.Command(c[0], c[1:]...)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				built.err = fmt.Errorf("%v: %w\n%s", c, err, out)
				return
			}
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

// program is a C program that is bound to end.
func program(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(build(t), name), args...)
	cmd.Env = append(os.Environ(), "MC_FORCE_TCP=1", "RAILHOP_PROVIDERS=")
	return cmd
}

func TestCallerInC(t *testing.T) {
	target := program(t, "peer", "target")
	var logs strings.Builder
	target.Stderr = &logs
	in, err := target.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := target.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	session, addr, ok := strings.Cut(lines.Text(), " ")
	if !ok {
		t.Fatalf("the target says %q\n%s", lines.Text(), logs.String())
	}

	initiator := program(t, "peer", "initiator", session, addr)
	text, err := initiator.CombinedOutput()
	if err != nil || !strings.Contains(string(text), "\npassed\n") {
		t.Errorf("initiator: %v\n%s", err, text)
	}

	io.WriteString(in, "notes\n")
	lines.Scan()
	if got, want := lines.Text(), "notes 2 request-7=in place =more"; got != want {
		t.Errorf("the target got %q, want %q", got, want)
	}
	in.Close()
	if err := target.Wait(); err != nil {
		t.Errorf("target: %v\n%s", err, logs.String())
	}
}

// TestSignals compares the actions of all 64 signals before and after loading, and tries
// what becomes of those that are changed. 33 is glibc's own, which Go makes glibc install.
func TestSignals(t *testing.T) {
	changed := []syscall.Signal{syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGPIPE, syscall.SIGURG, 33}
	slices.Sort(changed)
	want := ""
	for _, s := range changed {
		want += fmt.Sprintf("%d ", s)
	}
	tests := []struct {
		name   string
		says   string
		signal syscall.Signal // that ends the program
		exit   int
	}{
		{name: "nothing"},
		{name: "pipe", signal: syscall.SIGPIPE},
		{name: "int", signal: syscall.SIGINT},
		{name: "term", exit: 128 + int(syscall.SIGTERM)},
		{name: "own", says: "caught"},
		{name: "child", says: "child 11"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			cmd := program(t, "signals", filepath.Join(build(t), "libtransfer_engine.so"), test.name)
			cmd.Stdout = &out
			cmd.Run()
			lines := strings.Split(out.String(), "\n")
			if lines[0] != want {
				t.Errorf("loading changes signals %s, want %s", lines[0], want)
			}
			if test.says != "" && !slices.Contains(lines, test.says) {
				t.Errorf("it says %q, want %q", lines, test.says)
			}
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if got := max(status.Signal(), 0); got != test.signal {
				t.Errorf("it ends by signal %d, want %d", got, test.signal)
			}
			if got := max(status.ExitStatus(), 0); got != test.exit {
				t.Errorf("it ends with %d, want %d", got, test.exit)
			}
		})
	}
}

// TestHeaderIsWhole wants every function of the headers in the library.
func TestHeaderIsWhole(t *testing.T) {
	f, err := elf.Open(filepath.Join(build(t), "libtransfer_engine.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, s := range symbols {
		has[s.Name] = has[s.Name] || s.Section != elf.SHN_UNDEF
	}
	n := 0
	for _, header := range []string{"transfer_engine_c.h", "railhop.h"} {
		text, err := os.ReadFile(header)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^[a-z_0-9 ]+[ *](\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			n++
			if !has[m[1]] {
				t.Errorf("%s declares %s, which the library does not have", header, m[1])
			}
		}
	}
	if n < 45 {
		t.Errorf("only %d functions found in the headers", n)
	}
}
