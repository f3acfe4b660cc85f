// Package plan decides, by pure functions, which way a task goes: on which rail
// its target lies, and whether a relay should carry it. It holds no state and
// knows no hardware.
package plan

import (
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
	apart bool // the local subnets are known and do not overlap
}

// NewRails returns the names for a host with these active NICs. names is
// MC_PXN_RAIL_MAP, nil or empty if it is not given.
func NewRails(names map[string]string, local []NIC) *Rails {
	r := &Rails{names: names, local: local, apart: len(names) == 0 && len(local) > 1}
	for i, a := range local {
		if !a.Subnet.IsValid() || slices.ContainsFunc(local[:i], func(b NIC) bool { return b.Subnet.Overlaps(a.Subnet) }) {
			r.apart = false
		}
	}
	return r
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
