package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/shmabi"
)

// statusOptions are the flags of status.
type statusOptions struct {
	root     string
	watch    bool
	noWait   bool
	interval time.Duration
}

func newStatusCmd(a *app) *cobra.Command {
	o := statusOptions{interval: time.Second}
	cmd := &cobra.Command{
		Use:   "status [GROUP]",
		Short: "Show the ranks of a group, their lanes and counters",
		Long: `status shows what lives in a group's directory: ranks, their rails and lanes, the
slots by what is in them, heartbeats and counters, who is alive, suspected, dead or
switched off, and the files that are not accepted and why. Without GROUP it lists the
groups of this host.

It works beside a live group without disturbing it: it maps the control blocks
read-only, takes no lock and writes nothing. Since a heartbeat shows only by changing,
status looks until each rank has beaten or has been silent for
MC_PXN_HEARTBEAT_TIMEOUT_MS (3 s).

  railhop status
  railhop status kv --watch
  railhop status kv --json | jq '.ranks[].lanes'

States: alive; off (by railhop pxn off); stopping; suspected (silent, nothing is fed to
it); dead (its entry goes at the next scan of the others); unknown (in another pid
namespace, and nothing decides).
Slots of a lane: copying (announced, the bytes are on their way), waiting (the bytes
are there), claimed (the relay is sending them), done (to be reaped), revoked, free.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("status: unexpected argument %q: it takes one group", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.watch && o.noWait {
				return usagef("status: --watch and --no-wait exclude each other: want one of them")
			}
			if o.interval < 50*time.Millisecond || o.interval > time.Hour {
				return usagef("status: --interval %v: want 50ms to 1h", o.interval)
			}
			if len(args) == 1 {
				return a.status(cmd.Context(), &o, args[0])
			}
			return a.listGroups(cmd.Context(), &o)
		},
	}
	f := cmd.Flags()
	registryFlag(cmd, &o.root)
	f.BoolVar(&o.watch, "watch", false, "go on until interrupted; with --json one object a line")
	f.BoolVar(&o.noWait, "no-wait", false, "look once, and do not judge heartbeats")
	f.DurationVar(&o.interval, "interval", o.interval, "time between two looks of --watch")
	return cmd
}

func registryFlag(cmd *cobra.Command, root *string) {
	cmd.Flags().StringVar(root, "registry", registry.DefaultRoot, "directory that groups are in")
}

// lookEvery is how often status looks while it waits for heartbeats.
const lookEvery = 100 * time.Millisecond

// status shows one group.
func (a *app) status(ctx context.Context, o *statusOptions, group string) error {
	v, err := openView(o.root, group)
	if err != nil {
		return err
	}
	defer v.Close()
	if !o.watch {
		s, err := settled(ctx, v, o.noWait)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(statusOf(group, s), true)
		}
		return showStatus(a.out, group, s, nil)
	}
	return a.every(ctx, o.interval, func() (func(io.Writer, *statusRates) error, error) {
		s, err := v.Look()
		if err != nil {
			return nil, err
		}
		return func(w io.Writer, r *statusRates) error {
			if a.json {
				return a.printJSON(statusOf(group, s), false)
			}
			r.update(s, time.Now())
			return showStatus(w, group, s, r)
		}, nil
	})
}

// every shows something again and again until ctx ends, on a terminal in place.
func (a *app) every(ctx context.Context, interval time.Duration, look func() (func(io.Writer, *statusRates) error, error)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	rates := new(statusRates)
	for first := true; ; first = false {
		show, err := look()
		if err != nil {
			return err
		}
		switch {
		case a.json:
		case isTerminal(a.out):
			fmt.Fprint(a.out, "\x1b[H\x1b[2J")
		case !first:
			fmt.Fprintln(a.out)
		}
		if err := show(a.out, rates); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (a *app) printJSON(v any, indent bool) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	if indent {
		enc.SetIndent("", "  ")
	}
	return enc.Encode(v)
}

// openView opens a group to be looked at, and says which there are if it is not
// there.
func openView(root, group string) (*registry.Viewer, error) {
	if err := registry.CheckGroup(group); err != nil {
		return nil, usagef("%s", strings.TrimPrefix(err.Error(), "registry: "))
	}
	env, _ := config.FromEnviron()
	v, err := registry.OpenView(registry.Options{Root: root, Group: group, HeartbeatTimeout: env.PXN.HeartbeatTimeout})
	if errors.Is(err, os.ErrNotExist) {
		names, lerr := groupNames(root)
		switch {
		case lerr != nil:
			return nil, lerr
		case len(names) == 0:
			return nil, fmt.Errorf("group %q is not there: %s has no group", group, root)
		}
		return nil, fmt.Errorf("group %q is not there: %s has %s", group, root, strings.Join(names, ", "))
	}
	return v, err
}

// settled looks until it is known of each rank whether its heart beats.
func settled(ctx context.Context, v *registry.Viewer, noWait bool) (*registry.Snapshot, error) {
	for {
		s, err := v.Look()
		if err != nil {
			return nil, err
		}
		open := slices.ContainsFunc(s.Ranks, func(r registry.Rank) bool {
			return r.Life != registry.Dead && !r.Beating && r.Suspected == ""
		})
		if noWait || !open {
			return s, nil
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// groupNames lists the directories that are groups, or would be if a rank came.
func groupNames(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() || registry.CheckGroup(e.Name()) != nil {
			continue
		}
		// What a group's directory has from its first rank or switch on.
		for _, sign := range []string{".lock", ".off"} {
			if st, err := os.Lstat(filepath.Join(root, e.Name(), sign)); err == nil && st.Mode().IsRegular() {
				names = append(names, e.Name())
				break
			}
		}
	}
	return names, nil
}

func (a *app) listGroups(ctx context.Context, o *statusOptions) error {
	look := func() (groupList, error) {
		l := groupList{Registry: o.root, Groups: []groupLine{}}
		names, err := groupNames(o.root)
		if err != nil {
			return l, err
		}
		for _, name := range names {
			l.Groups = append(l.Groups, lookAtGroup(o.root, name))
		}
		return l, nil
	}
	if o.watch {
		return a.every(ctx, o.interval, func() (func(io.Writer, *statusRates) error, error) {
			l, err := look()
			return func(w io.Writer, _ *statusRates) error {
				if a.json {
					return a.printJSON(l, false)
				}
				return showGroups(w, l)
			}, err
		})
	}
	l, err := look()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(l, true)
	}
	return showGroups(a.out, l)
}

func lookAtGroup(root, name string) groupLine {
	line := groupLine{Group: name}
	v, err := registry.OpenView(registry.Options{Root: root, Group: name})
	if err != nil {
		line.Error = strings.TrimPrefix(err.Error(), "registry: ")
		return line
	}
	defer v.Close()
	s, err := v.Look()
	if err != nil {
		line.Error = strings.TrimPrefix(err.Error(), "registry: ")
		return line
	}
	line.Off, line.Ranks, line.Refused = s.Off, len(s.Ranks), len(s.Refused)
	for _, r := range s.Ranks {
		if r.Life == registry.Dead {
			line.Dead++
		}
		for _, l := range r.Lanes {
			if l.State != shmabi.LaneFree {
				line.Lanes++
			}
		}
	}
	return line
}
