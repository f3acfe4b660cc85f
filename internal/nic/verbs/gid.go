package verbs

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/railhop/railhop/internal/nic"
)

// gidKind is how packets of a GID look.
type gidKind uint8

const (
	gidUnknown gidKind = iota
	gidInfiniBand
	gidRoCE1
	gidRoCE2
)

var gidKinds = [...]string{"unknown type", "InfiniBand", "RoCE v1", "RoCE v2"}

func (k gidKind) String() string { return gidKinds[k] }

// gidEntry is a line of a port's GID table.
type gidEntry struct {
	index  int
	gid    nic.GID
	kind   gidKind
	netdev string // "" if there is none, or it is another network namespace's
}

func (e gidEntry) addr() netip.Addr { return netip.AddrFrom16(e.gid).Unmap() }

func (e gidEntry) String() string {
	text := fmt.Sprintf("GID %d, %v %v", e.index, e.kind, netip.AddrFrom16(e.gid))
	if e.netdev != "" {
		text += " on " + e.netdev
	}
	return text
}

// gidClass says how good an entry is, the best first.
type gidClass uint8

const (
	classRoutable gidClass = iota
	classNoNetdev
	classOverlay
	classLinkLocal
	classRoCE1
	classRoCE1LinkLocal
)

var gidClasses = [...]string{
	"it is routable",
	"it has no network device here",
	"its network device belongs to an overlay network",
	"it is link-local",
	"it is RoCE v1",
	"it is RoCE v1 and link-local",
}

func (c gidClass) String() string { return gidClasses[c] }

// overlays are names of network devices, or their beginnings, whose addresses other
// hosts' cards do not know.
var overlays = [...]string{"flannel", "cni", "cali", "vxlan", "docker", "veth", "br-", "tunl0"}

// classify says what an entry of a port is good for. infiniband is the port's link.
// Private addresses are as good as others: fabrics are made of them.
func (e gidEntry) classify(infiniband bool) gidClass {
	a := e.addr()
	linkLocal := a.IsLinkLocalUnicast()
	switch {
	case infiniband:
		return classRoutable // the subnet manager's default prefix is that of link-local addresses
	case e.kind != gidRoCE2 && linkLocal:
		return classRoCE1LinkLocal
	case e.kind != gidRoCE2:
		return classRoCE1
	case linkLocal:
		return classLinkLocal
	case e.overlay():
		return classOverlay
	case e.netdev == "":
		return classNoNetdev
	}
	return classRoutable
}

func (e gidEntry) overlay() bool {
	for _, o := range overlays {
		if strings.HasPrefix(e.netdev, o) {
			return true
		}
	}
	return false
}

// rejected is an entry that was not chosen, and why.
type rejected struct {
	entry gidEntry
	why   string
}

// chooseGID picks an entry of a GID table: the lowest index of the best class. tried
// are indexes that are not to be taken. It is false if no entry is left.
func chooseGID(table []gidEntry, infiniband bool, tried map[int]bool) (best gidEntry, others []rejected, ok bool) {
	bestClass := gidClass(0)
	for _, e := range table {
		if e.gid == (nic.GID{}) {
			continue // no entry
		}
		if tried[e.index] {
			others = append(others, rejected{e, "it did not connect"})
			continue
		}
		class := e.classify(infiniband)
		switch {
		case !ok:
			best, bestClass, ok = e, class, true
		case class < bestClass:
			others = append(others, rejected{best, bestClass.String()})
			best, bestClass = e, class
		case class > bestClass:
			others = append(others, rejected{e, class.String()})
		default:
			others = append(others, rejected{e, "a lower index is as good"})
		}
	}
	return best, others, ok
}

// fixedGID is the entry with a given index.
func fixedGID(table []gidEntry, index int) (gidEntry, bool) {
	for _, e := range table {
		if e.index == index && e.gid != (nic.GID{}) {
			return e, true
		}
	}
	return gidEntry{}, false
}
