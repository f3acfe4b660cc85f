// Package railhop moves memory between the processes of a cluster, host memory
// and GPU memory alike, by one-sided RDMA: the transfer engine under the KV caches
// of LLM serving. It speaks Mooncake's protocol, so that its peers may be
// Mooncake's engine or its own.
//
//	engine, err := railhop.Open(cfg)          // one a process, or several
//	engine.Register(addr, length, "cuda:0")   // memory that may be moved
//	id, err := engine.OpenSegment(ctx, peer)  // where to
//	err = engine.Write(ctx, id, addr, remote, length)
//
// A write whose target lies on another rail of the fabric may hop over a peer GPU
// of the same host, whose NIC is on that rail: the PXN relay. Callers notice
// nothing. Whatever goes wrong with it, the bytes go the direct way, and the reason
// is counted (see [Stats]).
//
// All methods may be called by any goroutine, except where a type says otherwise.
package railhop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/ledger"
	"github.com/railhop/railhop/internal/metadata"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/path/rdma"
	"github.com/railhop/railhop/internal/path/tcp"
	"github.com/railhop/railhop/internal/plan"
	"github.com/railhop/railhop/internal/segment"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// ErrClosed is returned by calls to an engine that is closed.
var ErrClosed = errors.New("railhop: engine is closed")

// Engine moves memory. Get one from [Open].
type Engine struct {
	cfg     Config
	log     *slog.Logger
	host    *host
	devices []*device
	rails   *plan.Rails
	own     []string // rails of the NICs that the GPU, or else the process, sends by
	name    string

	server handshake.Answerer
	asker  handshake.Asker     // asks at addresses
	dialer remoteDialer        // asks by name
	dir    *metadata.Directory // nil in P2PHANDSHAKE mode
	joined bool                // it knows this engine

	local    *segment.Local
	cache    *segment.Cache
	direct   *rdma.Path // nil on TCP
	acceptor *endpoint.Acceptor
	tcp      *tcp.Path   // nil on RDMA
	data     *tcp.Server // likewise

	rank atomic.Pointer[rank] // nil while PXN is off
	off  atomic.Uint32        // the [Reason] why it is

	publishMu sync.Mutex // one at a time, so that the last is the latest

	intakeMu sync.Mutex
	intake   []submission
	closed   bool
	hasMail  atomic.Bool

	// Of the pump.
	taken   []submission
	fenced  []fenced // tasks that wait for their source
	active  map[*ledger.Batch]struct{}
	targets []*target // by segment id
	cursor  segment.Cursor
	gone    bool // closed: nothing goes direct any more

	batchMu sync.Mutex
	batches []*Batch // spare, for blocking calls

	notesMu sync.Mutex
	notes   []Notification

	landMu sync.Mutex
	land   []mayLand

	keepMu sync.Mutex
	kept   map[uint64][]byte // registered slices, by address

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Open starts an engine. It fails if the hardware that the settings name is not
// there, or no port of their range is free. If PXN is asked for and cannot be
// had, the engine starts all the same, and logs why.
func Open(cfg Config) (_ *Engine, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, log: cfg.Logger, active: make(map[*ledger.Batch]struct{}), kept: make(map[uint64][]byte)}
	e.ctx, e.stop = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if e.host, err = joinHost(cfg); err != nil {
		return nil, err
	}
	e.host.transport.report(e.log)
	if err = e.openDirectory(); err != nil {
		return nil, err
	}
	if err = e.listen(); err != nil {
		return nil, err
	}
	answers := handshake.Handlers{Notify: e.notified}
	if e.host.transport.tcp {
		err = e.connectTCP()
	} else if e.devices, err = e.host.open(cfg.Devices); err == nil {
		if err = e.connect(); err == nil {
			answers.Connect, answers.Fence = e.acceptor.Accept, e.fenceAsked
		}
	}
	if err != nil {
		return nil, err
	}
	answers.Describe = e.local.Encoded
	e.server.Handle(answers)
	if err = e.host.loop.Add(e); err != nil {
		return nil, err
	}
	e.startPXN()
	if err = e.join(); err != nil {
		return nil, err
	}
	if every := cfg.Settings.Metadata.RefreshInterval; every > 0 {
		e.wg.Go(func() { e.refresh(every) })
	}
	e.log.Info("engine started", "segment", e.name, "transport", e.host.transport.name(), "why", e.host.transport.why, "nics", e.nicNames(), "pxn", e.rank.Load() != nil)
	return e, nil
}

