package segment

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// Buffer is memory that this process registers. Whoever registers it fills it in;
// from [Local.Publish] on it must not be changed.
type Buffer struct {
	Addr, Length uint64 // bytes
	Location     string // as published, such as "cuda:0"
	// Memory is what the driver says of the whole range. Location is the
	// caller's text, and proves nothing.
	Memory       gpu.Range
	RemoteAccess bool    // peers may read and write it
	Chunks       []Chunk // made by [Local.Reserve]; the keys are the caller's to fill in
	Owner        any     // whatever the caller keeps with it

	regions []string
	state   bufferState // guarded by Local.mu
}

// Chunk is a part of a buffer with a memory region of its own. Keys are by device
// number.
type Chunk struct {
	Addr, Length uint64
	LKey, RKey   []uint32

	buffer *Buffer
}

type bufferState uint8

const (
	unknown   bufferState = iota
	reserved              // its range is taken, and nobody sees it
	published             // lookups find it, and peers too
)

// LocalOptions configures a [Local].
type LocalOptions struct {
	Name            string // of the segment, "host:port"
	RDMAServerName  string // for NIC paths; "" means Name
	Protocol        string // "rdma" or "tcp"
	TCPDataPort     int
	TCPProtoVersion int
	FenceVersion    int
	TCPProves       int
	// Devices are this process's NICs. A device's index here is its number
	// wherever this package speaks of a local device; in the descriptor it may
	// have another place.
	Devices []wire.Device
	// Matrix names devices of Devices only.
	Matrix map[string][2][]string
	MaxMR  uint64           // longest chunk in bytes; 0 means no limit
	Now    func() time.Time // for the descriptor's time stamp; nil means time.Now
}

// Local is the memory that this process has registered, and its descriptor.
type Local struct {
	opts  LocalOptions
	table atomic.Pointer[table]

	current atomic.Pointer[descriptor] // nil when out of date; stored under mu

	mu      sync.Mutex
	buffers []*Buffer     // all reserved and published ones, by address
	devices []deviceState // as opts.Devices
	order   []int         // the active devices, as they stand in the descriptor
	// What the published buffers take in the descriptor.
	bufferCount, bufferBytes int
	scratch                  []byte
}

type deviceState struct {
	wire.Device
	active bool
}

// NewLocal returns a segment without memory. It fails if the matrix names a device
// that is not there.
func NewLocal(opts LocalOptions) (*Local, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	l := &Local{opts: opts}
	for _, d := range opts.Devices {
		if d.Name == "" || slices.ContainsFunc(l.devices, func(s deviceState) bool { return s.Name == d.Name }) {
			return nil, fmt.Errorf("segment: device name %q is empty or there twice", d.Name)
		}
		l.devices = append(l.devices, deviceState{Device: d, active: true})
	}
	for _, location := range slices.Sorted(maps.Keys(opts.Matrix)) {
		for _, names := range opts.Matrix[location] {
			for _, name := range names {
				if _, ok := l.number(name); !ok {
					return nil, fmt.Errorf("segment: topology: location %q names device %q, which is not among %v", location, name, l.deviceNames())
				}
			}
		}
	}
	l.recount()
	l.table.Store(&table{priorities: l.priorities()})
	return l, nil
}

// Name returns the segment's name.
func (l *Local) Name() string { return l.opts.Name }

func (l *Local) number(name string) (int, bool) {
	i := slices.IndexFunc(l.opts.Devices, func(d wire.Device) bool { return d.Name == name })
	return i, i >= 0
}

func (l *Local) deviceNames() []string {
	var all []string
	for _, d := range l.opts.Devices {
		all = append(all, d.Name)
	}
	return all
}

// priorities resolves the matrix to the devices that are active now.
func (l *Local) priorities() *priorities {
	return newPriorities(l.opts.Matrix, func(name string) (int, bool) {
		i, ok := l.number(name)
		return i, ok && l.devices[i].active
	})
}

// SetActive takes a device out of use, or back into it: out of the choice for
// local pieces, and out of the descriptor with all its keys.
func (l *Local) SetActive(device int, active bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.devices[device].active == active {
		return
	}
	l.devices[device].active = active
	l.recount()
	t := *l.table.Load()
	t.priorities = l.priorities()
	l.replace(&t)
}

// SetAddress notes a device's new LID and GID for the descriptor.
func (l *Local) SetAddress(device int, lid uint16, gid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.devices[device].LID, l.devices[device].GID = lid, gid
	l.current.Store(nil)
}

// replace makes t what lookups see, and the descriptor out of date.
func (l *Local) replace(t *table) {
	l.table.Store(t)
	l.current.Store(nil)
}

