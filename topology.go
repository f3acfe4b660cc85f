package railhop

import (
	"fmt"
	"slices"
	"strings"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/topo"
)

// LocalTopology is the matrix of this host's memory and NICs that an engine with these
// settings would go by. It opens no port.
func LocalTopology(cfg Config) (map[string][2][]string, error) {
	cfg = cfg.withDefaults()
	h, err := joinHost(cfg)
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, log: cfg.Logger, host: h}
	defer func() { h.leave(cfg.CloseWait) }()
	if !h.transport.tcp {
		if e.devices, err = h.open(cfg.Devices); err != nil {
			return nil, err
		}
		defer func() { h.release(e.devices) }()
	}
	return e.matrix()
}

// matrix maps locations to NICs: as the configuration gives it, or else as they are
// found on this host.
func (e *Engine) matrix() (topo.Matrix, error) {
	gpus, err := e.host.gpuInfos()
	if err != nil {
		return nil, err
	}
	var attrs []nic.Attr
	for _, d := range e.devices {
		attrs = append(attrs, d.Attr())
	}
	m := e.host.machine(gpus)
	if len(e.devices) > 0 {
		given, err := e.givenTopology(m, gpus)
		if err != nil || given != nil {
			return given, err
		}
	}
	matrix := topo.Played(gpus, attrs)
	if m == nil {
		return matrix, nil
	}
	for location := range matrix {
		if strings.HasPrefix(location, "cpu:") {
			delete(matrix, location)
		}
	}
	for location, lists := range m.Matrix(e.nicNames()) {
		matrix[location] = lists
	}
	return matrix, nil
}

// machine is where the hardware is, or nil if NICs are played or sysfs is not there.
// GPUs that are played are not in it.
func (h *host) machine(gpus []gpu.Info) *topo.Machine {
	if h.nics != nil && h.nics.Name() != "verbs" {
		return nil
	}
	if h.gpus == nil || h.gpus.Name() != "cuda" {
		gpus = nil
	}
	m, err := topo.ReadPlaces(topo.Host(), gpus)
	if err != nil {
		h.log.Info("no topology: GPUs and NICs are told apart by what they say", "err", err)
		return nil
	}
	return m
}

// givenTopology is the matrix that the configuration gives, or nil. A NIC that the host
// does not have is an error.
func (e *Engine) givenTopology(m *topo.Machine, gpus []gpu.Info) (topo.Matrix, error) {
	matrix, text := e.cfg.Topology, e.cfg.Settings.Transport.TopologyFile
	from := "Topology"
	if matrix == nil && text != "" {
		from = "MC_CUSTOM_TOPO_JSON, " + text
		var err error
		if matrix, err = topo.ReadMatrix(text); err != nil {
			e.log.Warn("setting not taken", "variable", "MC_CUSTOM_TOPO_JSON", "value", text, "valid", "path of a JSON file with a topology, or the JSON itself", "err", err)
			return nil, nil
		}
	}
	if matrix == nil {
		return nil, nil
	}
	known, err := e.host.nics.Devices()
	if err != nil {
		return nil, fmt.Errorf("railhop: list NICs: %w", err)
	}
	names := topo.Names{Known: known, Used: e.nicNames(), Port: e.host.port}
	if m != nil { // those that cannot be used now as well
		names.Known = append(known, m.Names(nil, e.host.port).Known...)
		slices.Sort(names.Known)
		names.Known = slices.Compact(names.Known)
	}
	matrix, err = topo.Adopt(matrix, names, gpus)
	if err != nil {
		return nil, fmt.Errorf("railhop: %s: %w", from, err)
	}
	return matrix, nil
}
