package railhop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/cuda"
	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/softnic"
	"github.com/railhop/railhop/internal/nic/verbs"
	"github.com/railhop/railhop/internal/path/tcp"
	"github.com/railhop/railhop/internal/pump"
	"github.com/railhop/railhop/internal/tally"
	"github.com/railhop/railhop/internal/xfer"
)

// host is what the engines of one process share: the hardware, the pump, and
// the membership in a group of ranks.
type host struct {
	key  hostKey
	refs int // guarded by hosts.mu
	log  *slog.Logger

	nics nic.Provider
	gpus gpu.Provider
	far  deviceMemory // for NICs that are software

	filters   []config.Device // MC_TE_FILTERS
	port      int             // of NICs that are named without one
	transport transport
	poller    *tcp.Poller // where the pump parks if that is TCP

	loop    *pump.Loop
	stop    context.CancelFunc
	stopped chan struct{}
	tally   *tally.Tally

	mu      sync.Mutex
	devices map[string]*device

	rankMu sync.Mutex
	rank   *rank       // nil until PXN is set up
	why    xfer.Reason // PXN was tried to set up, and this is why it failed
}

// hostKey tells hosts apart. Engines with the same hardware settings share one.
type hostKey struct {
	soft, verbs, cuda, auto bool
	softNICs, softGPUs      string
	group, registry         string
	protocol, filters       string
	forceTCP, forceHCA      bool
	port, gid               int
	memory                  config.GPUMemory
	nics                    nic.Provider
	gpus                    gpu.Provider
}

// hosts is the one place where engines of a process find each other: a GPU's
// arena, registry entry and pump exist once, whoever opens engines.
var hosts struct {
	mu  sync.Mutex
	all map[hostKey]*host
}

// joinHost returns the process's host for these settings, made if need be.
func joinHost(cfg Config) (*host, error) {
	p := cfg.Settings.Providers
	key := hostKey{
		soft: p.Soft, verbs: p.Verbs, cuda: p.CUDA, auto: p.Auto,
		softNICs: p.SoftNICs, softGPUs: p.SoftGPUs,
		group: cfg.Settings.PXN.GroupID, registry: cfg.Registry,
		protocol: cfg.Protocol, forceTCP: cfg.Settings.Transport.ForceTCP, forceHCA: cfg.Settings.Transport.ForceHCA,
		filters: fmt.Sprint(cfg.Settings.Transport.Filters),
		port:    cfg.Settings.RDMA.Port, gid: cfg.Settings.RDMA.GIDIndex, memory: cfg.Settings.RDMA.GPUMemory,
		nics: cfg.NICs, gpus: cfg.GPUs,
	}
	hosts.mu.Lock()
	defer hosts.mu.Unlock()
	if h := hosts.all[key]; h != nil {
		h.refs++
		return h, nil
	}
	h := &host{
		key: key, refs: 1, log: cfg.Logger, nics: cfg.NICs, gpus: cfg.GPUs, filters: cfg.Settings.Transport.Filters, port: max(1, cfg.Settings.RDMA.Port),
		devices: make(map[string]*device), stopped: make(chan struct{}),
	}
	if err := h.findProviders(cfg); err != nil {
		return nil, err
	}
	po := pump.Options{SpinFor: cfg.Hooks.spin()}
	var err error
	if h.transport, err = h.choose(cfg); err != nil {
		return nil, err
	}
	if h.transport.tcp {
		if h.poller, err = tcp.NewPoller(); err != nil {
			return nil, err
		}
		po.Park, po.Unpark, po.Lender = h.poller.Park, h.poller.Unpark, h.poller
		po.SpinFor = -1 // the path looks for answers itself
	}
	h.tally = tally.New(cfg.Logger)
	h.loop = pump.New(po)
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	go func() {
		defer close(h.stopped)
		cfg.Hooks.turn(ctx, h.loop)
	}()
	if hosts.all == nil {
		hosts.all = make(map[hostKey]*host)
	}
	hosts.all[key] = h
	return h, nil
}

// ErrNoProvider is returned when the hardware that was asked for is not there.
var ErrNoProvider = errors.New("railhop: no such hardware")

