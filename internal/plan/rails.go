// Package plan decides, by pure functions, which way a task goes: on which rail
// its target lies, and whether a relay should carry it. It holds no state and
// knows no hardware.
package plan

import (
	"fmt"
	"net/netip"
	"slices"
)

// Rule is how rails are known.
type Rule uint8

const (
	ByName   Rule = iota // a NIC's rail is its name
	ByMap                // MC_PXN_RAIL_MAP says it
	BySubnet             // every rail is a subnet of its own
)

func (r Rule) String() string { return [...]string{"name", "map", "subnet"}[r] }

// NIC is what names a rail: of this host, or of a target.
type NIC struct {
	Device string
	GID    netip.Addr
	Subnet netip.Prefix // of a local NIC; invalid if unknown
}

// Rails gives NICs the canonical names of their rails.
type Rails struct {
	names map[string]string
	local []NIC
	apart bool   // the local subnets are known and do not overlap
	why   string // in words
}

// NewRails returns the names for a host with these active NICs. names is
// MC_PXN_RAIL_MAP, nil or empty if it is not given.
func NewRails(names map[string]string, local []NIC) *Rails {
	r := &Rails{names: names, local: local}
	switch {
	case len(names) > 0:
		r.why = "MC_PXN_RAIL_MAP names them"
	case len(local) < 2:
		r.why = "there is no second NIC here whose subnet could be told from the first's"
	default:
		r.apart, r.why = apart(local)
	}
	return r
}

// apart reports whether each NIC is on a subnet of its own, and what there is to say
// of it.
func apart(local []NIC) (ok bool, why string) {
	for i, a := range local {
		if !a.Subnet.IsValid() {
			return false, "the subnet of " + a.Device + " is not known"
		}
		for _, b := range local[:i] {
			if b.Subnet.Overlaps(a.Subnet) {
				return false, fmt.Sprintf("%s and %s share a subnet, %s", b.Device, a.Device, SubnetText(a.Subnet))
			}
		}
	}
	why = "each NIC is on a subnet of its own"
	if !slices.ContainsFunc(local, func(n NIC) bool { return n.Subnet.Addr().BitLen()-n.Subnet.Bits() > 1 }) {
		why += ", with room for two addresses: a target on other links of two goes by the names of its NICs"
	}
	return true, why
}

// SubnetText writes a subnet as an operator does: IPv4 without its mapping.
func SubnetText(p netip.Prefix) string {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.String()
}

// Rule is the rule that holds for targets where it can, and why it is that one.
func (r *Rails) Rule() (Rule, string) {
	switch {
	case len(r.names) > 0:
		return ByMap, r.why
	case r.apart:
		return BySubnet, r.why
	}
	return ByName, r.why
}

// Local is the rail of a NIC of this host.
func (r *Rails) Local(device string) string {
	if rail, ok := r.names[device]; ok {
		return rail
	}
	return device
}

// Target names the rails of a target's NICs, in their order, and says by which
// rule: by subnet only if each of them falls into exactly one of ours.
func (r *Rails) Target(nics []NIC) ([]string, Rule) {
	rails := make([]string, len(nics))
	if r.apart && len(nics) > 0 {
		for i, n := range nics {
			j := slices.IndexFunc(r.local, func(l NIC) bool { return l.Subnet.Contains(n.GID) })
			if j < 0 {
				break
			}
			rails[i] = r.local[j].Device
		}
		if !slices.Contains(rails, "") {
			return rails, BySubnet
		}
	}
	rule := ByName
	for i, n := range nics {
		rails[i] = n.Device
		if rail, ok := r.names[n.Device]; ok {
			rails[i], rule = rail, ByMap
		}
	}
	return rails, rule
}
