package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/fabric"
)

// soft is the flag that asks for hardware in software.
type soft struct{ on bool }

func (s *soft) flag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.on, "soft", false, "play NICs and GPUs in software (or set RAILHOP_PROVIDERS=soft)")
}

// want fails unless software was asked for by name: what is played on this
// machine says nothing of real hardware, and must not be taken for it.
func (s *soft) want(cmd *cobra.Command) error {
	if s.on {
		return nil
	}
	if env, _ := config.FromEnviron(); env.Providers.Soft {
		return nil
	}
	return fmt.Errorf("%s: no RDMA device and GPU can be used on this host; %s --soft plays them in software", cmd.Name(), cmd.CommandPath())
}

// rates are the flags of what a played fabric can carry.
type rates struct {
	link, cross uint64
	uncapped    bool
}

func (r *rates) flags(cmd *cobra.Command, link, cross uint64) {
	r.link, r.cross = link, cross
	const least, most = 1e6, 1e12
	cmd.Flags().Var(size{&r.link, least, most}, "link-rate", "bytes a second that each NIC sends at most")
	cmd.Flags().Var(size{&r.cross, least, most}, "cross-rate", "the same for what crosses rails")
	cmd.Flags().BoolVar(&r.uncapped, "uncapped", false, "no limit but the machine's own: shows the speed of the software")
}

func (r *rates) check(cmd *cobra.Command) error {
	if r.uncapped {
		for _, name := range []string{"link-rate", "cross-rate"} {
			if cmd.Flags().Changed(name) {
				return usagef("%s: --%s and --uncapped exclude each other: want one of them", cmd.Name(), name)
			}
		}
		r.link, r.cross = 0, 0
	}
	return nil
}

// newFabric returns a fabric whose ranks are this program. Close removes it.
func (a *app) newFabric(name string, r rates, slot uint64) (*fabric.Fabric, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("railhop: find this program: %w", err)
	}
	return fabric.New(fabric.Options{
		Exe: exe, Args: []string{"worker", "--log-level", a.level, "--name", "{name}"}, Stderr: a.errOut,
		Name: name, LinkRate: r.link, CrossRate: r.cross, SlotSize: slot,
	}), nil
}

// slotFlag is MC_PXN_SLOT_SIZE of a played rank, small by default: each lends an
// arena of 126 slots.
func slotFlag(cmd *cobra.Command, slot *uint64) {
	*slot = 1 << 20
	cmd.Flags().Var(size{slot, 256 << 10, 8 << 20}, "slot-size", "MC_PXN_SLOT_SIZE of the ranks, a power of two; each lends an arena of 126 slots")
}

func checkSlot(cmd *cobra.Command, slot uint64) error {
	if slot&(slot-1) != 0 {
		return usagef("%s: --slot-size %s: want a power of two from 256KiB to 8MiB", cmd.Name(), formatSize(slot))
	}
	return nil
}
