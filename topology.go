package railhop

import (
	"fmt"
	"os"
	"slices"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
)

// givenTopology is the matrix that the configuration gives, or nil. A file's
// locations are those of the host: its "cuda:5" is the sixth GPU of the host, and
// not of those that are visible here. The result has our own ordinals, and no NIC
// that is not used here. A NIC that the host does not have is an error.
func (e *Engine) givenTopology(gpus []gpu.Info) (map[string][2][]string, error) {
	matrix, path := e.cfg.Topology, e.cfg.Settings.Transport.TopologyFile
	from := "Topology"
	if matrix == nil && path != "" {
		from = "MC_CUSTOM_TOPO_JSON, " + path
		text, err := os.ReadFile(path)
		if err == nil {
			matrix, err = wire.DecodeMatrix(text)
		}
		if err != nil {
			e.log.Warn("setting not taken", "variable", "MC_CUSTOM_TOPO_JSON", "value", path, "valid", "path of a JSON file with a topology", "err", err)
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
	used := e.nicNames()
	here := make(map[string][2][]string, len(matrix))
	for location, lists := range matrix {
		var mine [2][]string
		for i, names := range lists {
			mine[i] = []string{}
			for _, name := range names {
				if !slices.Contains(known, name) {
					return nil, fmt.Errorf("railhop: %s: NIC %q of location %q is not there: want some of %q: %w", from, name, location, known, nic.ErrNoDevice)
				}
				if slices.Contains(used, name) {
					mine[i] = append(mine[i], name)
				}
			}
		}
		here[location] = mine
	}
	return visible(here, gpus), nil
}

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
	gpus, err := h.gpuInfos()
	if err != nil {
		return nil, err
	}
	var attrs []nic.Attr
	if !h.transport.tcp {
		if e.devices, err = h.open(cfg.Devices); err != nil {
			return nil, err
		}
		defer func() { h.release(e.devices) }()
		matrix, err := e.givenTopology(gpus)
		if err != nil || matrix != nil {
			return matrix, err
		}
	}
	for _, d := range e.devices {
		attrs = append(attrs, d.Attr())
	}
	return topology(gpus, attrs), nil
}

// visible gives the GPUs of a matrix the ordinals that they have in this process.
func visible(matrix map[string][2][]string, gpus []gpu.Info) map[string][2][]string {
	if !slices.ContainsFunc(gpus, func(g gpu.Info) bool { return g.HostIndex >= 0 && g.HostIndex != g.Index }) {
		return matrix
	}
	ours := make(map[string][2][]string, len(matrix))
	for name, lists := range matrix {
		if len(name) < 5 || name[:5] != "cuda:" {
			ours[name] = lists
		}
	}
	for _, g := range gpus {
		if lists, ok := matrix[location(g.HostIndex)]; ok {
			ours[location(g.Index)] = lists
		}
	}
	return ours
}