func (e *Engine) listen() (err error) {
	n := e.cfg.Settings.Names
	o := handshake.Options{
		PortMin: uint16(n.MinRPCPort), PortMax: uint16(n.MaxRPCPort), IPv6: n.IPv6, Backlog: n.Backlog,
		MaxLength: uint64(n.MaxFrame), Logger: e.log,
	}
	if e.cfg.served() && n.LegacyRPCPort {
		_, port, err := wire.ParseServer(e.cfg.Host, uint16(n.HandshakePort))
		if err != nil {
			return fmt.Errorf("railhop: Host: %w", err)
		}
		o.PortMin, o.PortMax = port, port
	}
	if h := e.cfg.Hooks; h != nil && h.Net != nil {
		if e.server, e.asker, err = h.Net(o); err != nil {
			return err
		}
	} else {
		server, err := handshake.Listen(o)
		if err != nil {
			return err
		}
		e.server = server
		e.asker = &handshake.Dialer{
			ConnectTimeout: n.ConnectTimeout, MaxLength: uint64(n.MaxFrame), DefaultPort: uint16(n.HandshakePort), IPv6: n.IPv6,
		}
	}
	if e.dialer.Asker = e.asker; e.dir != nil {
		e.name = e.cfg.Host
		e.dialer.Asker = named{e.asker, e.dir}
	} else {
		e.name = wire.ServerName(e.cfg.Host, e.server.Port())
	}
	return nil
}

// connect sets up the direct way.
func (e *Engine) connect() error {
	env := e.cfg.Settings
	var opened []nic.Device
	var devices []wire.Device
	maxMR := uint64(env.RDMA.MaxMRSize)
	for _, d := range e.devices {
		attr, port := d.Attr(), d.Port()
		opened = append(opened, d)
		devices = append(devices, wire.Device{Name: attr.Name, LID: port.LID, GID: port.GID.String()})
		maxMR = min(maxMR, attr.MaxMR)
	}
	e.rails = plan.NewRails(env.PXN.RailMap, localNICs(opened))
	rule, why := e.rails.Rule()
	e.log.Info("rails here", "by", rule.String(), "why", why)
	matrix, err := e.matrix()
	if err != nil {
		return err
	}
	e.cfg.Topology = matrix
	e.local, err = segment.NewLocal(segment.LocalOptions{
		Name: e.name, RDMAServerName: env.Names.RDMABindAddr, Protocol: wire.ProtocolRDMA, TCPProtoVersion: 1, FenceVersion: 1,
		Devices: devices, Matrix: matrix, MaxMR: maxMR,
	})
	if err != nil {
		return err
	}
	e.cache = segment.NewCache(segment.CacheOptions{Source: e.dialer, Local: e.local, Logger: e.log})
	var sets []*endpoint.Set
	gate := endpoint.NewGate(32)
	for i, d := range e.devices {
		so := setOptions(env, e.host)
		so.NIC = &endpoint.NIC{Name: d.Attr().Name, Rail: e.rails.Local(d.Attr().Name), Index: i, Device: d.Device, PD: d.pd}
		so.Server, so.Dialer, so.Gate, so.Log, so.Lookup = e.local.Desc().ServerName(), e.dialer, gate, e.log, e.lookup
		set, err := endpoint.NewSet(so)
		if err != nil {
			return err
		}
		sets = append(sets, set)
		e.own = append(e.own, so.NIC.Rail)
	}
	e.direct, err = rdma.New(rdma.Options{
		Sets: sets, Local: &localMemory{local: e.local}, Matrix: matrix, RailOf: e.rails.Local,
		SliceSize: uint64(env.RDMA.SliceSize), Fragment: uint64(env.RDMA.FragmentLimit), RetryCount: env.RDMA.RetryCount,
		RailPause: env.RDMA.RailPause, Now: e.host.loop.Now, Wake: e.host.loop.Wake, Log: e.log,
		Health: func(n *endpoint.NIC, active bool, cause error) {
			e.log.Warn("NIC changed", "nic", n.Name, "active", active, "cause", cause)
			e.local.SetActive(n.Index, active)
			port := n.Device.Port()
			e.local.SetAddress(n.Index, port.LID, port.GID.String())
			e.publishLater()
		},
	})
	if err != nil {
		for _, s := range sets {
			s.Close()
		}
		return err
	}
	e.acceptor = endpoint.NewAcceptor(sets...)
	return nil
}

