package softgpu

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

func roundUp(size uint64) uint64 {
	page := uint64(unix.Getpagesize())
	return (size + page - 1) &^ (page - 1)
}

// Alloc allocates device memory, zeroed and aligned to a page. No page of it is
// touched, so one that will never be used costs nothing.
func (h *Device) Alloc(size uint64) (addr uint64, err error) {
	if err := h.check("alloc"); err != nil {
		return 0, err
	}
	if size == 0 {
		return 0, errors.New("softgpu: alloc: want 1 byte or more")
	}
	d := h.d
	if err := d.reserve(size); err != nil {
		return 0, err
	}
	r, err := d.allocate(size)
	if err != nil {
		d.unreserve(size)
		return 0, fmt.Errorf("softgpu: alloc %d bytes on %s: %w: %w", size, d.info.BusID, gpu.ErrMemory, err)
	}
	d.allocs.Add(1)
	return r.base, nil
}

func (d *device) reserve(size uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if size > d.maxBytes-d.used {
		return fmt.Errorf("softgpu: alloc %d bytes on %s: %d of %d in use: %w",
			size, d.info.BusID, d.used, d.maxBytes, gpu.ErrMemory)
	}
	d.used += size
	return nil
}

func (d *device) unreserve(size uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used -= size
}

func (d *device) allocate(size uint64) (*region, error) {
	fd, err := unix.MemfdCreate("softgpu "+d.info.BusID, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	r, err := d.fill(fd, size)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return r, nil
}

func (d *device) fill(fd int, size uint64) (*region, error) {
	if err := unix.Ftruncate(fd, int64(roundUp(size))); err != nil {
		return nil, fmt.Errorf("truncate: %w", err)
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return d.mapFile(fd, size, d.info.BusID, fd)
}

// mapFile maps a memfd and enters it into the table. keep is the descriptor that
// the region is to own, or -1.
func (d *device) mapFile(fd int, size uint64, busID string, keep int) (*region, error) {
	mem, err := unix.Mmap(fd, 0, int(roundUp(size)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	r := newRegion(d, mem, size, busID, keep)
	if !d.p.memory.add(r) {
		return nil, errors.Join(fmt.Errorf("address %#x is taken", r.base), unix.Munmap(mem))
	}
	return r, nil
}

// Free frees an allocation. It waits for copies from and to it.
func (h *Device) Free(addr uint64) error {
	d := h.d
	if h.closed.Load() {
		return h.check("free")
	}
	r := d.p.memory.remove(addr, func(r *region) bool { return r.device == d && r.fd >= 0 })
	if r == nil {
		return fmt.Errorf("softgpu: free %#x: no allocation of %s starts there", addr, d.info.BusID)
	}
	err := errors.Join(r.unmap(), unix.Close(r.fd))
	d.unreserve(r.size)
	d.allocs.Add(-1)
	if err != nil {
		return fmt.Errorf("softgpu: free %#x: %w", addr, err)
	}
	return h.check("free")
}

func (r *region) unmap() error {
	r.drain()
	err := unix.Munmap(r.mem)
	r.mem = nil // the addresses may become the Go heap's
	return err
}

// Export returns a handle that is good while the allocation and this process live.
func (h *Device) Export(addr uint64) (gpu.Handle, error) {
	if err := h.check("export"); err != nil {
		return gpu.Handle{}, err
	}
	d := h.d
	r := d.p.memory.find(addr, 1)
	if r == nil || r.base != addr || r.device != d || r.fd < 0 || !r.pin() {
		return gpu.Handle{}, fmt.Errorf("softgpu: export %#x: no allocation of %s starts there", addr, d.info.BusID)
	}
	defer r.unpin()
	var st unix.Stat_t
	if err := unix.Fstat(r.fd, &st); err != nil {
		return gpu.Handle{}, fmt.Errorf("softgpu: export %#x: %w", addr, err)
	}
	return source{owner: d.p.self, fd: int32(r.fd), inode: st.Ino, size: r.size, id: d.id}.encode(), nil
}

// Import maps what a handle names. The handle's owner may be this process. It
// fails with [gpu.ErrHandle] and the cause if the handle is malformed, its owner
// is gone, or what it names is not there any more.
func (h *Device) Import(handle gpu.Handle, size uint64) (addr uint64, err error) {
	if err := h.check("import"); err != nil {
		return 0, err
	}
	s, err := decode(handle)
	if err != nil {
		return 0, fmt.Errorf("softgpu: import: %w", err)
	}
	if s.size != size {
		return 0, fmt.Errorf("softgpu: import: handle of %d bytes, want %d: %w", s.size, size, gpu.ErrHandle)
	}
	fd, err := s.open()
	if err != nil {
		return 0, fmt.Errorf("softgpu: import: %w", err)
	}
	defer unix.Close(fd)
	r, err := h.d.mapFile(fd, size, s.id.String(), -1)
	if err != nil {
		return 0, fmt.Errorf("softgpu: import %d bytes: %w", size, err)
	}
	h.d.imports.Add(1)
	return r.base, nil
}

// CloseImport unmaps an import. It waits for copies from and to it.
func (h *Device) CloseImport(addr uint64) error {
	d := h.d
	if h.closed.Load() {
		return h.check("close import")
	}
	r := d.p.memory.remove(addr, func(r *region) bool { return r.device == d && r.fd < 0 })
	if r == nil {
		return fmt.Errorf("softgpu: close import %#x: no import of %s starts there", addr, d.info.BusID)
	}
	err := r.unmap()
	d.imports.Add(-1)
	if err != nil {
		return fmt.Errorf("softgpu: close import %#x: %w", addr, err)
	}
	return h.check("close import")
}

// CopyIn copies src to device memory.
func (h *Device) CopyIn(dst uint64, src []byte) error {
	return h.copyHost("copy in", dst, len(src), func(mem []byte) { copy(mem, src) })
}

// CopyOut copies device memory to dst.
func (h *Device) CopyOut(dst []byte, src uint64) error {
	return h.copyHost("copy out", src, len(dst), func(mem []byte) { copy(dst, mem) })
}

func (h *Device) copyHost(step string, addr uint64, n int, do func(mem []byte)) error {
	if err := h.check(step); err != nil || n == 0 {
		return err
	}
	r := h.d.p.memory.find(addr, uint64(n))
	if r == nil || !r.pin() {
		return fmt.Errorf("softgpu: %s: %d bytes at %#x are not in device memory", step, n, addr)
	}
	defer r.unpin()
	do(bytesAt(addr, uint64(n)))
	return nil
}
