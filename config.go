package railhop

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/plan"
	"github.com/railhop/railhop/internal/pump"
	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// Config says how an [Engine] is set up. Get one from [Defaults] or
// [FromEnvironment] and change what is needed: the zero value is not valid.
type Config struct {
	// Host is the name or address that peers dial, without a port: the port is
	// drawn at random from the settings' range, as Mooncake does. With a metadata
	// server it is the segment's name as it stands, port or not, and the address to
	// be dialled is that of MC_TCP_BIND_ADDRESS, or else the host's first.
	Host string
	// Metadata is where descriptors are kept: http://…, etcd://… or redis://…. "" or
	// P2PHANDSHAKE means that peers tell of themselves.
	Metadata string
	// SingleNode allows names that no other node can dial, such as localhost.
	SingleNode bool
	// Protocol is "rdma", "tcp", or "" for RDMA where there is a NIC, else TCP. RDMA
	// without a NIC runs on TCP, with a warning, and so does any other word. MC_FORCE_TCP
	// comes before it, and MC_FORCE_HCA makes RDMA without a NIC fail.
	Protocol string
	// Devices are the NICs that may be used, by name. Empty means all.
	Devices []string
	// Settings is what the MC_* and RAILHOP_* variables say, as described in
	// docs/configuration.md.
	Settings config.Env
	// Topology maps a memory location of the host, such as "cuda:0", to its
	// preferred and its other NICs. Nil means that of Settings, or else that it is
	// made up from what the devices say. A GPU goes by its ordinal on the host,
	// whatever is visible to the process.
	Topology map[string][2][]string
	// Registry is the directory that groups of ranks meet in; "" means /dev/shm.
	Registry string
	// CloseWait bounds how long a passed deadline, Unregister and Close wait for
	// transfers to come to an end. Zero means 2 s.
	CloseWait time.Duration
	// Logger takes all messages. Nil means none.
	Logger *slog.Logger

	// NICs and GPUs are the hardware to use instead of what Settings.Providers
	// names, and Hooks reach into the relay. They are for tests.
	NICs  nic.Provider
	GPUs  gpu.Provider
	Hooks *Hooks
}

// End is an end of a lane.
type End uint8

const (
	SenderEnd End = iota
	RelayEnd
)

// Hooks let tests hold, break and plant bugs at the places where a process may
// die or stop.
type Hooks struct {
	// Lane wraps the memory of a lane, as one end sees it.
	Lane func(End, lane.Mem) lane.Mem
	// Fence stands in for the fence that is asked of a target; ask asks it.
	Fence func(session string, epoch uint64, ask func() error) error
	// NoCut makes pieces fill slots whatever the load.
	NoCut bool
	// Turn turns the pump until ctx ends, instead of [pump.Loop.Run].
	Turn func(ctx context.Context, l *pump.Loop)
	// Net and Group stand in for the handshakes' network and for the registry.
	Net   func(handshake.Options) (handshake.Answerer, handshake.Asker, error)
	Group func(registry.Options) (registry.Group, error)
	// Random stands in for the random numbers by which target NICs are chosen.
	Random func() uint64
}

// spin is [pump.Options].SpinFor: a pump that is turned by hand does not.
func (h *Hooks) spin() time.Duration {
	if h == nil || h.Turn == nil {
		return 0
	}
	return -1
}

func (h *Hooks) turn(ctx context.Context, l *pump.Loop) {
	if h == nil || h.Turn == nil {
		l.Run(ctx)
		return
	}
	h.Turn(ctx, l)
}

func (h *Hooks) group(o registry.Options) (registry.Group, error) {
	if h == nil || h.Group == nil {
		return registry.OpenGroup(o)
	}
	return h.Group(o)
}

func (h *Hooks) random() uint64 {
	if h == nil || h.Random == nil {
		return rand.Uint64()
	}
	return h.Random()
}

func (h *Hooks) lane(end End, m lane.Mem) lane.Mem {
	if h == nil || h.Lane == nil {
		return m
	}
	return h.Lane(end, m)
}

func (h *Hooks) fence(session string, epoch uint64, ask func() error) error {
	if h == nil || h.Fence == nil {
		return ask()
	}
	return h.Fence(session, epoch, ask)
}

func (h *Hooks) noCut() bool { return h != nil && h.NoCut }

// Defaults is the configuration of an empty environment.
func Defaults() Config {
	env, _ := config.Load(func(string) (string, bool) { return "", false })
	return Config{Settings: env}
}

// FromEnvironment is the configuration that the environment asks for. A value
// that cannot be taken is replaced by its default, and returned as a warning
// that names the variable, the value and what is valid.
func FromEnvironment() (Config, []string) {
	env, warnings := config.FromEnviron()
	texts := make([]string, len(warnings))
	for i, w := range warnings {
		texts[i] = w.String()
	}
	return Config{Settings: env}, texts
}

func (c Config) withDefaults() Config {
	if c.CloseWait == 0 {
		c.CloseWait = 2 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	if c.served() {
		if c.Host == "" {
			return fmt.Errorf("railhop: Host: want the segment's name: %w", xfer.ErrInvalidArgument)
		}
		return nil
	}
	host, _, err := wire.ParseServer(c.Host, 1)
	if err != nil {
		return fmt.Errorf("railhop: Host: %w", err)
	}
	if host != c.Host {
		return fmt.Errorf("railhop: Host %q: want a host alone, the port is drawn from %d to %d", c.Host, c.Settings.Names.MinRPCPort, c.Settings.Names.MaxRPCPort)
	}
	if err := wire.CheckOwnHost(host, c.SingleNode); err != nil {
		return fmt.Errorf("railhop: Host: %w", err)
	}
	return nil
}

// localNICs is what [plan.NewRails] wants to know. A NIC whose port is down names no
// subnet.
func localNICs(devices []nic.Device) []plan.NIC {
	var all []plan.NIC
	for _, d := range devices {
		port := d.Port()
		if port.State != nic.PortActive {
			continue
		}
		all = append(all, plan.NIC{Device: d.Attr().Name, GID: netip.AddrFrom16(port.GID), Subnet: port.Subnet})
	}
	return all
}
