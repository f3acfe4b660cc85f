package cli

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/railhop/railhop/internal/plan"
	"github.com/railhop/railhop/internal/topo"
)

// The picture, from top to bottom: NVLink, then each NUMA node with its groups (what
// hangs on one PCIe switch): GPUs, the switch, NICs; below each NIC its rail. All
// lengths are in pixels.
const (
	cardW, cardGap = 154, 12
	gpuH, nicH     = 98, 82
	switchH        = 30
	wireH          = 24 // between a card and its switch
	groupPad       = 12
	groupGap       = 14
	nodePad        = 16
	nodeHead       = 30
	nodeGap        = 24
	railH, railGap = 40, 30
	linkH, linkGap = 26, 22
	linkX          = 24 // of a GPU's line to the others, from its right edge
	margin         = 28
	headH          = 72
	nodeMin        = 350
	rowMax         = 1760 // a row of nodes is not wider than this, if that can be
)

// nodeBox is a NUMA node and where it is drawn.
type nodeBox struct {
	numa   int
	groups []topo.Group
	x, y   int
	w      int
}

func groupWidth(g *topo.Group) int {
	n := max(len(g.GPUs), len(g.NICs), 1)
	return n*cardW + (n-1)*cardGap + 2*groupPad
}

// rows are the heights of what there is in all groups: none has room for what no
// group has.
type rows struct{ link, gpu, nic, rail int }

func (h *hostTopology) rows() rows {
	var r rows
	if label, _, _ := h.linkLabel(); label != "" {
		r.link = linkH + linkGap
	}
	if len(h.Machine.GPUs) > 0 {
		r.gpu = gpuH + wireH
	}
	if len(h.Machine.NICs) > 0 {
		r.nic = wireH + nicH
	}
	if len(h.used()) > 0 {
		r.rail = railGap + railH
	}
	return r
}

func (r rows) group() int {
	if r.gpu == 0 && r.nic == 0 {
		return 40
	}
	return groupPad + r.gpu + switchH + r.nic + groupPad
}

func (r rows) node() int { return nodeHead + r.group() + nodePad }
func (r rows) all() int  { return r.link + r.node() + r.rail }

// layOut puts nodes into rows, and says how large the picture is.
func (h *hostTopology) layOut() (boxes []*nodeBox, width, height int) {
	for _, g := range h.Machine.Groups() {
		if n := len(boxes); n == 0 || boxes[n-1].numa != g.NUMA {
			boxes = append(boxes, &nodeBox{numa: g.NUMA})
		}
		b := boxes[len(boxes)-1]
		b.groups = append(b.groups, g)
	}
	if len(boxes) == 0 {
		for _, n := range h.Machine.Nodes {
			boxes = append(boxes, &nodeBox{numa: n.ID})
		}
	}
	r := h.rows()
	x, y := margin, headH
	for i, b := range boxes {
		b.w = 2 * nodePad
		for j := range b.groups {
			if j > 0 {
				b.w += groupGap
			}
			b.w += groupWidth(&b.groups[j])
		}
		b.w = max(b.w, nodeMin)
		if i > 0 && x+b.w > rowMax {
			x, y = margin, y+r.all()+nodeGap
		}
		b.x, b.y = x, y+r.link
		x += b.w + nodeGap
		width = max(width, x-nodeGap+margin)
	}
	return boxes, max(width, 620), y + r.all() + margin
}

