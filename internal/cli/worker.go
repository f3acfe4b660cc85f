package cli

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/railhop/railhop/internal/worker"
)

// newWorkerCmd is what railhop runs itself as, to be a rank or a target.
func newWorkerCmd(a *app) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:    "worker",
		Short:  "Be a process that another railhop commands on standard input",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// A parent that is gone must not kill it before it has closed its engines.
			signal.Ignore(syscall.SIGPIPE)
			return worker.Serve(cmd.Context(), os.Stdin, a.out, worker.Options{Logger: a.log.With("process", name)})
		},
	}
	cmd.Flags().StringVar(&name, "name", "worker", "name in log messages")
	return cmd
}
