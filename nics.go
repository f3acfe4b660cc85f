package railhop

import (
	"maps"

	"github.com/railhop/railhop/internal/nic"
)

// NIC is a NIC that an engine uses.
type NIC struct {
	Name   string
	NUMA   int    // node, -1 if unknown
	GID    string // of its port
	Active bool
}

// NICs lists the NICs that the engine uses; none if it runs on TCP.
func (e *Engine) NICs() []NIC {
	all := make([]NIC, len(e.devices))
	for i, d := range e.devices {
		attr, port := d.Attr(), d.Port()
		all[i] = NIC{Name: attr.Name, NUMA: attr.NUMA, GID: port.GID.String(), Active: port.State == nic.PortActive}
	}
	return all
}

// Topology is the matrix that the engine goes by: of each location of memory, the
// preferred NICs and the others.
func (e *Engine) Topology() map[string][2][]string { return maps.Clone(e.cfg.Topology) }
