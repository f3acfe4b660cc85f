package softnic

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/railhop/railhop/internal/nic"
)

// maxTally bounds how many peers are told apart; the rest share one entry
// without a name.
const maxTally = 1 << 13

// PeerCount says what went between a device and one queue pair of a peer's.
type PeerCount struct {
	Addr netip.AddrPort // where the peer's device listens: its GID and LID
	Name string         // the peer's device, by its own account
	Rail string
	QPN  uint32 // the peer's

	WroteHere uint64 // bytes the peer wrote into memory here
	ReadHere  uint64 // bytes the peer read here
	OpsHere   uint64 // operations of the peer that were done here

	WroteThere uint64 // bytes written to the peer, put on the wire
	ReadThere  uint64 // bytes read from the peer
	OpsThere   uint64 // operations put on the wire
}

// Key names the peer's device, such as "127.0.0.1:4791/mlx5_0".
func (p PeerCount) Key() string { return fmt.Sprintf("%v/%s", p.Addr, p.Name) }

type tallyKey struct {
	at   end
	name string
	rail string
}

type tallyCount struct {
	wroteHere, readHere, opsHere    atomic.Uint64
	wroteThere, readThere, opsThere atomic.Uint64
}

// tally counts by peer.
type tally struct {
	tallyMu sync.Mutex
	peers   map[tallyKey]*tallyCount
}

func (t *tally) count(k tallyKey) *tallyCount {
	t.tallyMu.Lock()
	defer t.tallyMu.Unlock()
	if c := t.peers[k]; c != nil {
		return c
	}
	if len(t.peers) >= maxTally {
		k = tallyKey{}
		if c := t.peers[k]; c != nil {
			return c
		}
	}
	c := &tallyCount{}
	t.peers[k] = c
	return c
}

// Counters returns what went between this device and each peer so far, in a
// fixed order.
func (t *tally) Counters() []PeerCount {
	t.tallyMu.Lock()
	defer t.tallyMu.Unlock()
	all := make([]PeerCount, 0, len(t.peers))
	for k, c := range t.peers {
		all = append(all, PeerCount{
			Addr: addrOf(k.at.gid, k.at.port), Name: k.name, Rail: k.rail, QPN: k.at.qpn,
			WroteHere: c.wroteHere.Load(), ReadHere: c.readHere.Load(), OpsHere: c.opsHere.Load(),
			WroteThere: c.wroteThere.Load(), ReadThere: c.readThere.Load(), OpsThere: c.opsThere.Load(),
		})
	}
	slices.SortFunc(all, func(a, b PeerCount) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Name, b.Name), cmp.Compare(a.QPN, b.QPN))
	})
	return all
}

// addrOf is where the device with this GID and LID listens.
func addrOf(gid nic.GID, lid uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(gid).Unmap(), lid)
}
