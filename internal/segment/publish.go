package segment

import (
	"slices"
	"sync"

	"github.com/railhop/railhop/internal/wire"
)

// descriptor is what peers are told.
type descriptor struct {
	text []byte
	desc func() *Desc // indexed when first asked for
}

// Encoded returns the descriptor as peers fetch it. It must not be changed.
func (l *Local) Encoded() []byte { return l.descriptor().text }

// Desc returns the descriptor as a peer would see it.
func (l *Local) Desc() *Desc { return l.descriptor().desc() }

// CheckLength fails with a [*wire.FrameError] if peers with this limit would refuse
// the descriptor. It is cheap enough to be asked after each registration.
func (l *Local) CheckLength(limit uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return wire.CheckSize(l.size(), limit)
}

// size is the length of the encoded descriptor.
func (l *Local) size() int {
	commas := max(l.bufferCount-1, 0)
	return len(wire.AppendSegmentDesc(nil, l.describeDevices())) + l.bufferBytes + commas
}

// count adds b's part of the descriptor to what [Local.size] knows, or takes it away.
func (l *Local) count(b *Buffer, add bool) {
	sign := 1
	if !add {
		sign = -1
	}
	for _, wb := range l.describeBuffer(b) {
		l.scratch = wire.AppendBuffer(l.scratch[:0], &wb, l.opts.Protocol != wire.ProtocolTCP)
		l.bufferCount += sign
		l.bufferBytes += sign * len(l.scratch)
	}
}

// recount starts the count anew, after a change of the devices.
func (l *Local) recount() {
	l.order = l.publishedOrder(l.activeMatrix())
	l.bufferCount, l.bufferBytes = 0, 0
	for _, b := range l.buffers {
		if b.state == published {
			l.count(b, true)
		}
	}
}

func (l *Local) descriptor() *descriptor {
	if d := l.current.Load(); d != nil {
		return d
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.current.Load(); d != nil {
		return d
	}
	w := l.describeDevices()
	for _, b := range l.buffers {
		if b.state == published {
			w.Buffers = append(w.Buffers, l.describeBuffer(b)...)
		}
	}
	d := &descriptor{
		text: wire.AppendSegmentDesc(nil, w),
		desc: sync.OnceValue(func() *Desc { return NewDesc(w) }),
	}
	l.current.Store(d)
	return d
}

// describeDevices builds the descriptor, without buffers. Readers number the devices
// by walking the matrix, so devices and keys are put in that order; see
// [wire.DeviceOrder].
func (l *Local) describeDevices() *wire.SegmentDesc {
	d := &wire.SegmentDesc{
		Name:            l.opts.Name,
		Protocol:        l.opts.Protocol,
		TCPDataPort:     l.opts.TCPDataPort,
		TCPProtoVersion: l.opts.TCPProtoVersion,
		Timestamp:       l.opts.Now().Format("2006-01-02 15:04:05.000000"),
		RDMAServerName:  l.opts.RDMAServerName,
		FenceVersion:    l.opts.FenceVersion,
		TCPProves:       l.opts.TCPProves,
	}
	if d.Protocol != wire.ProtocolTCP {
		d.PriorityMatrix = l.activeMatrix()
		for _, i := range l.order {
			d.Devices = append(d.Devices, l.devices[i].Device)
		}
	}
	return d
}

// describeBuffer returns b's entries in the descriptor: one a chunk, or one for TCP,
// or none if that is local only. There is none for address 0, since readers refuse the
// whole descriptor for it.
func (l *Local) describeBuffer(b *Buffer) []wire.Buffer {
	if b.Addr == 0 {
		return nil
	}
	if l.opts.Protocol == wire.ProtocolTCP {
		if !b.RemoteAccess {
			return nil
		}
		return []wire.Buffer{{Name: l.opts.Name, Addr: b.Addr, Length: b.Length}}
	}
	name := b.Location
	if name == "" {
		name = wildcard
	}
	all := make([]wire.Buffer, len(b.Chunks))
	for i := range b.Chunks {
		c := &b.Chunks[i]
		all[i] = wire.Buffer{Name: name, Addr: c.Addr, Length: c.Length, LKey: inOrder(c.LKey, l.order)}
		if b.RemoteAccess {
			all[i].RKey = inOrder(c.RKey, l.order)
		}
	}
	return all
}

// activeMatrix returns the matrix without inactive devices, and without locations
// that have no other.
func (l *Local) activeMatrix() map[string][2][]string {
	matrix := make(map[string][2][]string)
	for location, lists := range l.opts.Matrix {
		var kept [2][]string
		for i, names := range lists {
			for _, name := range names {
				if n, ok := l.number(name); ok && l.devices[n].active {
					kept[i] = append(kept[i], name)
				}
			}
		}
		if len(kept[0])+len(kept[1]) > 0 {
			matrix[location] = kept
		}
	}
	return matrix
}

// publishedOrder returns the numbers of the active devices in the order of the
// descriptor: as readers number them, then those that the matrix lacks.
func (l *Local) publishedOrder(matrix map[string][2][]string) []int {
	var order []int
	for _, name := range wire.DeviceOrder(matrix) {
		n, _ := l.number(name)
		order = append(order, n)
	}
	for i, dev := range l.devices {
		if dev.active && !slices.Contains(order, i) {
			order = append(order, i)
		}
	}
	return order
}

// inOrder returns the keys of the devices in order; a missing key is 0.
func inOrder(keys []uint32, order []int) []uint32 {
	out := make([]uint32, len(order))
	for i, n := range order {
		if n < len(keys) {
			out[i] = keys[n]
		}
	}
	return out
}