// setOptions is what the settings say of endpoints.
func setOptions(env config.Env, h *host) endpoint.Options {
	r := env.RDMA
	return endpoint.Options{
		QPs: r.QPsPerEndpoint, MaxWR: r.MaxWR, MaxCQE: r.MaxCQE, MaxEndpoints: r.MaxEndpoints, FIFO: r.EndpointStore == "FIFO",
		MTU: r.MTU, PKeyIndex: uint16(r.PKeyIndex), TrafficClass: uint8(max(r.TrafficClass, 0)), ServiceLevel: uint8(max(r.ServiceLevel, 0)),
		Now: h.loop.Now, Wake: h.loop.Wake, Done: h.loop.Nudge,
	}
}

// lookup finds a peer NIC that sends no GID in its handshake.
func (e *Engine) lookup(ctx context.Context, path string) (nic.GID, uint16, error) {
	server, name := wire.SplitNICPath(path)
	desc, err := e.dialer.Describe(ctx, server)
	if err != nil {
		return nic.GID{}, 0, err
	}
	for _, d := range desc.Devices {
		if d.Name == name {
			gid, err := wire.ParseGID(d.GID)
			return gid, d.LID, err
		}
	}
	return nic.GID{}, 0, fmt.Errorf("railhop: %s has no NIC %q: %w", server, name, xfer.ErrDeviceNotFound)
}

func (e *Engine) nicNames() []string {
	var names []string
	for _, d := range e.devices {
		names = append(names, d.Attr().Name)
	}
	return names
}

// startPXN joins the group if PXN is asked for and the GPU is known.
func (e *Engine) startPXN() {
	p := e.cfg.Settings.PXN
	switch {
	case !p.Enable && p.Off == "":
		e.stayOff(xfer.PXNOff)
	case e.tcp != nil:
		e.stayOff(xfer.NoLocalRail, "cause", "the engine runs on TCP")
	case p.Off != "":
		e.stayOff(xfer.PXNBadConfig, "cause", p.Off)
	case e.host.gpus == nil:
		e.stayOff(xfer.NoGPU, "cause", "no GPU provider")
	default:
		if bus, ok := e.host.gpus.Current(); ok {
			e.joinRank(bus)
		} else {
			e.off.Store(uint32(xfer.NoGPU))
			e.log.Info("PXN waits for GPU memory to be registered")
		}
	}
}

// stayOff notes why the engine has no rank.
func (e *Engine) stayOff(why xfer.Reason, attrs ...any) {
	e.off.Store(uint32(why))
	e.host.tally.Because(why, 0, attrs...)
}

// joinRank makes the process a rank of its group, or shares what another engine
// has made.
func (e *Engine) joinRank(bus string) {
	h := e.host
	h.rankMu.Lock()
	defer h.rankMu.Unlock()
	if h.why != xfer.NoReason {
		e.stayOff(h.why) // it was tried
		return
	}
	if h.rank == nil {
		near, err := e.near(bus)
		if err != nil {
			h.why = xfer.NoLocalRail
			e.stayOff(h.why, "gpu", bus, "err", err)
			return
		}
		o := rankOptions{env: e.cfg.Settings, bus: bus, root: e.cfg.Registry, dialer: e.dialer, deathOK: true, hooks: e.cfg.Hooks}
		var names []string
		for _, d := range near {
			names = append(names, d.Attr().Name)
			o.rails = append(o.rails, e.rails.Local(d.Attr().Name))
			o.deathOK = o.deathOK && d.Attr().DeathCloses
		}
		if o.nics, err = h.open(names); err != nil {
			h.why = xfer.NoLocalRail
			e.stayOff(h.why, "gpu", bus, "err", err)
			return
		}
		r, why, err := newRank(h, o)
		if err != nil {
			if why != xfer.RegistryBusy { // that one is tried again when GPU memory is registered
				h.why = why
			}
			e.stayOff(why, "gpu", bus, "err", err)
			return
		}
		h.rank = r
	}
	e.rank.Store(h.rank)
	h.rank.report.add(e)
}

