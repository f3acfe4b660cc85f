package segment

import (
	"slices"

	"github.com/railhop/railhop/internal/wire"
)

// descriptor is what peers are told, in three forms.
type descriptor struct {
	desc *Desc
	text []byte
}

// Encoded returns the descriptor as peers fetch it. It must not be changed. Use
// [wire.CheckLength] to see whether peers can read it.
func (l *Local) Encoded() []byte { return l.descriptor().text }

// Desc returns the descriptor as a peer would see it.
func (l *Local) Desc() *Desc { return l.descriptor().desc }

func (l *Local) descriptor() *descriptor {
	if d := l.current.Load(); d != nil {
		return d
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.current.Load(); d != nil {
		return d
	}
	w := l.describe()
	d := &descriptor{desc: NewDesc(w), text: wire.AppendSegmentDesc(nil, w)}
	l.current.Store(d)
	return d
}

// describe builds the descriptor. Readers number the devices by walking the matrix,
// so devices and keys are put in that order; see [wire.DeviceOrder].
func (l *Local) describe() *wire.SegmentDesc {
	d := &wire.SegmentDesc{
		Name:            l.opts.Name,
		Protocol:        l.opts.Protocol,
		TCPDataPort:     l.opts.TCPDataPort,
		TCPProtoVersion: l.opts.TCPProtoVersion,
		Timestamp:       l.opts.Now().Format("2006-01-02 15:04:05.000000"),
		RDMAServerName:  l.opts.RDMAServerName,
		FenceVersion:    l.opts.FenceVersion,
	}
	if d.Protocol == wire.ProtocolTCP {
		for _, b := range l.buffers {
			if b.state == published && b.Addr != 0 {
				d.Buffers = append(d.Buffers, wire.Buffer{Name: l.opts.Name, Addr: b.Addr, Length: b.Length})
			}
		}
		return d
	}
	d.PriorityMatrix = l.activeMatrix()
	order := l.publishedOrder(d.PriorityMatrix)
	for _, i := range order {
		d.Devices = append(d.Devices, l.devices[i].Device)
	}
	for _, b := range l.buffers {
		// Readers refuse a descriptor with a buffer at address 0.
		if b.state != published || b.Addr == 0 {
			continue
		}
		name := b.Location
		if name == "" {
			name = wildcard
		}
		for i := range b.Chunks {
			c := &b.Chunks[i]
			wb := wire.Buffer{Name: name, Addr: c.Addr, Length: c.Length, LKey: inOrder(c.LKey, order)}
			if b.RemoteAccess {
				wb.RKey = inOrder(c.RKey, order)
			}
			d.Buffers = append(d.Buffers, wb)
		}
	}
	return d
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
