package topo

import (
	"cmp"
	"encoding/hex"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// NIC is an RDMA device.
type NIC struct {
	Name   string `json:"name"`
	Place  Place  `json:"place"`
	Device string `json:"device,omitempty"` // in /dev/infiniband, such as "uverbs0"; "" if there is none
	Model  string `json:"model,omitempty"`  // such as "MT4129"
	Ports  []Port `json:"ports"`
}

// Port is a port of a NIC.
type Port struct {
	Num   int     `json:"num"`
	State string  `json:"state"`          // "ACTIVE", "DOWN", "INIT", "ARMED"; "" if unknown
	Phys  string  `json:"phys,omitempty"` // such as "LinkUp" or "Disabled"
	Layer string  `json:"layer"`          // "InfiniBand" or "Ethernet"
	Rate  float64 `json:"gbit_per_s"`     // 0 if unknown
	LID   uint16  `json:"lid"`
	GIDs  []GID   `json:"gids"` // those in use
}

// GID is an entry of a port's table.
type GID struct {
	Index  int        `json:"index"`
	Addr   netip.Addr `json:"addr"`
	Type   string     `json:"type"`             // "RoCE v2", "IB/RoCE v1", or "" if it is not said
	Netdev string     `json:"netdev,omitempty"` // such as "eth2"
	// Subnet is the network of Addr, over all 128 bits; invalid if unknown.
	Subnet netip.Prefix `json:"subnet,omitzero"`
}

// Active reports whether a port can be used.
func (p *Port) Active() bool { return p.State == "ACTIVE" }

// InfiniBand reports whether a port is on InfiniBand, and not on Ethernet.
func (p *Port) InfiniBand() bool { return p.Layer == "InfiniBand" }

// Port returns the port of that number, the first active one if it is 0, or nil.
func (n *NIC) Port(num int) *Port {
	for i := range n.Ports {
		if p := &n.Ports[i]; p.Num == num || num == 0 && p.Active() {
			return p
		}
	}
	return nil
}

// Problem says why a NIC cannot be used by that port (0 is any); "" if it can.
func (n *NIC) Problem(num int) string {
	p := n.Port(num)
	switch {
	case len(n.Ports) == 0:
		return "it has no port"
	case p == nil && num != 0:
		return "it has no port " + strconv.Itoa(num)
	case p == nil || !p.Active():
		if p == nil {
			p = &n.Ports[0]
		}
		why := "port " + strconv.Itoa(p.Num) + " is " + cmp.Or(p.State, "in an unknown state")
		if p.Phys != "" && p.Phys != "LinkUp" {
			why += " (" + p.Phys + ")"
		}
		return why
	case len(p.GIDs) == 0:
		return "port " + strconv.Itoa(p.Num) + " has no GID"
	}
	return ""
}

// Best returns the GID that peers on other hosts most likely reach: of RoCE v2 before
// v1, routable before link-local, the first of several. ok is false if there is none.
func (p *Port) Best() (best GID, ok bool) {
	rank := func(g *GID) int {
		n := 0
		if g.Addr.IsLinkLocalUnicast() {
			n++
		}
		if !p.InfiniBand() && g.Type != "RoCE v2" {
			n += 2
		}
		return n
	}
	for i := range p.GIDs {
		if g := &p.GIDs[i]; !ok || rank(g) < rank(&best) {
			best, ok = *g, true
		}
	}
	return best, ok
}

// unusedGID is how sysfs writes an entry that is not in use.
const unusedGID = "0000:0000:0000:0000:0000:0000:0000:0000"

func (r reader) nics() []NIC {
	nodes := make(map[string]string) // device nodes, by NIC
	for _, name := range r.list("class/infiniband_verbs") {
		if dev := r.text("class/infiniband_verbs/" + name + "/ibdev"); dev != "" {
			nodes[dev] = name
		}
	}
	nics := []NIC{}
	for _, name := range r.list("class/infiniband") {
		at := "class/infiniband/" + name
		n := NIC{Name: name, Device: nodes[name], Model: r.text(at + "/hca_type"), Place: Place{NUMA: -1}, Ports: []Port{}}
		if real, err := r.t.Real(at + "/device"); err == nil {
			n.Place = r.place(real)
		}
		for _, port := range r.list(at + "/ports") {
			num, err := strconv.Atoi(port)
			switch {
			case err != nil:
			case r.brief:
				n.Ports = append(n.Ports, Port{Num: num})
			default:
				n.Ports = append(n.Ports, r.port(at+"/ports/"+port, num))
			}
		}
		nics = append(nics, n)
	}
	slices.SortStableFunc(nics, func(a, b NIC) int {
		return cmp.Or(cmp.Compare(nodeNumber(a.Device), nodeNumber(b.Device)), natural(a.Name, b.Name))
	})
	return nics
}

// nodeNumber is 3 of "uverbs3"; what has no node comes last.
func nodeNumber(node string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(node, "uverbs"))
	if err != nil {
		return math.MaxInt
	}
	return n
}

func (r reader) port(at string, num int) Port {
	p := Port{Num: num, State: word(r.text(at + "/state")), Phys: word(r.text(at + "/phys_state")), Layer: r.text(at + "/link_layer"), GIDs: []GID{}}
	rate, _, _ := strings.Cut(r.text(at+"/rate"), " ")
	if v, err := strconv.ParseFloat(rate, 64); err == nil && v >= 0 && v < 1e6 {
		p.Rate = v
	}
	if lid, err := strconv.ParseUint(r.text(at+"/lid"), 0, 16); err == nil {
		p.LID = uint16(lid)
	}
	for _, name := range r.list(at + "/gids") {
		i, err := strconv.Atoi(name)
		addr, ok := parseGID(r.text(at + "/gids/" + name))
		if err != nil || !ok {
			continue
		}
		g := GID{Index: i, Addr: addr, Type: r.text(at + "/gid_attrs/types/" + name), Netdev: r.text(at + "/gid_attrs/ndevs/" + name)}
		g.Subnet = r.subnet(&p, &g)
		p.GIDs = append(p.GIDs, g)
	}
	return p
}

// word is ACTIVE of "4: ACTIVE".
func word(s string) string {
	_, w, _ := strings.Cut(s, ":")
	return strings.TrimSpace(w)
}

func parseGID(s string) (netip.Addr, bool) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, ":", ""))
	if err != nil || len(b) != 16 || s == unusedGID {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16([16]byte(b)), true
}

// subnet is the network of a GID: on InfiniBand its upper half, which the subnet
// manager gives; on Ethernet that of its interface's address.
func (r reader) subnet(p *Port, g *GID) netip.Prefix {
	if p.InfiniBand() {
		return netip.PrefixFrom(g.Addr, 64).Masked()
	}
	if g.Netdev == "" {
		return netip.Prefix{}
	}
	for text := range strings.FieldsSeq(r.text(netFolder + "/" + g.Netdev)) {
		net, err := netip.ParsePrefix(text)
		if err != nil || net.Addr().Unmap() != g.Addr.Unmap() {
			continue
		}
		bits := net.Bits()
		if net.Addr().Is4() {
			bits += 96
		}
		return netip.PrefixFrom(g.Addr, bits).Masked()
	}
	return netip.Prefix{}
}
