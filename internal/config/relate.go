package config

import (
	"fmt"
	"slices"
	"strconv"
)

// The variables whose values are related to those of others.
const (
	minRPCPort    = "MC_MIN_RPC_PORT"
	maxRPCPort    = "MC_MAX_RPC_PORT"
	gidIndex      = "MC_GID_INDEX"
	fragmentRatio = "MC_FRAGMENT_RATIO"
	pxnGroupID    = "MC_PXN_GROUP_ID"
	destAffinity  = "MC_ENABLE_DEST_DEVICE_AFFINITY"
	peerAffinity  = "MC_ENABLE_HCA_PEER_AFFINITY"
)

const (
	defaultMinRPCPort = 15000
	defaultMaxRPCPort = 17000
	// The kernel's range for outgoing connections, out of which a listening port
	// may be taken at any time.
	ephemeralMin = 32768
	ephemeralMax = 60999

	defaultFragmentLimit = 16384 // whatever the slice size is

	rpcPortsRevert = "15000 to 17000 is used"
	rpcPortsValid  = "ports from 1024 to 65535, outside 32768 to 60999, the lower one not above the upper"
)

// relate settles what depends on more than one variable. It runs once all have
// been read.
func (l *loader) relate() {
	l.relateRPCPorts()
	l.relateFragments()
	l.relateAffinity()
	l.relatePorts()
	if s, ok := l.given(gidIndex); ok {
		l.env.RDMA.GIDIndexFrom = s.From
	}
	if l.env.PXN.Enable && l.env.PXN.GroupID == "" && l.env.PXN.Off == "" {
		w := Warning{Name: pxnGroupID, Valid: groupIDWords, Effect: "the PXN relay stays off"}
		l.pxnOff(w)
		l.warn(w)
	}
}

// relateRPCPorts keeps both ends of the port range or none.
func (l *loader) relateRPCPorts() {
	n := &l.env.Names
	refused := slices.Contains(l.bad, minRPCPort) || slices.Contains(l.bad, maxRPCPort)
	crossed := n.MinRPCPort > n.MaxRPCPort || n.MinRPCPort <= ephemeralMax && n.MaxRPCPort >= ephemeralMin
	if !refused && crossed {
		l.warn(Warning{
			Name:   minRPCPort + "," + maxRPCPort,
			Value:  fmt.Sprintf("%d,%d", n.MinRPCPort, n.MaxRPCPort),
			Valid:  rpcPortsValid,
			Effect: rpcPortsRevert,
		})
	}
	if refused || crossed {
		n.MinRPCPort, n.MaxRPCPort = defaultMinRPCPort, defaultMaxRPCPort
		l.drop(minRPCPort, maxRPCPort)
	}
}

// relateFragments turns the ratio into bytes. Without one the limit does not
// follow the slice size, and a bad one counts as 4, both as in Mooncake.
func (l *loader) relateFragments() {
	r := &l.env.RDMA
	s, given := l.given(fragmentRatio)
	if !given && !slices.Contains(l.bad, fragmentRatio) {
		r.FragmentLimit = defaultFragmentLimit
		return
	}
	ratio := 4
	if given {
		// The row has let only integers from 1 pass.
		if n, err := strconv.Atoi(s.Value); err == nil && n < r.SliceSize {
			ratio = n
		} else {
			l.warn(Warning{Name: s.From, Value: s.Value, Effect: "4 is used",
				Valid: fmt.Sprintf("an integer from 1 to %d, one less than the slice size", r.SliceSize-1)})
			l.drop(fragmentRatio)
		}
	}
	r.FragmentLimit = r.SliceSize / ratio
}

// relateAffinity drops both affinities if both are on, as Mooncake does.
func (l *loader) relateAffinity() {
	t := &l.env.Transport
	if !t.DestDeviceAffinity || !t.HCAPeerAffinity {
		return
	}
	t.DestDeviceAffinity, t.HCAPeerAffinity = false, false
	l.warn(Warning{Name: destAffinity + "," + peerAffinity, Value: "on,on", Valid: "one of the two at most", Effect: "both are off"})
	l.drop(destAffinity, peerAffinity)
}

// relatePorts gives each port of a device its one name, in what is found by name: the
// port that names without one mean is left off.
func (l *loader) relatePorts() {
	name := func(text string) string {
		if d, err := parseDevice(text); err == nil {
			return d.On(l.env.RDMA.Port)
		}
		return text
	}
	if m := l.env.PXN.RailMap; m != nil {
		l.env.PXN.RailMap = renamed(m, name)
	}
	if m := l.env.Transport.NICPeerAffinity; m != nil {
		for _, peers := range m {
			for i := range peers {
				peers[i] = name(peers[i])
			}
		}
		l.env.Transport.NICPeerAffinity = renamed(m, name)
	}
}

// renamed is m under other names. What has its name already comes first.
func renamed[V any](m map[string]V, name func(string) string) map[string]V {
	all := make(map[string]V, len(m))
	for key, v := range m {
		if name(key) == key {
			all[key] = v
		}
	}
	for key, v := range m {
		if _, taken := all[name(key)]; !taken {
			all[name(key)] = v
		}
	}
	return all
}

// drop takes settings back that were taken on their own.
func (l *loader) drop(names ...string) {
	l.env.Set = slices.DeleteFunc(l.env.Set, func(s Setting) bool { return slices.Contains(names, s.Name) })
}
