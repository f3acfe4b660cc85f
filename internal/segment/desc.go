package segment

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// Desc is a segment's descriptor, indexed. It is immutable.
type Desc struct {
	*wire.SegmentDesc // must not be changed

	nicPaths []string   // by device
	gids     [][16]byte // by device; zero if it cannot be read
	starts   []uint64   // of buffers, sorted
	sorted   []int32    // the buffers that belong to starts
	disjoint bool       // no two buffers overlap
	places   []*place   // by buffer
}

// place is where a buffer lies: one choice of devices for each of its regions.
type place struct{ regions []devices }

// NewDesc indexes a descriptor, which must have come through
// [wire.DecodeSegmentDesc] or be as sound, and must not be changed afterwards.
func NewDesc(w *wire.SegmentDesc) *Desc {
	d := &Desc{SegmentDesc: w, disjoint: true}
	number := make(map[string]int, len(w.Devices))
	for i, dev := range w.Devices {
		if _, ok := number[dev.Name]; !ok {
			number[dev.Name] = i
		}
		d.nicPaths = append(d.nicPaths, wire.NICPath(w.ServerName(), dev.Name))
		gid, err := wire.ParseGID(dev.GID)
		if err != nil {
			gid = [16]byte{} // the device failed at the publisher
		}
		d.gids = append(d.gids, gid)
	}
	p := newPriorities(w.PriorityMatrix, func(name string) (int, bool) {
		i, ok := number[name]
		return i, ok && i < maxDevices
	})
	byName := make(map[string]*place)
	d.places = make([]*place, len(w.Buffers))
	d.sorted = make([]int32, len(w.Buffers))
	for i := range w.Buffers {
		name := w.Buffers[i].Name
		if byName[name] == nil {
			byName[name] = newPlace(p, name)
		}
		d.places[i] = byName[name]
		d.sorted[i] = int32(i)
	}
	slices.SortStableFunc(d.sorted, func(a, b int32) int { return cmp.Compare(w.Buffers[a].Addr, w.Buffers[b].Addr) })
	d.starts = make([]uint64, len(d.sorted))
	last := uint64(0)
	for i, n := range d.sorted {
		b := &w.Buffers[n]
		d.starts[i] = b.Addr
		d.disjoint = d.disjoint && last <= b.Addr
		last = max(last, b.Addr+b.Length)
	}
	return d
}

// maxDevices is how many devices of a descriptor are used.
const maxDevices = 1 << 16

func newPlace(p *priorities, name string) *place {
	locations := regions(name)
	if locations == nil {
		return &place{regions: []devices{p.at(name)}}
	}
	pl := &place{}
	for _, location := range locations {
		pl.regions = append(pl.regions, p.at(location))
	}
	return pl
}

func (d *Desc) end(buffer int) uint64 { return d.Buffers[buffer].Addr + d.Buffers[buffer].Length }

// find returns the first buffer that holds the whole range; failing that, the first
// that holds its start; failing that, -1.
func (d *Desc) find(addr, length uint64) int {
	if d.disjoint {
		i, ok := slices.BinarySearch(d.starts, addr)
		if !ok {
			i--
		}
		if i >= 0 && addr < d.end(int(d.sorted[i])) {
			return int(d.sorted[i])
		}
		return -1
	}
	first := -1
	for i := range d.Buffers {
		if d.Buffers[i].Addr <= addr && addr < d.end(i) {
			if length <= d.end(i)-addr {
				return i
			}
			if first < 0 {
				first = i
			}
		}
	}
	return first
}

// Covers returns nil if buffers hold the whole range. They may be several that
// touch. It fails with a [*NotCoveredError].
func (d *Desc) Covers(addr, length uint64) error {
	end := addr + length
	if end < addr {
		return badRange(addr, length)
	}
	for at := addr; at < end; {
		i := d.find(at, end-at)
		if i < 0 {
			return d.notCovered(addr, length, at)
		}
		at = d.end(i)
	}
	return nil
}

// Holds returns nil if one buffer holds the whole range. It fails with a
// [*NotCoveredError].
func (d *Desc) Holds(addr, length uint64) error {
	if addr+length < addr {
		return badRange(addr, length)
	}
	i := d.find(addr, length)
	if i < 0 {
		return d.notCovered(addr, length, addr)
	}
	if end := d.end(i); length > end-addr {
		return d.notCovered(addr, length, end)
	}
	return nil
}

func (d *Desc) notCovered(addr, length, missing uint64) error {
	above := sort.Search(len(d.starts), func(i int) bool { return d.starts[i] > missing })
	at := func(i int) Range {
		n := int(d.sorted[i])
		return Range{d.Buffers[n].Addr, d.end(n)}
	}
	return &NotCoveredError{
		Segment: d.Name, Addr: addr, Length: length, Missing: missing,
		Nearest: nearest(len(d.starts), at, above, missing),
	}
}

// NICPath returns the NIC path of a device.
func (d *Desc) NICPath(device int) string { return d.nicPaths[device] }

// GID returns a device's GID, zero if the descriptor's cannot be read.
func (d *Desc) GID(device int) [16]byte { return d.gids[device] }

// Device returns the number of the device with this name.
func (d *Desc) Device(name string) (int, bool) {
	i := slices.IndexFunc(d.Devices, func(dev wire.Device) bool { return dev.Name == name })
	return i, i >= 0
}

