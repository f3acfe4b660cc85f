package cli

import (
	"fmt"
	"io"

	"strconv"
	"strings"

	"github.com/railhop/railhop/internal/plan"
	"github.com/railhop/railhop/internal/topo"
)

// show writes tables.
func (h *hostTopology) show(w io.Writer) error {
	p := newPainter(w)
	var b strings.Builder
	m := h.Machine
	fmt.Fprintf(&b, "%s  %s, %s, %s\n", p.bold.Render(clean(h.From)), plural(len(m.GPUs), "GPU"), plural(len(m.NICs), "NIC"), plural(len(m.Nodes), "NUMA node"))
	if len(m.GPUs) > 0 {
		var rows [][]string
		for i := range m.GPUs {
			rows = append(rows, p.gpu(h, &m.GPUs[i]))
		}
		fmt.Fprintln(&b, p.table([]string{"GPU", "name", "bus id", "NUMA", "PCIe", "near NICs", "peers", "IPC", "stream ops", "GPUDirect"}, 10, rows))
	}
	if len(m.NICs) > 0 {
		var rows [][]string
		for i := range m.NICs {
			rows = append(rows, p.nic(h, &m.NICs[i]))
		}
		fmt.Fprintln(&b, p.table([]string{"NIC", "bus id", "NUMA", "PCIe", "link", "address", "subnet", "netdev", "rail", "state"}, 10, rows))
	}
	if len(m.Nodes) > 0 {
		var rows [][]string
		for _, n := range m.Nodes {
			rows = append(rows, h.nodeRow(n))
		}
		fmt.Fprintln(&b, p.table([]string{"node", "CPUs", "distances", "GPUs", "NICs"}, 5, rows))
	}
	if len(h.used()) > 0 {
		fmt.Fprintf(&b, "rails are known by %s: %s\n", p.bold.Render(h.Rule), clean(h.Why))
	}
	for _, n := range h.Notes {
		fmt.Fprintf(&b, "%s %s\n", p.bad.Render("note"), clean(n))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (p painter) gpu(h *hostTopology, g *topo.GPU) []string {
	index, near := strconv.Itoa(g.Index), h.near(g)
	if !g.Visible() {
		index, near = p.dim.Render("unseen"), "-"
	}
	row := []string{index, clean(g.Name), clean(g.BusID), node(g.Place.NUMA), link(p, g.Place), clean(near)}
	if g.Unsaid {
		return append(row, "?", "?", "?", "?")
	}
	return append(row, peers(g), yes(p, g.IPC), yes(p, g.StreamMemOps), direct(p, h.Machine, g))
}

// near names the NICs that a GPU prefers, if they are few.
func (h *hostTopology) near(g *topo.GPU) string {
	names := h.Matrix[topo.Location(g.Index)][0]
	switch {
	case len(names) <= 4:
		return dash(strings.Join(names, " "))
	case len(names) == len(h.used()):
		return fmt.Sprintf("all %d", len(names))
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:3], " "), len(names)-3)
}

// peers says how many of the other GPUs are reached, and how.
func peers(g *topo.GPU) string {
	if len(g.Peers) == 0 {
		return "-"
	}
	atomics, access := 0, 0
	for _, p := range g.Peers {
		if p.Atomics {
			atomics++
		} else if p.Access {
			access++
		}
	}
	var words []string
	if atomics > 0 {
		words = append(words, fmt.Sprintf("%d NVLink", atomics))
	}
	if access > 0 {
		words = append(words, fmt.Sprintf("%d PCIe", access))
	}
	if none := len(g.Peers) - atomics - access; none > 0 {
		words = append(words, fmt.Sprintf("%d not", none))
	}
	return strings.Join(words, ", ")
}

// direct says how NICs reach a GPU's memory.
func direct(p painter, m *topo.Machine, g *topo.GPU) string {
	var ways []string
	if g.DirectRDMA && m.Peermem != "" {
		ways = append(ways, strings.TrimPrefix(m.Peermem, "nvidia_"))
	}
	if g.DirectRDMA && g.DMABuf {
		ways = append(ways, "dma-buf")
	}
	switch {
	case len(ways) > 0:
		return strings.Join(ways, ", ")
	case g.DirectRDMA && g.Place.BusID == "":
		return "played"
	}
	return p.bad.Render("no")
}

func (p painter) nic(h *hostTopology, n *topo.NIC) []string {
	gid, rail, state := h.gids[n.Name], h.Rails[n.Name], p.good.Render("active")
	if why := h.Problems[n.Name]; why != "" {
		state = p.bad.Render(clean(why))
	}
	carrier, address, subnet := "-", "-", "-"
	if port := shownPort(n); port != nil {
		carrier = strings.TrimSpace(rate(port.Rate) + " " + port.Layer)
	}
	if gid.Addr.IsValid() {
		address = fmt.Sprintf("%s (%d)", gid.Addr.Unmap(), gid.Index)
	}
	if gid.Subnet.IsValid() {
		subnet = plan.SubnetText(gid.Subnet)
	}
	return []string{
		clean(n.Name), clean(dash(n.Place.BusID)), node(n.Place.NUMA), link(p, n.Place), clean(carrier),
		address, subnet, clean(dash(gid.Netdev)), clean(dash(rail)), state,
	}
}

// shownPort is the active port of a NIC, or its first.
func shownPort(n *topo.NIC) *topo.Port {
	if p := n.Port(0); p != nil {
		return p
	}
	if len(n.Ports) > 0 {
		return &n.Ports[0]
	}
	return nil
}

func rate(gbit float64) string {
	if gbit == 0 {
		return ""
	}
	return strconv.FormatFloat(gbit, 'f', -1, 64) + " Gb/s"
}

func (h *hostTopology) nodeRow(n topo.Node) []string {
	var gpus, nics, distances []string
	for i := range h.Machine.GPUs {
		if g := &h.Machine.GPUs[i]; g.Place.NUMA == n.ID && g.Visible() {
			gpus = append(gpus, strconv.Itoa(g.Index))
		}
	}
	for i := range h.Machine.NICs {
		if h.Machine.NICs[i].Place.NUMA == n.ID {
			nics = append(nics, h.Machine.NICs[i].Name)
		}
	}
	for _, d := range n.Distances {
		distances = append(distances, strconv.Itoa(d))
	}
	return []string{strconv.Itoa(n.ID), clean(dash(n.CPUs)), dash(strings.Join(distances, " ")), dash(strings.Join(gpus, " ")), clean(dash(strings.Join(nics, " ")))}
}

func node(numa int) string {
	if numa < 0 {
		return "?"
	}
	return strconv.Itoa(numa)
}

// link is a device's PCIe link, and what it could be.
func link(p painter, at topo.Place) string {
	if at.Reduced != "" {
		return p.bad.Render(clean(at.Link + " of " + at.Reduced))
	}
	return clean(dash(at.Link))
}

func yes(p painter, ok bool) string {
	if ok {
		return "yes"
	}
	return p.bad.Render("no")
}
