package capi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/metadata"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// Options are the arguments of an engine, as callers of Mooncake give them.
type Options struct {
	Host     string // of P2PHANDSHAKE: a host, whose port is not taken; else the segment's name
	Metadata string // P2PHANDSHAKE, scheme://address, or an address, which is etcd's
	Protocol string // "tcp", "rdma", or "" for what is there
	Devices  string // names of NICs, see config.ParseDeviceArg
	// Manual leaves the choice of the transport to [Engine.InstallTransport].
	Manual bool
	// Environ is the environment, as os.Environ gives it.
	Environ []string
}

// settings are what the environment says.
func settings(environ []string) (config.Env, []config.Warning) {
	vars := make(map[string]string, len(environ))
	names := make([]string, 0, len(environ))
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if _, twice := vars[name]; !twice {
			vars[name] = value
			names = append(names, name)
		}
	}
	env, warnings := config.Load(func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	})
	return env, append(warnings, config.Misspelt(names)...)
}

// Open starts an engine, or, with Manual, prepares for it.
func (l *Library) Open(o Options) (id uint64, err error) {
	env, warnings := settings(o.Environ)
	e := &Engine{library: l, log: logFor(env.Log), env: env}
	defer func() {
		if err != nil {
			e.log.Error("engine not started", "name", o.Host, "metadata", o.Metadata, "err", err)
		}
	}()
	for _, w := range warnings {
		e.log.Warn("setting: " + w.String())
	}
	e.cfg = railhop.Config{Metadata: o.Metadata, Protocol: o.Protocol, SingleNode: true, Settings: env, Logger: e.log}
	if e.cfg.Host, err = ownHost(o.Host, o.Metadata); err != nil {
		return 0, err
	}
	if o.Metadata == "" {
		return 0, fmt.Errorf("capi: no metadata server: want %s, or the address of one: %w", metadata.P2PHandshake, xfer.ErrInvalidArgument)
	}
	devices, err := config.ReadDeviceArg(strings.Trim(o.Devices, ", "), os.ReadFile)
	if err != nil {
		return 0, err
	}
	for _, n := range devices.Notes {
		e.log.Warn("device list: " + n)
	}
	e.cfg.Devices, e.byGPU = names(allOf(devices)), devices.ByGPU
	if !o.Manual {
		if _, err := e.start(o.Protocol); err != nil {
			return 0, err
		}
	}
	if env.Log.Metrics {
		e.meter = newMeter(e.log, env.Log.MetricsInterval)
	} else {
		e.log.Info("Metrics reporting is disabled (set MC_TE_METRIC=1 to enable)")
	}
	id = l.engines.add(e)
	return id, nil
}

// ownHost is the host, or with a metadata server the segment's name, to go by.
func ownHost(host, server string) (string, error) {
	if server != metadata.P2PHandshake {
		return host, nil
	}
	h, _, err := wire.ParseServer(host, 1)
	return h, err
}

// start opens the engine if it is not open yet.
func (e *Engine) start(protocol string) (*railhop.Engine, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return nil, railhop.ErrClosed
	case e.engine != nil:
		return e.engine, nil
	}
	cfg := e.cfg
	cfg.Protocol = protocol
	var engine *railhop.Engine
	var err error
	if cfg.Topology == nil && e.byGPU != nil {
		cfg.Topology, err = topologyByGPU(cfg, e.byGPU)
	}
	if err == nil {
		engine, err = railhop.Open(cfg)
	}
	if errors.Is(err, nic.ErrNoDevice) {
		e.log.Warn("the device list names no NIC of this host: TCP is used instead", "devices", cfg.Devices, "err", err)
		cfg.Protocol, cfg.Devices, cfg.Topology = wire.ProtocolTCP, nil, nil
		engine, err = railhop.Open(cfg)
	}
	if err != nil {
		return nil, err
	}
	for _, r := range e.early {
		if err := engine.RegisterBatch([]railhop.Region{r}); err != nil {
			return nil, errors.Join(err, engine.Close())
		}
	}
	e.early = nil
	e.engine = engine
	how := "the metadata server " + cfg.Metadata
	if cfg.Metadata == metadata.P2PHandshake {
		how = "P2P handshake"
	}
	e.log.Info("Transfer Engine RPC using " + how + ", listening on " + engine.Name())
	name, why := engine.Transport()
	e.log.Info(fmt.Sprintf("Topology discovery complete. Found %d HCAs.", len(engine.NICs())))
	e.log.Info("installTransport, type="+name, "why", why)
	return engine, nil
}

