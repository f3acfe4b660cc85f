package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/railhop/railhop/internal/registry"
)

func newPXNCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pxn on|off GROUP",
		Short: "Switch the relays of a running group on or off",
		Long: `pxn off tells every rank of a group, and ranks to come, to relay nothing: writes go
direct from then on. Nothing is restarted and nothing is lost: pieces that a relay has
are finished. pxn on takes it back.

  railhop pxn off kv
  railhop pxn on kv`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef("pxn: want on or off, and a group, such as: railhop pxn off kv")
		},
	}
	cmd.AddCommand(newSwitchCmd(a, "on", "Let a group's ranks relay again"), newSwitchCmd(a, "off", "Let a group's ranks relay no more"))
	return cmd
}

func newSwitchCmd(a *app, word, short string) *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   word + " GROUP",
		Short: short,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("pxn %s: %d arguments: want one, the group", word, len(args))
			}
			if err := registry.CheckGroup(args[0]); err != nil {
				return usagef("%s", strings.TrimPrefix(err.Error(), "registry: "))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.switchGroup(root, args[0], word == "off") },
	}
	registryFlag(cmd, &root)
	return cmd
}

// switched is what pxn on and off print.
type switched struct {
	Group   string        `json:"group"`
	Off     bool          `json:"off"`
	Changed int           `json:"changed"` // ranks that were otherwise before
	Refused []refusedFile `json:"refused"` // files that were left alone
}

// switchWait is how long the directory's lock is waited for: others hold it for
// moments.
const switchWait = 2 * time.Second

func (a *app) switchGroup(root, group string, off bool) error {
	s := switched{Group: group, Off: off, Refused: []refusedFile{}}
	_, err := os.Stat(filepath.Join(root, group))
	if there := err == nil; there || off {
		r, err := registry.Open(registry.Options{Root: root, Group: group, LockWait: switchWait, Logger: a.log})
		if err != nil {
			return err
		}
		changed, refused, err := r.SetOff(off)
		err = errors.Join(err, r.Close())
		if err != nil {
			return err
		}
		s.Changed = changed
		for _, f := range refused {
			s.Refused = append(s.Refused, refusedFile{f.Name, f.Cause.String(), f.Detail})
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if a.json {
		return a.printJSON(s, true)
	}
	word := "on"
	if off {
		word = "off"
	}
	fmt.Fprintf(a.out, "group %s: relays are %s: %s changed, and so for ranks to come\n", group, word, plural(s.Changed, "rank"))
	for _, f := range s.Refused {
		fmt.Fprintf(a.errOut, "railhop: left alone: %s: %s: %s\n", f.Name, f.Cause, f.Detail)
	}
	return nil
}
