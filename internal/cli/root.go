// Package cli is the railhop command: what a person or a script types, and what
// they get to see.
//
// A command is a file and a function newXxxCmd, listed once in root.go. Output
// goes to standard output: text, or with --json one JSON value. Messages and
// progress go to standard error. The exit status is 0 if all is right, 1 if the
// work failed, and 2 if the command was used wrongly, with one line that names the
// value and what is valid.
//
// SIGINT and SIGTERM end the command's context: what it has started is ended in
// order, and nothing of it is left behind. The packages below do the work; here
// are flags, words and tables only.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// app is what the commands of one run share.
type app struct {
	out, errOut io.Writer
	json        bool
	level       string
	log         *slog.Logger
}

// commands is the list of all commands.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		newDemoCmd(a),
		newReplayCmd(a),
		newBenchCmd(a),
		newStatusCmd(a),
		newPXNCmd(a),
		newTopologyCmd(a),
		newMetadataCmd(a),
		newWorkerCmd(a),
	}
}

// Main runs the command line args and returns the exit status.
func Main(args []string, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if _, file := errOut.(*os.File); !file {
		errOut = &sharedWriter{w: errOut} // a file is handed to children as it is
	}
	a := &app{out: out, errOut: errOut, log: slog.New(slog.DiscardHandler)}
	root := newRootCmd(a)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil {
		fmt.Fprintln(errOut, "railhop: interrupted")
		return 1
	}
	fmt.Fprintln(errOut, "railhop:", oneLine(err))
	var usage *usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// sharedWriter is a writer for several processes' messages.
type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sharedWriter) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

// usageError is a command used wrongly.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef says what is wrong with the use of a command, and what is valid.
func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// oneLine is an error's text without line breaks, which joined errors have.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}

func newRootCmd(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "railhop",
		Short: "Move KV caches between GPUs of a rail fabric, over a peer GPU where rails would be crossed",
		Long: `railhop is a transfer engine for LLM serving: it moves KV caches from prefill to
decode ranks by RDMA. On a rail-optimized fabric a write to another rail is slow;
railhop hands such a write to a peer GPU of the same node, whose NIC is on that rail.

Start with the demo, which needs no hardware:

  railhop demo --soft

Exit status: 0 all is right, 1 the work failed, 2 the command was used wrongly.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.openLog() },
	}
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print one JSON value instead of text")
	root.PersistentFlags().StringVar(&a.level, "log-level", "warn", "lowest level that is logged to standard error: debug, info, warn or error")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(a.commands()...)
	return root
}

// flagError names the flag, its value and what is valid.
func flagError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return usagef("%s: %w; see %s --help", cmd.Name(), err, cmd.CommandPath())
	}
	want := bad.Unwrap().Error()
	if valid := map[string]string{
		"int": "want a whole number", "uint64": "want a whole number of 0 or more", "float64": "want a number",
		"bool": "want true or false", "duration": "want a duration such as 500ms, 5s or 2m",
	}[bad.GetFlag().Value.Type()]; valid != "" {
		want = valid
	}
	return usagef("%s: --%s %q: %s", cmd.Name(), bad.GetFlag().Name, bad.GetValue(), want)
}

func (a *app) openLog() error {
	var level slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, a.level) {
		return usagef("--log-level %q: want debug, info, warn or error", a.level)
	}
	if err := level.UnmarshalText([]byte(a.level)); err != nil {
		return usagef("--log-level %q: %w", a.level, err)
	}
	a.log = slog.New(slog.NewTextHandler(a.errOut, &slog.HandlerOptions{Level: level}))
	return nil
}

// noArgs is for commands that take flags only.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasSubCommands():
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		return usagef("unknown command %q: want one of %s", args[0], strings.Join(names, ", "))
	}
	return usagef("%s: unexpected argument %q: it takes flags only; see %s --help", cmd.Name(), args[0], cmd.CommandPath())
}
