package topo

import (
	"slices"
	"strconv"
	"strings"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/nic"
)

// Matrix maps a memory location, such as "cuda:0", to its preferred and its other
// NICs.
type Matrix = map[string][2][]string

// Matrix is what Mooncake makes of the same machine (mooncake-wire.md 10.3), for the
// given NICs in that order, which may be ports of one, such as "mlx5_0:2": a node prefers its own NICs, and a GPU the nearest by PCIe
// of those on its node, or of all if there are none. Where neither a GPU nor a NIC is
// found on PCIe the rule of [Played] holds for GPUs.
func (m *Machine) Matrix(names []string) Matrix {
	nics := make([]NIC, 0, len(names))
	for _, name := range names {
		n := NIC{Name: name, Place: Place{NUMA: -1}}
		device, _, _ := strings.Cut(name, ":")
		if i := slices.IndexFunc(m.NICs, func(n NIC) bool { return n.Name == device }); i >= 0 {
			n.Place = m.NICs[i].Place
		}
		nics = append(nics, n)
	}
	matrix := make(Matrix)
	for _, node := range m.Nodes {
		matrix["cpu:"+strconv.Itoa(node.ID)] = split(nics, func(n *NIC) bool { return n.Place.NUMA == node.ID })
	}
	if len(m.Nodes) == 0 {
		matrix["cpu:0"] = split(nics, func(*NIC) bool { return true })
	}
	for i := range m.GPUs {
		if g := &m.GPUs[i]; g.Visible() {
			matrix[Location(g.Index)] = nearest(g, nics)
		}
	}
	return matrix
}

const cudaPrefix = "cuda:"

// Location is where a GPU's memory is, such as "cuda:0".
func Location(index int) string { return cudaPrefix + strconv.Itoa(index) }

func split(nics []NIC, prefer func(*NIC) bool) [2][]string {
	lists := [2][]string{{}, {}}
	for i := range nics {
		which := 1
		if prefer(&nics[i]) {
			which = 0
		}
		lists[which] = append(lists[which], nics[i].Name)
	}
	return lists
}

func nearest(g *GPU, nics []NIC) [2][]string {
	onNode := func(n *NIC) bool { return g.Place.NUMA >= 0 && n.Place.NUMA == g.Place.NUMA }
	none := !slices.ContainsFunc(nics, func(n NIC) bool { return onNode(&n) })
	least := -1
	for i := range nics {
		if d := Distance(g.Place, nics[i].Place); d >= 0 && (none || onNode(&nics[i])) && (least < 0 || d < least) {
			least = d
		}
	}
	if least < 0 {
		return played(g.Place.NUMA, g.Index, nics)
	}
	return split(nics, func(n *NIC) bool { return (none || onNode(n)) && Distance(g.Place, n.Place) == least })
}

// Distance is how many steps two devices are apart on PCIe: what is left of their
// paths behind what these have in common. It is -1 if one of them is not on PCIe.
func Distance(a, b Place) int {
	if a.Path == "" || b.Path == "" || a.BusID == "" || b.BusID == "" {
		return -1
	}
	n := 0
	for n < len(a.Path) && n < len(b.Path) && a.Path[n] == b.Path[n] {
		n++
	}
	return strings.Count(a.Path[n:], "/") + strings.Count(b.Path[n:], "/")
}

// Played is a matrix for devices that are nowhere on PCIe: of those on a GPU's own
// node all NICs are preferred, or, where nodes are unknown, the NIC of the same
// ordinal, as on a host with a NIC near each GPU.
func Played(gpus []gpu.Info, nics []nic.Attr) Matrix {
	all := make([]NIC, len(nics))
	for i, n := range nics {
		all[i] = NIC{Name: n.Name, Place: Place{NUMA: n.NUMA}}
	}
	matrix := Matrix{"cpu:0": split(all, func(*NIC) bool { return true })}
	for _, g := range gpus {
		matrix[Location(g.Index)] = played(g.NUMA, g.Index, all)
	}
	return matrix
}

func played(numa, ordinal int, nics []NIC) [2][]string {
	onNode := func(n *NIC) bool { return numa >= 0 && n.Place.NUMA == numa }
	if slices.ContainsFunc(nics, func(n NIC) bool { return onNode(&n) }) {
		return split(nics, onNode)
	}
	return split(nics, func(n *NIC) bool { return len(nics) > 0 && n.Name == nics[ordinal%len(nics)].Name })
}
