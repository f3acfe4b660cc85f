package topo

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/railhop/railhop/internal/gpu"
)

// place reads a device's folder. A device that is not on PCIe has no bus id.
func (r reader) place(real string) Place {
	p := Place{Path: real, NUMA: max(r.number(real+"/numa_node", -1), -1)}
	id, ok := busID(path.Base(real))
	if !ok {
		return p
	}
	p.BusID = id
	link := func(which string) string {
		speed, _, _ := strings.Cut(r.text(real+"/"+which+"_link_speed"), " PCIe")
		width := r.text(real + "/" + which + "_link_width")
		if speed == "" || strings.HasPrefix(speed, "Unknown") || width == "" || width == "0" || width == "255" {
			return ""
		}
		return speed + " x" + width
	}
	p.Link = link("current")
	if most := link("max"); p.Link != "" && most != p.Link {
		p.Reduced = most
	}
	return p
}

// busID reads a PCI bus id and spells it as sysfs does: lower case, the domain in
// four digits or more. The driver may write it otherwise.
func busID(s string) (string, bool) {
	domain, rest, ok := strings.Cut(s, ":")
	d, err := strconv.ParseUint(domain, 16, 32)
	if !ok || err != nil || len(rest) != len("1b:00.0") || rest[2] != ':' || rest[5] != '.' {
		return "", false
	}
	for _, digits := range []string{rest[:2], rest[3:5], rest[6:]} {
		if _, err := strconv.ParseUint(digits, 16, 8); err != nil {
			return "", false
		}
	}
	return fmt.Sprintf("%04x:%s", d, strings.ToLower(rest)), true
}

// byBus orders bus ids and host bridges. A longer domain is a greater one.
func byBus(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) }

const (
	pciDevices   = "bus/pci/devices"
	vendorNVIDIA = "0x10de"
)

// gpus puts the GPUs that the process sees where they are on PCIe, and adds those
// that it does not see. With none known, all that are there count as seen.
func (r reader) gpus(seen []GPU) []GPU {
	all := []GPU{}
	known := make(map[string]bool)
	for _, g := range seen {
		if id, ok := busID(g.BusID); ok {
			g.BusID = id
		}
		known[g.BusID] = true
		g.Place = Place{BusID: g.BusID, NUMA: g.NUMA}
		if real, err := r.t.Real(pciDevices + "/" + g.BusID); err == nil {
			g.Place = r.place(real)
		}
		all = append(all, g)
	}
	ids := r.list(pciDevices)
	slices.SortFunc(ids, byBus)
	for _, id := range ids {
		at := pciDevices + "/" + id
		// Class 03: display controllers, with (0300) and without (0302) a screen.
		if !strings.HasPrefix(r.text(at+"/class"), "0x030") || known[id] || r.text(at+"/vendor") != vendorNVIDIA {
			continue
		}
		real, err := r.t.Real(at)
		if err != nil {
			continue
		}
		g := GPU{Info: gpu.Info{Index: -1, HostIndex: -1, BusID: id, Name: "NVIDIA " + strings.TrimPrefix(r.text(at+"/device"), "0x")}, Place: r.place(real), Unsaid: true}
		g.NUMA = g.Place.NUMA
		if seen == nil {
			g.Index, g.HostIndex = len(all), len(all)
		}
		all = append(all, g)
	}
	return all
}

// Bridges are the bridges on the way to a device, the root port first, and the host
// bridge that they hang on. The device itself is not among them.
func (p Place) Bridges() (host string, bridges []string) {
	parts := strings.Split(p.Path, "/")
	for i, part := range slices.Backward(parts) {
		if rest, ok := strings.CutPrefix(part, "pci"); ok && strings.Contains(rest, ":") {
			if i+1 < len(parts) {
				bridges = parts[i+1 : len(parts)-1]
			}
			return part, bridges
		}
	}
	return "", nil
}

// switches are the switches above a device, the nearest first, by the bus ids of
// their upstream ports: behind a root port, bridges come in pairs of an upstream and a
// downstream port.
func (p Place) switches() []string {
	_, bridges := p.Bridges()
	var all []string
	for i := 1; i+1 < len(bridges); i += 2 {
		all = append(all, bridges[i])
	}
	slices.Reverse(all)
	return all
}

// card is what the functions of one card share.
func (p Place) card() string {
	card, _, _ := strings.Cut(p.BusID, ".")
	return card
}

// Group is devices that are near each other: below one PCIe switch, or else on one
// host bridge.
type Group struct {
	NUMA   int
	Host   string // host bridge, such as "pci0000:15"; "" for what is not on PCIe
	Switch string // bus id of the switch's upstream port, or ""
	GPUs   []int  // indices in the machine's lists
	NICs   []int
}

// Groups sorts the devices by what they hang on, in the order of nodes and bus ids. A
// switch that has one card only, such as one inside the card, is none.
func (m *Machine) Groups() []Group {
	cards := make(map[string]map[string]bool) // below each switch
	places := make([]Place, 0, len(m.GPUs)+len(m.NICs))
	for i := range m.GPUs {
		places = append(places, m.GPUs[i].Place)
	}
	for i := range m.NICs {
		places = append(places, m.NICs[i].Place)
	}
	for _, p := range places {
		for _, s := range p.switches() {
			if cards[s] == nil {
				cards[s] = make(map[string]bool)
			}
			cards[s][p.card()] = true
		}
	}
	var groups []Group
	for i, p := range places {
		g := Group{NUMA: p.NUMA}
		g.Host, _ = p.Bridges()
		for _, s := range p.switches() {
			if len(cards[s]) > 1 {
				g.Switch = s
				break
			}
		}
		at := slices.IndexFunc(groups, func(o Group) bool { return o.Host == g.Host && o.Switch == g.Switch && o.NUMA == g.NUMA })
		if at < 0 {
			at = len(groups)
			groups = append(groups, g)
		}
		if i < len(m.GPUs) {
			groups[at].GPUs = append(groups[at].GPUs, i)
		} else {
			groups[at].NICs = append(groups[at].NICs, i-len(m.GPUs))
		}
	}
	slices.SortStableFunc(groups, func(a, b Group) int {
		unknownLast := func(n int) uint { return uint(n) } // -1 is the largest
		return cmp.Or(cmp.Compare(unknownLast(a.NUMA), unknownLast(b.NUMA)), byBus(a.Host, b.Host), byBus(a.Switch, b.Switch))
	})
	return groups
}
