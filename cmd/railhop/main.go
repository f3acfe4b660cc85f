// Command railhop shows, replays and measures transfers between the ranks of a
// rail fabric. All of it is in internal/cli.
package main

import (
	"os"

	"github.com/railhop/railhop/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
