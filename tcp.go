package railhop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/ledger"
	"github.com/railhop/railhop/internal/path/tcp"
	"github.com/railhop/railhop/internal/plan"
	"github.com/railhop/railhop/internal/segment"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// tcpCloseWait is how long a peer may take to confirm that it has stopped, before
// a transfer that had to stop ends with what may still land.
const tcpCloseWait = 200 * time.Millisecond

// connectTCP sets up TCP instead of the direct way.
func (e *Engine) connectTCP() (err error) {
	env := e.cfg.Settings
	e.rails = plan.NewRails(env.PXN.RailMap, nil)
	if e.cfg.Topology, err = e.matrix(); err != nil {
		return err
	}
	e.data, err = tcp.Listen(tcp.ServerOptions{PortMin: env.Names.MinRPCPort, PortMax: env.Names.MaxRPCPort, Log: e.log})
	if err != nil {
		return err
	}
	e.local, err = segment.NewLocal(segment.LocalOptions{
		Name: e.name, Protocol: wire.ProtocolTCP, TCPDataPort: e.data.Port(), TCPProtoVersion: 2, TCPProves: 1,
	})
	if err != nil {
		return err
	}
	e.cache = segment.NewCache(segment.CacheOptions{Source: e.dialer, Local: e.local, Logger: e.log})
	e.data.Serve(tcpMemory{e.local})
	t := env.TCP
	e.tcp, err = tcp.New(tcp.Options{
		Poller: e.host.poller, Lanes: t.LanesPerPeer, Window: t.MaxQueued, ForceV1: t.Proto == 1,
		ConnectTimeout: env.Names.ConnectTimeout, StatusTimeout: t.StatusTimeout, CloseWait: tcpCloseWait,
		Device: e.deviceOf, Now: e.host.loop.Now, Wake: e.host.loop.Wake, Log: e.log,
	})
	return err
}

// closeTCP ends what connectTCP has begun.
func (e *Engine) closeTCP() error {
	var err error
	if e.tcp != nil {
		err = e.tcp.Close()
	}
	return errors.Join(err, e.data.Close())
}

// Idle implements [pump.Idler].
func (e *Engine) Idle() bool {
	if e.hasMail.Load() {
		return false
	}
	if e.tcp != nil {
		return e.tcp.Idle()
	}
	return len(e.fenced) == 0 && e.direct.Idle()
}

// goTCP sends a task by TCP.
func (e *Engine) goTCP(t *ledger.Task, to *target) error {
	if e.gone {
		return ErrClosed
	}
	q := &t.Req
	w := tcp.Work{Op: q.Op, Local: q.Source, Remote: q.TargetAddr, Length: q.Length, Target: to, Owner: t}
	return e.tcp.Submit(&w)
}

// Holds implements [tcp.Target].
func (t *target) Holds(addr, length uint64) error { return t.remote.Desc().Holds(addr, length) }

// Route implements [tcp.Target].
func (t *target) Route(ctx context.Context) (tcp.Route, error) {
	d := t.remote.Desc()
	if d.Protocol != wire.ProtocolTCP {
		return tcp.Route{}, fmt.Errorf("railhop: segment %s is reached by %s, and this engine runs on TCP: %w", d.Name, d.Protocol, xfer.ErrInvalidArgument)
	}
	r := tcp.Route{Host: d.TCPDataHost, Port: d.TCPDataPort, Version: d.TCPProtoVersion, Proves: d.TCPProves >= 1}
	if t.remote.ID == LocalSegment {
		r.Host = "localhost"
	}
	switch {
	case r.Host != "":
		return r, nil
	case t.engine.dir != nil:
		at, err := t.engine.dir.Daemon(ctx, d.Name, false)
		r.Host = at.Host
		return r, err
	}
	var err error
	r.Host, _, err = wire.ParseServer(d.Name, 1)
	return r, err
}

// pinTCP opens the GPU that a buffer lies on, through which peers are served.
func (e *Engine) pinTCP(b *segment.Buffer) error {
	if b.Memory.Kind != gpu.DeviceMemory {
		return nil
	}
	dev, err := e.host.gpus.Open(b.Memory.BusID)
	if err != nil {
		return fmt.Errorf("railhop: register %d bytes at %#x: open GPU %s: %w: %w", b.Length, b.Addr, b.Memory.BusID, xfer.ErrContext, err)
	}
	b.Owner = dev
	return nil
}

// deviceOf returns the GPU that local memory lies on, or nil for host memory. Memory
// that is not registered is host memory, as it is for Mooncake. It belongs to the pump.
func (e *Engine) deviceOf(addr, length uint64) gpu.Device {
	if e.host.gpus == nil {
		return nil
	}
	b, err := e.local.Find(&e.cursor, addr, length)
	if err != nil {
		return nil
	}
	dev, _ := b.Owner.(gpu.Device)
	return dev
}

// tcpMemory is what peers may use.
type tcpMemory struct{ local *segment.Local }

// Find implements [tcp.Memory].
func (m tcpMemory) Find(addr, length uint64) (gpu.Device, bool) {
	var c segment.Cursor
	b, err := m.local.Find(&c, addr, length)
	if err != nil || !b.RemoteAccess {
		return nil, false
	}
	dev, _ := b.Owner.(gpu.Device)
	return dev, true
}
