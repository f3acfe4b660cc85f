package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/softnic"
)

// host is what the commands work on: the hardware, the engines and the memory of
// the process.
type host struct {
	opts Options
	log  *slog.Logger

	mu       sync.Mutex
	hardware *hardware
	engines  map[string]*railhop.Engine
	memory   map[string]*memory
	replay   *replay
}

// hardware is the software NICs and GPUs, made once: engines that are to share
// their NICs have to be given the same.
type hardware struct {
	softNICs, softGPUs string
	nics               nic.Provider
	gpus               gpu.Provider
	seen               *recorder
	opened             map[int]gpu.Device // by ordinal
}

// recorder is a provider that remembers the NICs that were opened, for their
// counters.
type recorder struct {
	*softnic.Provider
	mu      sync.Mutex
	devices []*softnic.Device
}

// Open implements [nic.Provider].
func (r *recorder) Open(name string) (nic.Device, error) {
	d, err := r.Provider.Open(name)
	if soft, ok := d.(*softnic.Device); ok && err == nil {
		r.mu.Lock()
		r.devices = append(r.devices, soft)
		r.mu.Unlock()
	}
	return d, err
}

func newHost(o Options) *host {
	return &host{opts: o, log: o.Logger, engines: make(map[string]*railhop.Engine), memory: make(map[string]*memory)}
}

func (h *host) commands() map[string]Handler {
	return map[string]Handler{
		"open":          on(h.open),
		"close":         on(h.closeEngine),
		"alloc":         on(h.alloc),
		"free":          on(h.free),
		"register":      on(h.register),
		"unregister":    on(h.unregister),
		"fill":          on(h.fill),
		"verify":        on(h.verify),
		"segment":       on(h.segment),
		"stream":        on(h.stream),
		"transfer":      on(h.transfer),
		"stats":         on(h.stats),
		"counters":      on(h.counters),
		"usage":         on(h.usage),
		"replay_load":   on(h.replayLoad),
		"replay_send":   on(h.replaySend),
		"replay_allow":  on(h.replayAllow),
		"replay_check":  on(h.replayCheck),
		"plain_send":    on(h.plainSend),
		"plain_receive": on(h.plainReceive),
	}
}

func (h *host) open(_ context.Context, a OpenArgs, _ func(any)) (Opened, error) {
	env, warnings := config.Load(func(name string) (string, bool) {
		value, ok := a.Env[name]
		return value, ok
	})
	warnings = append(warnings, config.Misspelt(slices.Sorted(maps.Keys(a.Env)))...)
	cfg := railhop.Defaults()
	cfg.Host, cfg.Devices, cfg.Settings, cfg.Registry, cfg.Logger = a.Host, a.Devices, env, a.Registry, h.log.With("engine", a.Engine)
	cfg.Protocol = a.Protocol
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.engines[a.Engine] != nil {
		return Opened{}, fmt.Errorf("worker: engine %q is open already", a.Engine)
	}
	if env.Providers.Soft {
		hw, err := h.useHardware(env.Providers)
		if err != nil {
			return Opened{}, err
		}
		cfg.NICs, cfg.GPUs = hw.nics, hw.gpus
	}
	e, err := railhop.Open(cfg)
	if err != nil {
		return Opened{}, err
	}
	h.engines[a.Engine] = e
	o := Opened{Segment: e.Name(), PXN: env.PXN.On()}
	for _, w := range warnings {
		o.Warnings = append(o.Warnings, w.String())
	}
	return o, nil
}

// useHardware returns the hardware of the process, made at the first call.
func (h *host) useHardware(p config.Providers) (*hardware, error) {
	if hw := h.hardware; hw != nil {
		if hw.softNICs != p.SoftNICs || hw.softGPUs != p.SoftGPUs {
			return nil, fmt.Errorf("worker: hardware %q and %q: want what the first engine has, %q and %q", p.SoftNICs, p.SoftGPUs, hw.softNICs, hw.softGPUs)
		}
		return hw, nil
	}
	devices, err := softnic.ParseDevices(p.SoftNICs)
	if err != nil {
		return nil, err
	}
	soft, err := softnic.New(softnic.Options{Devices: devices, Logger: h.log})
	if err != nil {
		return nil, err
	}
	hw := &hardware{softNICs: p.SoftNICs, softGPUs: p.SoftGPUs, seen: &recorder{Provider: soft}, opened: make(map[int]gpu.Device)}
	hw.nics = hw.seen
	if p.SoftGPUs != "" {
		configs, err := softgpu.ParseDevices(p.SoftGPUs)
		if err != nil {
			return nil, err
		}
		if hw.gpus, err = softgpu.New(softgpu.Options{Devices: configs, Logger: h.log}); err != nil {
			return nil, err
		}
	}
	if h.opts.WrapNICs != nil {
		hw.nics = h.opts.WrapNICs(hw.nics)
	}
	if h.opts.WrapGPUs != nil && hw.gpus != nil {
		hw.gpus = h.opts.WrapGPUs(hw.gpus)
	}
	h.hardware = hw
	return hw, nil
}

func (h *host) engine(name string) (*railhop.Engine, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.engines[name]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("worker: engine %q is not open: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(h.engines)), ", "))
}

// EngineArgs names an engine.
type EngineArgs struct {
	Engine string `json:"engine"`
}

func (h *host) closeEngine(_ context.Context, a EngineArgs, _ func(any)) (None, error) {
	e, err := h.engine(a.Engine)
	if err != nil {
		return None{}, err
	}
	h.mu.Lock()
	delete(h.engines, a.Engine)
	h.mu.Unlock()
	return None{}, e.Close()
}

func (h *host) segment(ctx context.Context, a SegmentArgs, _ func(any)) (Segment, error) {
	e, err := h.engine(a.Engine)
	if err != nil {
		return Segment{}, err
	}
	id, err := e.OpenSegment(ctx, a.Name)
	return Segment{ID: uint64(id)}, err
}

// close ends the engines, then frees the memory.
func (h *host) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	for name, e := range h.engines {
		err = errors.Join(err, e.Close())
		delete(h.engines, name)
	}
	for name, m := range h.memory {
		err = errors.Join(err, m.free())
		delete(h.memory, name)
	}
	if h.hardware != nil {
		for _, d := range h.hardware.opened {
			err = errors.Join(err, d.Close())
		}
	}
	return err
}