// Reserve takes the ranges of new buffers, all or none, and cuts them into chunks.
// It fails with [xfer.ErrInvalidArgument] for a length of 0 and with
// [xfer.ErrAddressOverlapped] if one overlaps another, here or among those known.
// Ranges may touch. Next comes [Local.Publish] or [Local.Free].
func (l *Local) Reserve(bufs ...*Buffer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range bufs {
		switch {
		case b.Length == 0:
			return fmt.Errorf("segment: register %#x: length 0: %w", b.Addr, xfer.ErrInvalidArgument)
		case b.Addr+b.Length < b.Addr:
			return badRange(b.Addr, b.Length)
		case b.state != unknown:
			return fmt.Errorf("segment: register %#x: the buffer is registered: %w", b.Addr, xfer.ErrAddressOverlapped)
		}
	}
	if err := l.checkOverlap(bufs); err != nil {
		return err
	}
	for _, b := range bufs {
		b.state = reserved
		b.regions = regions(b.Location)
		b.Chunks = chunks(b, l.opts.MaxMR)
	}
	if len(bufs) == 1 {
		at, _ := slices.BinarySearchFunc(l.buffers, bufs[0].Addr, startsAt)
		l.buffers = slices.Insert(l.buffers, at, bufs[0])
		return nil
	}
	l.buffers = append(l.buffers, bufs...)
	slices.SortFunc(l.buffers, byAddr)
	return nil
}

func byAddr(a, b *Buffer) int             { return cmp.Compare(a.Addr, b.Addr) }
func startsAt(b *Buffer, addr uint64) int { return cmp.Compare(b.Addr, addr) }

// checkOverlap refuses buffers that overlap each other or one that is known.
func (l *Local) checkOverlap(bufs []*Buffer) error {
	apart := func(a, b *Buffer) error { // a is the lower one
		if a.Addr+a.Length <= b.Addr {
			return nil
		}
		return fmt.Errorf("segment: register: %d bytes at %#x and %d bytes at %#x overlap: %w",
			a.Length, a.Addr, b.Length, b.Addr, xfer.ErrAddressOverlapped)
	}
	sorted := slices.SortedFunc(slices.Values(bufs), byAddr)
	for i, b := range sorted {
		if i > 0 {
			if err := apart(sorted[i-1], b); err != nil {
				return err
			}
		}
		at, _ := slices.BinarySearchFunc(l.buffers, b.Addr, startsAt)
		if at > 0 {
			if err := apart(l.buffers[at-1], b); err != nil {
				return err
			}
		}
		if at < len(l.buffers) {
			if err := apart(b, l.buffers[at]); err != nil {
				return err
			}
		}
	}
	return nil
}

// chunks cuts a buffer into parts of at most most bytes.
func chunks(b *Buffer, most uint64) []Chunk {
	if most == 0 || most > b.Length {
		most = b.Length
	}
	all := make([]Chunk, 0, (b.Length-1)/most+1)
	for off := uint64(0); off < b.Length; {
		n := min(most, b.Length-off)
		all = append(all, Chunk{Addr: b.Addr + off, Length: n, buffer: b})
		off += n
	}
	return all
}

// Publish lets lookups and peers see buffers that are reserved or withdrawn.
func (l *Local) Publish(bufs ...*Buffer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var added []*Buffer
	for _, b := range bufs {
		if b.state == reserved {
			b.state = published
			l.count(b, true)
			added = append(added, b)
		}
	}
	if len(added) > 0 {
		l.replace(l.table.Load().with(added))
	}
}

// Withdraw hides the buffers that start at addrs: no new lookup finds them, and
// the next descriptor lacks them. Their ranges stay taken until [Local.Free];
// [Local.Publish] brings them back. It withdraws all that it finds, and fails with
// [xfer.ErrAddressNotFound] if one was not.
func (l *Local) Withdraw(addrs ...uint64) ([]*Buffer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []*Buffer
	var missing []error
	for _, addr := range addrs {
		i, ok := slices.BinarySearchFunc(l.buffers, addr, startsAt)
		if !ok || l.buffers[i].state != published {
			missing = append(missing, fmt.Errorf("segment: unregister: no buffer starts at %#x: %w", addr, xfer.ErrAddressNotFound))
			continue
		}
		l.buffers[i].state = reserved
		l.count(l.buffers[i], false)
		found = append(found, l.buffers[i])
	}
	if len(found) > 0 {
		l.replace(l.table.Load().without(found))
	}
	return found, errors.Join(missing...)
}

// Free gives up the ranges of buffers that are reserved or withdrawn.
func (l *Local) Free(bufs ...*Buffer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range bufs {
		if b.state == reserved {
			b.state = unknown
		}
	}
	l.buffers = slices.DeleteFunc(l.buffers, func(b *Buffer) bool { return b.state == unknown })
}

// Buffers returns the published buffers, by address.
func (l *Local) Buffers() []*Buffer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.buffers), func(b *Buffer) bool { return b.state != published })
}
