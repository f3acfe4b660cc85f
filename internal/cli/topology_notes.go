package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/railhop/railhop/internal/topo"
)

// note adds what a person should know.
func (h *hostTopology) note(format string, args ...any) {
	h.Notes = append(h.Notes, oneLine(fmt.Errorf(format, args...)))
}

// noteGPUs says what is wrong with many GPUs at once.
func (h *hostTopology) noteGPUs() {
	var unseen, deaf, alone, flat []string
	m := h.Machine
	for i := range m.GPUs {
		g := &m.GPUs[i]
		switch {
		case !g.Visible():
			unseen = append(unseen, g.BusID)
		case g.Unsaid:
		case g.DirectRDMA && !g.DMABuf && m.Peermem == "" && g.Place.BusID != "":
			deaf = append(deaf, g.BusID)
		case !g.DirectRDMA:
			deaf = append(deaf, g.BusID)
		}
		if g.Visible() && h.allAsNear(g) {
			flat = append(flat, g.BusID)
		}
		if g.Visible() && !g.Unsaid && len(g.Peers) > 0 && !slices.ContainsFunc(g.Peers, func(p topo.Peer) bool { return p.Access }) {
			alone = append(alone, g.BusID)
		}
	}
	some := func(ids []string) string {
		if len(ids) == len(m.GPUs) && len(ids) > 1 {
			return "all GPUs"
		}
		return strings.TrimLeft(plural(len(ids), "GPU"), "0123456789 ") + " " + strings.Join(ids, " ")
	}
	if len(unseen) > 0 {
		h.note("this process does not see %s (CUDA_VISIBLE_DEVICES, a container, or no driver)", some(unseen))
	}
	if len(deaf) > 0 {
		h.note("NICs cannot reach the memory of %s: load nvidia_peermem, or use a driver that exports dma-bufs", some(deaf))
	}
	if len(alone) > 0 {
		h.note("no other GPU is reached from %s: nothing is relayed there", some(alone))
	}
	if len(flat) > 0 {
		h.note("PCIe tells no NIC from another for %s: if each has a NIC of its own, say which in MC_CUSTOM_TOPO_JSON", some(flat))
	}
	if len(m.GPUs) > 0 && m.GPUs[0].Unsaid && m.GPUs[0].Visible() {
		h.note("no driver was asked: GPUs are those on PCIe, and what they can is not known")
	}
}

// allAsNear reports whether PCIe does not tell one NIC from another for a GPU.
func (h *hostTopology) allAsNear(g *topo.GPU) bool {
	nics := h.Machine.NICs
	if len(nics) < 2 {
		return false
	}
	first := topo.Distance(g.Place, nics[0].Place)
	return first >= 0 && !slices.ContainsFunc(nics, func(n topo.NIC) bool { return topo.Distance(g.Place, n.Place) != first })
}