// svg draws the picture.
func (h *hostTopology) svg(w io.Writer) error {
	p := &picture{}
	boxes, width, height := h.layOut()
	notes := h.legend(width - 2*margin)
	first := height
	height += 19*len(notes) + margin/2
	fmt.Fprintf(&p.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="Inter, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif">`+"\n", width, height, width, height)
	p.rect(0, 0, width, height, 0, paperColour, "none", "")
	p.text(margin, 34, 20, width-2*margin, inkColour, bold, "Topology of "+path.Base(h.From))
	m := h.Machine
	p.text(margin, 54, 12, width-2*margin, dimColour, "", fmt.Sprintf("%s, %s, %s", plural(len(m.GPUs), "GPU"), plural(len(m.NICs), "NIC"), plural(len(m.Nodes), "NUMA node")))
	colours := h.colours()
	for _, b := range boxes {
		h.drawNode(p, b, colours)
	}
	h.drawLinks(p, boxes)
	for i, n := range notes {
		p.text(margin, first+19*i, 12, width, dimColour, "", n)
	}
	p.b.WriteString("</svg>\n")
	_, err := io.WriteString(w, p.b.String())
	return err
}

// legend is the lines below the picture, none wider than that many pixels.
func (h *hostTopology) legend(width int) []string {
	var texts []string
	if len(h.used()) > 0 {
		texts = append(texts, "Rails are known by "+h.Rule+": "+h.Why+".")
	}
	var bare []string
	for _, n := range h.Machine.Nodes {
		if !slices.ContainsFunc(h.Machine.Groups(), func(g topo.Group) bool { return g.NUMA == n.ID }) {
			bare = append(bare, strconv.Itoa(n.ID))
		}
	}
	if len(bare) > 0 {
		texts = append(texts, "No device says that it is on "+strings.TrimLeft(plural(len(bare), "NUMA node"), "0123456789 ")+" "+strings.Join(bare, ", ")+".")
	}
	var lines []string
	for _, text := range append(texts, h.Notes...) {
		line := ""
		for word := range strings.FieldsSeq(text) {
			if line != "" && len(line)+1+len(word) > width/7 {
				lines = append(lines, line)
				line = "   "
			}
			line = strings.TrimPrefix(line+" "+word, " ")
		}
		lines = append(lines, line)
	}
	return lines
}

// colours gives each rail a colour, in the order of the NICs.
func (h *hostTopology) colours() map[string]string {
	colours := make(map[string]string)
	for _, name := range h.used() {
		if rail := h.Rails[name]; colours[rail] == "" {
			colours[rail] = railColours[len(colours)%len(railColours)]
		}
	}
	return colours
}

func (h *hostTopology) drawNode(p *picture, b *nodeBox, colours map[string]string) {
	r := h.rows()
	p.rect(b.x, b.y, b.w, r.node(), 12, nodeColour, nodeLine, "")
	title, facts := "NUMA unknown", ""
	if b.numa >= 0 {
		title = fmt.Sprintf("NUMA node %d", b.numa)
		i := slices.IndexFunc(h.Machine.Nodes, func(n topo.Node) bool { return n.ID == b.numa })
		if i >= 0 && h.Machine.Nodes[i].CPUs != "" {
			facts = "CPUs " + h.Machine.Nodes[i].CPUs
		}
	}
	p.text(b.x+nodePad, b.y+20, 13, cardW, inkColour, bold, title)
	// Between two lines to the other GPUs.
	p.text(b.x+b.w-nodePad-groupPad-linkX-8, b.y+20, 11, cardW-20, dimColour, `text-anchor="end"`, facts)
	if len(b.groups) == 0 {
		p.text(b.x+b.w/2, b.y+nodeHead+r.group()/2, 12, b.w-2*nodePad, dimColour, middle, "no GPU and no NIC")
	}
	x := b.x + nodePad
	for i := range b.groups {
		g := &b.groups[i]
		h.drawGroup(p, g, x, b.y+nodeHead, colours)
		x += groupWidth(g) + groupGap
	}
}

// cardX is where the ith of n cards of a group begins.
func cardX(g *topo.Group, x, i, n int) int {
	used := n*cardW + (n-1)*cardGap
	return x + (groupWidth(g)-used)/2 + i*(cardW+cardGap)
}

func (h *hostTopology) drawGroup(p *picture, g *topo.Group, x, y int, colours map[string]string) {
	w, r := groupWidth(g), h.rows()
	p.rect(x, y, w, r.group(), 9, paperColour, nodeLine, "")
	label := "not on PCIe"
	fill, stroke := paperColour, wireColour
	switch {
	case g.Switch != "":
		label, fill = "PCIe switch "+short(g.Switch), "#e4e8ed"
	case g.Host != "":
		label = "host bridge " + strings.TrimPrefix(g.Host, "pci")
	}
	top := y + groupPad + r.gpu
	for i := range g.GPUs {
		at := cardX(g, x, i, len(g.GPUs))
		p.line(at+cardW/2, y+groupPad+gpuH, at+cardW/2, top, wireColour, 2, "")
		h.drawGPU(p, &h.Machine.GPUs[g.GPUs[i]], at, y+groupPad)
	}
	below := top + switchH + wireH
	for i := range g.NICs {
		at := cardX(g, x, i, len(g.NICs))
		p.line(at+cardW/2, top+switchH, at+cardW/2, below, wireColour, 2, "")
		h.drawNIC(p, &h.Machine.NICs[g.NICs[i]], at, below, y+r.group()+nodePad, colours)
	}
	dashed := ""
	if g.Switch == "" {
		dashed = `stroke-dasharray="4 3"`
	}
	p.rect(x+groupPad, top, w-2*groupPad, switchH, 6, fill, stroke, dashed)
	p.text(x+w/2, top+19, 11, w-2*groupPad-6, inkColour, middle, label)
}

// short leaves out a domain of 0000.
func short(busID string) string { return strings.TrimPrefix(busID, "0000:") }

func (h *hostTopology) drawGPU(p *picture, g *topo.GPU, x, y int) {
	fill, stroke, more, title := gpuColour, gpuLine, "", fmt.Sprintf("GPU %d", g.Index)
	if !g.Visible() {
		fill, stroke, more, title = offColour, offLine, `stroke-dasharray="5 3"`, "GPU, unseen"
	}
	p.rect(x, y, cardW, gpuH, 7, fill, stroke, more)
	p.text(x+10, y+19, 14, cardW-70, inkColour, bold, title)
	p.text(x+cardW-10, y+19, 10, 64, dimColour, `text-anchor="end"`, short(g.BusID))
	name := strings.TrimPrefix(strings.TrimPrefix(g.Name, "NVIDIA "), "Tesla ")
	p.text(x+10, y+36, 11, cardW-20, inkColour, "", name)
	h.drawPCIe(p, g.Place, x+10, y+52)
	if g.Unsaid {
		p.text(x+10, y+70, 10, cardW-16, dimColour, "", "what it can is not known")
		return
	}
	can, colour := "IPC, stream ops", dimColour
	switch {
	case !g.IPC && !g.StreamMemOps:
		can, colour = "no IPC, no stream ops", badColour
	case !g.IPC:
		can, colour = "no IPC", badColour
	case !g.StreamMemOps:
		can, colour = "no stream ops", badColour
	}
	p.text(x+10, y+70, 10, cardW-16, colour, "", can)
	ways, colour := direct(newPainter(io.Discard), h.Machine, g), dimColour
	if ways == "no" {
		ways, colour = "no GPUDirect", badColour
	}
	p.text(x+10, y+87, 10, cardW-16, colour, "", ways)
}

func (h *hostTopology) drawPCIe(p *picture, at topo.Place, x, y int) {
	switch {
	case at.Reduced != "":
		p.text(x, y, 10, cardW-20, badColour, "", at.Link+" of "+at.Reduced)
	case at.Link != "":
		p.text(x, y, 10, cardW-20, dimColour, "", at.Link)
	}
}

func (h *hostTopology) drawNIC(p *picture, n *topo.NIC, x, y, railY int, colours map[string]string) {
	why := h.Problems[n.Name]
	rail := h.Rails[n.Name]
	colour := colours[rail]
	fill, stroke, more := nicColour, nicLine, ""
	if why != "" {
		fill, stroke, more = offColour, badColour, `stroke-dasharray="5 3"`
	} else {
		at := x + cardW/2
		p.line(at, y+nicH, at, railY+railGap, colour, 3, "")
	}
	p.rect(x, y, cardW, nicH, 7, fill, stroke, more)
	p.text(x+10, y+19, 13, cardW-66, inkColour, bold, n.Name)
	p.text(x+cardW-10, y+19, 10, 64, dimColour, `text-anchor="end"`, short(n.Place.BusID))
	if port := shownPort(n); port != nil {
		p.text(x+10, y+36, 11, cardW-20, inkColour, "", strings.TrimSpace(rate(port.Rate)+" "+port.Layer))
	}
	h.drawPCIe(p, n.Place, x+10, y+52)
	if why != "" {
		p.text(x+10, y+70, 10, cardW-18, badColour, "", why)
		return
	}
	gid := h.gids[n.Name]
	address := gid.Addr.Unmap().String()
	if gid.Netdev != "" {
		address = gid.Netdev + " " + address
	}
	p.text(x+10, y+70, 10, cardW-18, dimColour, "", address)

	p.rect(x, railY+railGap, cardW, railH, railH/2, colour, "none", "")
	p.text(x+cardW/2, railY+railGap+17, 12, cardW-26, paperColour, bold+" "+middle, "rail "+rail)
	if gid.Subnet.IsValid() {
		p.text(x+cardW/2, railY+railGap+31, 10, cardW-30, paperColour, middle, plan.SubnetText(gid.Subnet))
	}
}

// linkLabel says what joins the GPUs, "" if nothing does, and how it is drawn.
func (h *hostTopology) linkLabel() (label, fill, stroke string) {
	atomics, access, pairs := 0, 0, 0
	for i := range h.Machine.GPUs {
		for _, peer := range h.Machine.GPUs[i].Peers {
			pairs++
			if peer.Atomics {
				atomics++
			}
			if peer.Access {
				access++
			}
		}
	}
	switch {
	case access == 0:
		return "", "", ""
	case atomics == pairs:
		return "NVLink between all GPUs", gpuColour, gpuLine
	case atomics > 0:
		return fmt.Sprintf("NVLink, %d of %d ways", atomics, pairs), gpuColour, gpuLine
	case access == pairs:
		return "peer access over PCIe", offColour, wireColour
	}
	return fmt.Sprintf("peer access over PCIe, %d of %d ways", access, pairs), offColour, wireColour
}

// drawLinks draws what joins the GPUs above each row of nodes.
func (h *hostTopology) drawLinks(p *picture, boxes []*nodeBox) {
	if h.rows().link == 0 {
		return
	}
	for first := 0; first < len(boxes); {
		last := first
		for last+1 < len(boxes) && boxes[last+1].y == boxes[first].y {
			last++
		}
		h.drawLink(p, boxes[first:last+1])
		first = last + 1
	}
}

// drawLink draws it above one row.
func (h *hostTopology) drawLink(p *picture, row []*nodeBox) {
	label, fill, stroke := h.linkLabel()
	var at []int // where the lines are
	for _, b := range row {
		x := b.x + nodePad
		for i := range b.groups {
			g := &b.groups[i]
			for j := range g.GPUs {
				if h.Machine.GPUs[g.GPUs[j]].Visible() {
					at = append(at, cardX(g, x, j, len(g.GPUs))+cardW-linkX)
				}
			}
			x += groupWidth(g) + groupGap
		}
	}
	if len(at) == 0 {
		return
	}
	top := row[0].y - linkGap - linkH
	for _, x := range at {
		p.line(x, top+linkH, x, row[0].y+nodeHead+groupPad, stroke, 2, "")
	}
	left, right := slices.Min(at)+linkX-cardW, slices.Max(at)+linkX
	p.rect(left, top, right-left, linkH, linkH/2, fill, stroke, "")
	p.text((left+right)/2, top+17, 12, right-left-20, inkColour, middle, label)
}
