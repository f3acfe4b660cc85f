// Package softnic is a network card in software: RDMA reliable connections
// between processes and hosts, carried by TCP.
//
// It owns devices, protection domains, memory regions, queue pairs and
// completion queues that behave as a card's do (states, keys, access rights,
// order, completions), and the TCP connections under them. It does not own the
// memory: that is the caller's, and is read and written in place, or through a stage
// if the CPU cannot touch it.
//
//	Post -> ring -> sender ==TCP: batches==> responder -> target memory
//	Poll <- CQ <-- ack reader <==TCP: acks, read data==     (its own goroutine)
//
// A device listens on a TCP port. Its GID is its address and its LID is that port,
// so whatever carries a GID and a LID between two processes carries all that
// is needed to connect. A queue pair that posts opens one connection to the peer's device,
// at its first Post; nothing of an operation is sent before the responder has accepted
// that connection for the queue pair it expects.
//
// Two promises go further than a card's, because bytes in socket buffers
// outlive the process that wrote them (pxn.md 8.4, 8.6): an operation is reported done
// when its bytes are in the target's memory, and failed or flushed only
// after the responder has confirmed that it left that memory, or is gone.
//
// An operation that has no answer from a peer that is merely stopped does not
// fail, as it would not with a card, which goes on while its process does not:
// it waits. The retry budget covers connecting.
//
// Goroutines: per device one that accepts, and one for each connection that has
// not said hello or asks to close; per queue pair one that connects, sends and closes,
// and one that reads acks, both from the first Post on; per incoming connection one. With a latency
// configured, one more per queue pair. None of them wakes up while idle.
package softnic

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

const (
	defaultMaxMR = 1 << 46
	maxName      = 64 // of a device or a rail, in bytes
	maxWR        = 1 << 14
	maxQP        = 1 << 16
	defaultWR    = 256

	defaultTimeout = 67 * time.Millisecond
	defaultRetries = 7
)

// DeviceConfig describes one device.
type DeviceConfig struct {
	Name      string        // 1..64 bytes
	Addr      netip.Addr    // where it listens, and its GID
	Port      uint16        // 0: the kernel picks
	Rail      string        // the plane it hangs on; "" means Name
	Rate      uint64        // bytes a second it sends at most; 0 means no limit
	CrossRate uint64        // the same towards peers on another rail; 0 means Rate
	Latency   time.Duration // one way; an operation takes twice that longer
	NUMA      int           // node, -1 if unknown
	MaxMR     uint64        // longest memory region; 0 means 64 TiB
	Subnet    netip.Prefix  // Addr's network; invalid if unknown
}

// Options configures a [Provider].
type Options struct {
	Devices []DeviceConfig
	Logger  *slog.Logger // nil means none
	// Memory is memory that the CPU cannot touch: it is read and written by copies
	// through a stage. Nil means that there is none.
	Memory Memory
}

// Provider hands out the configured devices.
type Provider struct {
	log  *slog.Logger
	devs []DeviceConfig
	mem  Memory

	pacers map[string]*pacer // by device: all openings share the wire
}

var _ nic.Provider = (*Provider)(nil)

// New returns a provider of the devices in o. It fails if one of them is not valid.
func New(o Options) (*Provider, error) {
	p := &Provider{log: o.Logger, mem: o.Memory, pacers: map[string]*pacer{}}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	for _, c := range o.Devices {
		if err := c.check(); err != nil {
			return nil, err
		}
		if _, dup := p.pacers[c.Name]; dup {
			return nil, fmt.Errorf("softnic: device %q is configured twice", c.Name)
		}
		if c.Rail == "" {
			c.Rail = c.Name
		}
		if c.MaxMR == 0 {
			c.MaxMR = defaultMaxMR
		}
		c.Addr = c.Addr.Unmap()
		if c.Subnet.IsValid() && c.Subnet.Addr().Is4() {
			c.Subnet = netip.PrefixFrom(netip.AddrFrom16(c.Subnet.Addr().As16()), c.Subnet.Bits()+96)
		}
		p.pacers[c.Name] = newPacer(c.Rate, c.CrossRate)
		p.devs = append(p.devs, c)
	}
	return p, nil
}

func (c *DeviceConfig) check() error {
	switch {
	case c.Name == "" || len(c.Name) > maxName:
		return fmt.Errorf("softnic: device name %q: want 1..%d bytes", c.Name, maxName)
	case len(c.Rail) > maxName:
		return fmt.Errorf("softnic: device %s: rail %q: want at most %d bytes", c.Name, c.Rail, maxName)
	case !c.Addr.IsValid() || c.Addr.IsUnspecified() || c.Addr.IsMulticast() || c.Addr.Zone() != "":
		return fmt.Errorf("softnic: device %s: address %v: want one that peers can reach", c.Name, c.Addr)
	case c.Subnet.IsValid() && !c.Subnet.Contains(c.Addr.Unmap()):
		return fmt.Errorf("softnic: device %s: subnet %v: want one that contains the address %v", c.Name, c.Subnet, c.Addr)
	case c.Latency < 0 || c.Latency > maxLatency:
		return fmt.Errorf("softnic: device %s: latency %v: want 0..%v", c.Name, c.Latency, maxLatency)
	}
	return nil
}

// Name returns "soft".
func (p *Provider) Name() string { return "soft" }

// Devices lists the devices in the order in which they were configured.
func (p *Provider) Devices() ([]string, error) {
	names := make([]string, len(p.devs))
	for i := range p.devs {
		names[i] = p.devs[i].Name
	}
	return names, nil
}

// Open starts a device: it listens from here on. The device is a [*Device].
// A device may be opened more than once if its port is the kernel's to pick.
func (p *Provider) Open(name string) (nic.Device, error) {
	for i := range p.devs {
		if p.devs[i].Name == name {
			return openDevice(p.devs[i], p.pacers[name], p.mem, p.log)
		}
	}
	return nil, fmt.Errorf("softnic: open %q: %w", name, nic.ErrNoDevice)
}

// errGone says that nothing of a device answers any more.
var errGone = errors.New("peer device is gone")