// InstallTransport says what the engine runs on. The matrix is a topology in JSON, ""
// for the one that is found. It fails for what is not there, and once the engine runs
// on something else.
func (e *Engine) InstallTransport(protocol, matrix string) error {
	if protocol != wire.ProtocolTCP && protocol != wire.ProtocolRDMA {
		return e.fail("install transport", fmt.Errorf("capi: transport %.64q is not known: want rdma or tcp: %w", protocol, xfer.ErrInvalidArgument))
	}
	if matrix != "" {
		m, err := wire.DecodeMatrix([]byte(matrix))
		if err != nil {
			return e.fail("install transport", err)
		}
		e.mu.Lock()
		e.cfg.Topology = m
		e.mu.Unlock()
	}
	engine, err := e.start(protocol)
	if err != nil {
		return e.fail("install transport", err)
	}
	if name, why := engine.Transport(); name != protocol {
		return e.fail("install transport", fmt.Errorf("capi: transport %s: the engine runs on %s: %s: %w", protocol, name, why, xfer.ErrDeviceNotFound))
	}
	return nil
}

// Topology is the matrix of this host's memory and NICs in JSON. It opens no port.
func Topology(environ []string, devices string) (string, error) {
	env, _ := settings(environ)
	arg, err := config.ReadDeviceArg(strings.Trim(devices, ", "), os.ReadFile)
	if err != nil {
		return "", err
	}
	cfg := railhop.Config{Settings: env, Devices: names(allOf(arg))}
	matrix, err := topologyByGPU(cfg, arg.ByGPU)
	if err != nil {
		return "", err
	}
	text, err := json.MarshalIndent(lists(matrix), "", "  ")
	return string(text), err
}

// topologyByGPU is the matrix of this host in which the memory of each GPU that has a
// list is served by the NICs of that list.
func topologyByGPU(cfg railhop.Config, byGPU map[int][]config.Device) (map[string][2][]string, error) {
	matrix, err := railhop.LocalTopology(cfg)
	if err != nil || cfg.Settings.Transport.ForceTCP {
		return matrix, err
	}
	for gpu, devices := range byGPU {
		var own []string
		for _, d := range devices {
			own = append(own, d.On(cfg.Settings.RDMA.Port))
		}
		if matrix == nil {
			matrix = make(map[string][2][]string)
		}
		matrix[fmt.Sprintf("cuda:%d", gpu)] = [2][]string{own}
	}
	return matrix, nil
}

// allOf are the devices of an argument, whether for all GPUs or by GPU.
func allOf(arg config.DeviceArg) []config.Device {
	all := slices.Clone(arg.All)
	for _, gpu := range slices.Sorted(maps.Keys(arg.ByGPU)) {
		for _, d := range arg.ByGPU[gpu] {
			if !slices.Contains(all, d) {
				all = append(all, d)
			}
		}
	}
	return all
}

// names are devices as the engine takes them.
func names(devices []config.Device) []string {
	var all []string
	for _, d := range devices {
		all = append(all, d.String())
	}
	return all
}

// lists is a matrix without null in its JSON.
func lists(matrix map[string][2][]string) map[string][2][]string {
	if matrix == nil {
		matrix = map[string][2][]string{}
	}
	for at, pair := range matrix {
		for i := range pair {
			if pair[i] == nil {
				pair[i] = []string{}
			}
		}
		matrix[at] = pair
	}
	return matrix
}
