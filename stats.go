package railhop

import (
	"github.com/railhop/railhop/internal/path/pxn"
	"github.com/railhop/railhop/internal/path/rdma"
	"github.com/railhop/railhop/internal/path/tcp"
	"github.com/railhop/railhop/internal/tally"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// Flow is a number of operations and their bytes.
type Flow = tally.Flow

// Stats is a snapshot of an engine's counters. Those of the relay and the reasons
// are the process's: its engines share them.
type Stats struct {
	Segment string
	// How bytes went out: by an own NIC to a target on the same rail, by an own
	// NIC across rails, or through a relay.
	DirectSameRail  Flow
	DirectCrossRail Flow
	Relayed         Flow
	Submitted       Flow // requests handed in
	Failed          Flow // requests that did not complete
	// Reasons counts tasks or pieces that were not relayed, or by slower means, by
	// why. Fallbacks is the part of it that an operator should know of.
	Reasons   map[Reason]Flow
	Fallbacks map[Reason]Flow
	// Served is the bytes sent for each of our lanes, for other ranks.
	Served []uint64
	// Lanes are those that we hold in other ranks.
	Lanes  []pxn.Status
	Direct rdma.Stats
	// TCP and TCPServed are what an engine on TCP has asked of others, and done for them.
	TCP       tcp.Stats
	TCPServed tcp.ServerStats
	MayLand   []Range
	// Parks is how often the pump has returned from its park.
	Parks uint64
}

// Stats returns the counters as they are.
func (e *Engine) Stats() Stats {
	t := e.host.tally.Snapshot()
	s := Stats{
		Segment: e.name, Relayed: t.Relayed, Submitted: t.Submitted, Failed: t.Failed, Reasons: t.Reasons,
		Fallbacks: make(map[Reason]Flow), MayLand: e.MayLand(), Parks: e.host.loop.Parks(),
	}
	if e.tcp != nil {
		s.TCP, s.TCPServed = e.tcp.Stats(), e.data.Stats()
	} else {
		s.Direct = e.direct.Stats()
	}
	for r, f := range t.Reasons {
		if r.Class() == xfer.Degraded {
			s.Fallbacks[r] = f
		}
	}
	for _, l := range s.Direct.Links {
		_, peer := wire.SplitNICPath(l.Peer)
		to := &s.DirectCrossRail
		if e.rails.Local(l.NIC) == e.railOf(peer) {
			to = &s.DirectSameRail
		}
		to.Ops += l.Ops
		to.Bytes += l.Bytes
	}
	if r := e.rank.Load(); r != nil {
		s.Served = r.relay.Served()
		e.host.loop.Do(func() { s.Lanes = r.path.Status() })
	}
	return s
}

// railOf is the rail of a target's NIC.
func (e *Engine) railOf(device string) string {
	for _, r := range e.cache.All() {
		d := r.Desc()
		rails, _ := e.rails.Target(targetNICs(d))
		for i, dev := range d.Devices {
			if dev.Name == device {
				return rails[i]
			}
		}
	}
	return e.rails.Local(device)
}
