package faulttest

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/gpu/gpufault"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/nicfault"
	"github.com/railhop/railhop/internal/shmabi"
)

// gate holds the goroutine that comes to its stage for the nth time, until it is
// released.
type gate struct {
	stage   Stage
	reached func(Stage)
	armed   atomic.Bool
	open    chan struct{}
	once    sync.Once

	mu   sync.Mutex
	left int
}

func newGate(s Stage, nth int, reached func(Stage)) *gate {
	return &gate{stage: s, left: max(nth, 1), reached: reached, open: make(chan struct{})}
}

// at is called on the way through a stage.
func (g *gate) at(s Stage) {
	if s != g.stage || !g.armed.Load() {
		return
	}
	g.mu.Lock()
	g.left--
	left := g.left
	g.mu.Unlock()
	if left == 0 {
		g.reached(s)
		<-g.open
	}
}

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

// hooks returns the wrappers of a process.
func (c *child) hooks() *railhop.Hooks {
	o, g := &c.options, c.gate
	return &railhop.Hooks{
		Group: c.marks.group,
		Lane: func(end railhop.End, m lane.Mem) lane.Mem {
			if end == railhop.RelayEnd {
				return &relayMem{Mem: m, gate: g, blind: o.Bug == NoClaim}
			}
			return m
		},
		Fence: func(_ string, _ uint64, ask func() error) error {
			c.fences.Add(1)
			g.at(Fence)
			if o.Bug == NoFence {
				return nil
			}
			return ask()
		},
	}
}

// relayMem is a lane as the relay sees it.
type relayMem struct {
	lane.Mem
	gate  *gate
	blind bool // see [NoClaim]
	seen  [shmabi.Slots]uint64
}

func (m *relayMem) Load(w lane.Word) uint64 {
	v := m.Mem.Load(w)
	if !m.blind || w.Kind != lane.Commit {
		return v
	}
	if v == 0 {
		return m.seen[w.Slot]
	}
	m.seen[w.Slot] = v
	return v
}

func (m *relayMem) Store(w lane.Word, v uint64) {
	if w.Kind == lane.DoneCommit && v != 0 {
		m.gate.at(Store)
	}
	if w.Kind == lane.Commit {
		m.seen[w.Slot] = 0
	}
	m.Mem.Store(w, v)
}

func (m *relayMem) CompareAndSwap(w lane.Word, from, to uint64) bool {
	m.gate.at(Claim)
	return m.blind || m.Mem.CompareAndSwap(w, from, to)
}

// onNIC is the hook of a process's NICs.
func onNIC(g *gate, wire netip.AddrPort) nicfault.Hook {
	return func(c *nicfault.Call) error {
		switch {
		case c.Op == nicfault.Post:
			g.at(Post)
		case c.Op == nicfault.Modify && c.Attr.State == nic.RTS:
			g.at(Handshake)
		case c.Op == nicfault.Modify && c.Attr.State == nic.RTR && wire.IsValid():
			c.Attr.RemoteGID = wire.Addr().As16()
			c.Attr.RemoteLID = wire.Port()
		}
		return nil
	}
}

// onGPU is the hook of a process's GPU.
func onGPU(g *gate) gpufault.Hook {
	return func(op string, _ int) error {
		switch op {
		case gpufault.Import:
			g.at(Attach)
		case gpufault.Copy:
			g.at(Copy)
		}
		return nil
	}
}

// listening is a provider that remembers where its device listens.
type listening struct {
	nic.Provider
	at atomic.Pointer[netip.AddrPort]
}

func (p *listening) Open(name string) (nic.Device, error) {
	d, err := p.Provider.Open(name)
	if err == nil {
		port := d.Port()
		at := netip.AddrPortFrom(netip.AddrFrom16(port.GID).Unmap(), port.LID)
		p.at.Store(&at)
	}
	return d, err
}
