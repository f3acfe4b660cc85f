package softgpu

import (
	"slices"
	"sync/atomic"
)

// region is a run of memory that streams may touch: an allocation, an import or
// a host mapping.
type region struct {
	base uint64
	size uint64 // as asked for
	mem  []byte // the mapping, whole pages

	busID  string // of the device whose memory it is; "" for host memory
	fd     int    // of the memfd, for an allocation; else -1
	device *device

	// pins counts the operations that use the region, less closing once it is
	// being closed.
	pins   atomic.Int64
	unused chan struct{} // has a token once the last pin of a closing region is gone
}

// closing is more than there can be pins.
const closing = 1 << 40

func newRegion(d *device, mem []byte, size uint64, busID string, fd int) *region {
	return &region{
		base: addressOf(mem), size: size, mem: mem,
		busID: busID, fd: fd, device: d,
		unused: make(chan struct{}, 1),
	}
}

func (r *region) contains(addr, length uint64) bool {
	off := addr - r.base // wraps to a huge number if addr is below
	return off < r.size && length <= r.size-off
}

// pin keeps the region mapped until unpin. It reports false if the region is
// being closed.
func (r *region) pin() bool {
	if r.pins.Add(1) > 0 {
		return true
	}
	r.unpin()
	return false
}

func (r *region) unpin() {
	if r.pins.Add(-1) == -closing {
		select {
		case r.unused <- struct{}{}:
		default:
		}
	}
}

// drain refuses further pins and waits for those there are. It is called once,
// by whoever took the region out of its table.
func (r *region) drain() {
	n := r.pins.Add(-closing)
	for n != -closing {
		<-r.unused
		n = r.pins.Load()
	}
}

func (t *table) regions() []*region {
	if s := t.snapshot.Load(); s != nil {
		return *s
	}
	return nil
}

func search(regions []*region, addr uint64) (int, bool) {
	return slices.BinarySearchFunc(regions, addr, func(r *region, a uint64) int {
		switch {
		case r.base < a:
			return -1
		case r.base > a:
			return 1
		}
		return 0
	})
}

// find returns the region that contains the whole range, or nil.
func (t *table) find(addr, length uint64) *region {
	return findIn(t.regions(), addr, length)
}

func findIn(regions []*region, addr, length uint64) *region {
	lo, hi := 0, len(regions) // the last region whose base is not above addr is at lo-1
	for lo < hi {
		if mid := (lo + hi) / 2; regions[mid].base <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 || !regions[lo-1].contains(addr, length) {
		return nil
	}
	return regions[lo-1]
}

// overlaps reports whether any region shares a byte with the range, which is
// not empty and does not wrap.
func (t *table) overlaps(addr, length uint64) bool {
	regions := t.regions()
	i, exact := search(regions, addr)
	if exact || i < len(regions) && regions[i].base-addr < length {
		return true
	}
	return i > 0 && addr-regions[i-1].base < regions[i-1].size
}

// add enters r, unless it overlaps another region.
func (t *table) add(r *region) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.overlaps(r.base, r.size) {
		return false
	}
	old := t.regions()
	i, _ := search(old, r.base)
	regions := make([]*region, 0, len(old)+1)
	regions = append(regions, old[:i]...)
	regions = append(regions, r)
	regions = append(regions, old[i:]...)
	t.snapshot.Store(&regions)
	return true
}

// remove takes out the region that starts at addr, if keep says so, and returns it.
func (t *table) remove(addr uint64, match func(*region) bool) *region {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.regions()
	i, ok := search(old, addr)
	if !ok || !match(old[i]) {
		return nil
	}
	r := old[i]
	regions := slices.Concat(old[:i], old[i+1:])
	t.snapshot.Store(&regions)
	return r
}