func (h *host) findProviders(cfg Config) error {
	p := cfg.Settings.Providers
	var err error
	if h.nics == nil && p.Soft && p.SoftNICs != "" {
		configs, err := softnic.ParseDevices(p.SoftNICs)
		if err != nil {
			return fmt.Errorf("railhop: RAILHOP_SOFT_NICS: %w", err)
		}
		if h.nics, err = softnic.New(softnic.Options{Devices: configs, Logger: cfg.Logger, Memory: &h.far}); err != nil {
			return err
		}
	}
	if h.gpus == nil && p.Soft && p.SoftGPUs != "" {
		configs, err := softgpu.ParseDevices(p.SoftGPUs)
		if err != nil {
			return fmt.Errorf("railhop: RAILHOP_SOFT_GPUS: %w", err)
		}
		if h.gpus, err = softgpu.New(softgpu.Options{Devices: configs, Logger: cfg.Logger}); err != nil {
			return err
		}
	}
	if h.gpus == nil && (p.CUDA || p.Auto) {
		if err := h.findCUDA(cfg); err != nil {
			return err
		}
	}
	if h.nics == nil && !cfg.Settings.Transport.ForceTCP && (p.Verbs || p.Auto) {
		return h.findVerbs(cfg)
	}
	return err
}

// findVerbs opens libibverbs. Unless it was asked for by name, a host without it has
// no NICs.
func (h *host) findVerbs(cfg Config) error {
	r := cfg.Settings.RDMA
	opts := verbs.Options{
		Port: r.Port, GIDIndex: r.GIDIndex, GIDIndexFrom: r.GIDIndexFrom, GIDRetries: r.AutoGIDMaxRetries,
		NeedRelaxed: r.RelaxedOrdering == 2, Logger: cfg.Logger,
	}
	if h.gpus != nil {
		opts.GPU = h.gpus
	}
	switch r.GPUMemory {
	case config.GPUMemoryPeermem:
		opts.GPUMemory = verbs.ByPeermem
	case config.GPUMemoryDMABuf:
		opts.GPUMemory = verbs.ByDMABuf
	}
	nics, err := verbs.Open(opts)
	switch {
	case err == nil:
		h.nics = nics
	case cfg.Settings.Providers.Verbs:
		return fmt.Errorf("%w: %w", ErrNoProvider, err)
	default:
		h.log.Info("no RDMA library", "err", err)
	}
	return nil
}

// findCUDA opens the CUDA driver. Unless it was asked for by name, a host without one
// has no GPUs, which is said once.
func (h *host) findCUDA(cfg Config) error {
	opts := cuda.Options{GatherBlocks: cfg.Settings.PXN.GatherSMs, Logger: cfg.Logger}
	if cfg.Settings.PXN.Doorbell == "kernel" {
		opts.Doorbell = cuda.KernelDoorbell
	}
	gpus, err := cuda.Open(opts)
	switch {
	case err == nil:
		h.gpus, h.far.gpus = gpus, gpus
	case cfg.Settings.Providers.CUDA:
		return fmt.Errorf("%w: %w", ErrNoProvider, err)
	case cfg.Settings.PXN.On():
		h.log.Warn("no CUDA driver: PXN is off", "err", err)
	default:
		h.log.Info("no CUDA driver", "err", err)
	}
	return nil
}

// syncCaller waits until a stream of the caller's has come to this point: without
// a rank there is nothing that waits for it in the background.
func (h *host) syncCaller(stream uint64) error {
	const what = "railhop: order the transfer behind the stream"
	if h.gpus == nil {
		return fmt.Errorf("%s: this process uses no GPU: %w", what, xfer.ErrInvalidArgument)
	}
	bus, ok := h.gpus.Current()
	if !ok {
		return fmt.Errorf("%s: no GPU is current on this thread: %w", what, xfer.ErrInvalidArgument)
	}
	dev, err := h.gpus.Open(bus)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer dev.Close()
	if err := dev.SyncCaller(stream); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// leave gives the host up, and ends it if nobody else uses it.
func (h *host) leave(wait time.Duration) error {
	hosts.mu.Lock()
	h.refs--
	last := h.refs == 0
	if last {
		delete(hosts.all, h.key)
	}
	hosts.mu.Unlock()
	if !last {
		return nil
	}
	err := h.endRank(wait)
	h.stop()
	<-h.stopped
	if h.poller != nil {
		err = errors.Join(err, h.poller.Close())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, d := range h.devices {
		err = errors.Join(err, d.Close())
		delete(h.devices, name)
	}
	return errors.Join(err, h.far.close())
}

// endRank leaves the group.
func (h *host) endRank(wait time.Duration) error {
	h.rankMu.Lock()
	defer h.rankMu.Unlock()
	r := h.rank
	if r == nil {
		return nil
	}
	h.rank = nil
	return r.close(wait)
}