// same reports whether two descriptors differ in nothing but their time stamp.
func (d *Desc) same(o *Desc) bool {
	a, b := *d.SegmentDesc, *o.SegmentDesc
	return a.Name == b.Name && a.Protocol == b.Protocol && a.TCPDataPort == b.TCPDataPort &&
		a.TCPProtoVersion == b.TCPProtoVersion && a.RDMAServerName == b.RDMAServerName &&
		a.FenceVersion == b.FenceVersion && a.TCPProves == b.TCPProves && a.TCPDataHost == b.TCPDataHost && a.MatrixProblem == b.MatrixProblem &&
		slices.Equal(a.Devices, b.Devices) &&
		slices.EqualFunc(a.Buffers, b.Buffers, sameBuffer) &&
		sameMatrix(a.PriorityMatrix, b.PriorityMatrix)
}

func sameBuffer(a, b wire.Buffer) bool {
	return a.Name == b.Name && a.Addr == b.Addr && a.Length == b.Length &&
		slices.Equal(a.LKey, b.LKey) && slices.Equal(a.RKey, b.RKey)
}

func sameMatrix(a, b map[string][2][]string) bool {
	if len(a) != len(b) {
		return false
	}
	for location, lists := range a {
		other, ok := b[location]
		if !ok || !slices.Equal(lists[0], other[0]) || !slices.Equal(lists[1], other[1]) {
			return false
		}
	}
	return true
}

// Choice is the way into a target's memory.
type Choice struct {
	Buffer    int    // number of the buffer in the descriptor
	BufferEnd uint64 // an access must be cut here; what lies beyond is chosen anew
	Device    int    // number of the device in the descriptor
	RKey      uint32
	NICPath   string
	Name      string // of the device
}

// Select chooses buffer and device for an access to the range, as a Mooncake reader
// does: at retry 0 any preferred device, by rnd; at retry r the (r-1)th in turn. A
// device named by hint is taken first, whatever the retry; "" is no hint. A range
// that goes beyond the buffer gives a Choice whose BufferEnd is before its end.
//
// It fails with a [*NotCoveredError] if no buffer holds addr, and with
// [xfer.ErrDeviceNotFound] if the buffer is served by no device.
func (d *Desc) Select(addr, length uint64, retry int, hint string, rnd uint64) (Choice, error) {
	buffer, devs, err := d.candidates(addr, length)
	if err != nil {
		return Choice{}, err
	}
	if hint != "" {
		for _, dev := range devs.all {
			if d.Devices[dev].Name == hint {
				return d.choice(buffer, int(dev)), nil
			}
		}
	}
	dev, _ := devs.pick(retry, rnd)
	return d.choice(buffer, dev), nil
}

// SelectAmong is Select for one of some devices by name, if the memory is a GPU's and
// any of them is preferred there: then no other is taken, whatever the retry.
func (d *Desc) SelectAmong(addr, length uint64, retry int, names []string, rnd uint64) (Choice, error) {
	buffer, devs, err := d.candidates(addr, length)
	if err != nil {
		return Choice{}, err
	}
	if strings.HasPrefix(d.Buffers[buffer].Name, "cuda:") {
		var some devices
		for _, dev := range devs.all[:devs.preferred] {
			if slices.Contains(names, d.Devices[dev].Name) {
				some.all = append(some.all, dev)
			}
		}
		if len(some.all) > 0 {
			devs = some
		}
	}
	dev, _ := devs.pick(retry, rnd)
	return d.choice(buffer, dev), nil
}

// SelectOnRail is Select for a device that onRail accepts, a preferred one if
// possible.
func (d *Desc) SelectOnRail(addr, length uint64, onRail func(device int) bool) (Choice, error) {
	buffer, devs, err := d.candidates(addr, length)
	if err != nil {
		return Choice{}, err
	}
	for _, dev := range devs.all {
		if onRail(int(dev)) {
			return d.choice(buffer, int(dev)), nil
		}
	}
	return Choice{}, fmt.Errorf("segment: no device of %.256q on that rail serves address %#x: %w", d.Name, addr, xfer.ErrDeviceNotFound)
}

// Candidates returns the devices that serve the start of the range, best first, and
// how many of them are preferred. The slice is shared and must not be changed. It
// fails as [Desc.Select] does.
func (d *Desc) Candidates(addr, length uint64) (devices []uint16, preferred int, err error) {
	_, devs, err := d.candidates(addr, length)
	return devs.all, devs.preferred, err
}

func (d *Desc) candidates(addr, length uint64) (buffer int, devs devices, err error) {
	if addr+length < addr {
		return 0, devices{}, badRange(addr, length)
	}
	buffer = d.find(addr, length)
	if buffer < 0 {
		return 0, devices{}, d.notCovered(addr, length, addr)
	}
	b := &d.Buffers[buffer]
	if len(b.RKey) == 0 {
		return 0, devices{}, fmt.Errorf("segment: the buffer of %d bytes at %#x in %.256q is not remotely accessible: %w", b.Length, b.Addr, d.Name, xfer.ErrAddressNotFound)
	}
	regions := d.places[buffer].regions
	devs = regions[region(len(regions), addr-b.Addr, b.Length)]
	if len(devs.all) == 0 {
		cause := d.MatrixProblem
		if cause == "" {
			cause = "its priority matrix names no device that it has"
		}
		return 0, devices{}, fmt.Errorf("segment: no device of %.256q serves location %.64q: %s: %w", d.Name, b.Name, cause, xfer.ErrDeviceNotFound)
	}
	return buffer, devs, nil
}

func (d *Desc) choice(buffer, device int) Choice {
	return Choice{
		Buffer: buffer, BufferEnd: d.end(buffer),
		Device: device, RKey: d.Buffers[buffer].RKey[device],
		NICPath: d.nicPaths[device], Name: d.Devices[device].Name,
	}
}