// near returns the NICs that a GPU sends by: its preferred ones, or all.
func (e *Engine) near(bus string) ([]*device, error) {
	infos, err := e.host.gpuInfos()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(infos, func(g gpuInfo) bool { return g.BusID == bus })
	if i < 0 {
		return nil, fmt.Errorf("GPU %s is not visible", bus)
	}
	preferred := e.cfg.Topology[location(infos[i].Index)][0]
	var near []*device
	for _, d := range e.devices {
		if d.Port().State == nic.PortActive && (len(preferred) == 0 || slices.Contains(preferred, d.Attr().Name)) {
			near = append(near, d)
		}
	}
	if n := len(near); n == 0 || n > 16 {
		return nil, fmt.Errorf("%d active NICs near GPU %s: want 1 to 16", n, bus)
	}
	return near, nil
}

// Name is the segment's name, by which peers open it: host:port.
func (e *Engine) Name() string { return e.name }

// Port is the port of the handshake server.
func (e *Engine) Port() int { return int(e.server.Port()) }

// OpenSegment makes a peer's memory known by the name that it gave itself. It asks
// the peer the first time. The id is this engine's alone.
func (e *Engine) OpenSegment(ctx context.Context, name string) (SegmentID, error) {
	r, err := e.cache.Open(ctx, name)
	if err != nil {
		return InvalidSegment, err
	}
	if e.cfg.Settings.Metadata.NoCache {
		if _, err := r.Refetch(ctx, r.Desc()); err != nil {
			return InvalidSegment, err
		}
	}
	return r.ID, nil
}

// RefreshSegment fetches what an opened peer offers anew. It fails if the peer does
// not answer, or is no longer there.
func (e *Engine) RefreshSegment(ctx context.Context, id SegmentID) error {
	r := e.cache.Get(id)
	if r == nil {
		return fmt.Errorf("railhop: refresh segment %d: it is not open: %w", id, ErrInvalidArgument)
	}
	return r.Renew(ctx)
}

// Close ends all transfers, gives back what the engine holds, and waits for it.
// It may be called twice.
func (e *Engine) Close() error {
	e.intakeMu.Lock()
	was := e.closed
	e.closed = true
	e.intakeMu.Unlock()
	if was || e.host == nil {
		return nil
	}
	var err error
	if e.direct != nil || e.tcp != nil {
		err = e.abortAll(ErrClosed)
	}
	if r := e.rank.Load(); r != nil {
		r.report.remove(e)
	}
	e.stop()
	e.host.loop.Do(func() { e.gone = true })
	e.host.loop.Remove(e)
	if e.cache != nil {
		e.cache.Close()
	}
	e.wg.Wait()
	if e.direct != nil {
		err = errors.Join(err, e.direct.Close())
	}
	if e.data != nil {
		err = errors.Join(err, e.closeTCP())
	}
	if e.local != nil {
		err = errors.Join(err, e.unregisterAll())
	}
	err = errors.Join(err, e.leave())
	// Last: a peer takes a refused connection as proof that nothing can land.
	if e.server != nil {
		err = errors.Join(err, e.server.Close())
	}
	err = errors.Join(err, e.host.release(e.devices), e.host.leave(e.cfg.CloseWait))
	return err
}

// abortAll ends what is open, and waits for it up to the configured bound. What is
// still open then ends for its caller with a [*MayLandError], which is returned too.
func (e *Engine) abortAll(cause error) error {
	e.host.loop.Do(func() {
		e.drainIntake()
		for b := range e.active {
			e.abortOnPump(b, cause)
		}
	})
	deadline := time.Now().Add(e.cfg.CloseWait)
	for open := true; open && time.Now().Before(deadline); {
		open = false
		e.host.loop.Do(func() {
			for b := range e.active {
				open = open || !b.Closed()
			}
		})
		if open {
			time.Sleep(time.Millisecond)
		}
	}
	e.host.loop.Do(func() {
		for b := range e.active {
			e.abandon(b, cause)
		}
	})
	if ranges := e.MayLand(); ranges != nil {
		return &MayLandError{Ranges: ranges, Cause: cause}
	}
	return nil
}
