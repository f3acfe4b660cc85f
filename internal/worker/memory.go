package worker

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/pattern"
)

// memory is a named allocation, of the process or of a GPU.
type memory struct {
	addr, size uint64
	host       []byte     // nil if it is a GPU's
	device     gpu.Device // nil if it is the process's
}

// chunk is how much is moved between a GPU and a buffer at once.
const chunk = 1 << 20

func (h *host) alloc(_ context.Context, a AllocArgs, _ func(any)) (Allocated, error) {
	if a.Bytes == 0 {
		return Allocated{}, fmt.Errorf("worker: alloc %s: 0 bytes: want 1 or more", a.Memory)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.memory[a.Memory] != nil {
		return Allocated{}, fmt.Errorf("worker: memory %q is allocated already", a.Memory)
	}
	m := &memory{size: a.Bytes}
	var err error
	if a.GPU == HostMemory {
		m.host, err = unix.Mmap(-1, 0, int(a.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return Allocated{}, fmt.Errorf("worker: alloc %s: map %d bytes: %w", a.Memory, a.Bytes, err)
		}
		m.addr = addrOf(m.host)
	} else {
		if m.device, err = h.gpu(a.GPU); err != nil {
			return Allocated{}, err
		}
		if m.addr, err = m.device.Alloc(a.Bytes); err != nil {
			return Allocated{}, err
		}
	}
	h.memory[a.Memory] = m
	return Allocated{Addr: m.addr}, nil
}

// gpu returns an opened device by ordinal. h.mu is held.
func (h *host) gpu(ordinal int) (gpu.Device, error) {
	if h.hardware == nil || h.hardware.gpus == nil {
		return nil, fmt.Errorf("worker: GPU %d: there is none: want an engine opened with RAILHOP_SOFT_GPUS first", ordinal)
	}
	if d := h.hardware.opened[ordinal]; d != nil {
		return d, nil
	}
	infos, err := h.hardware.gpus.Devices()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= len(infos) {
		return nil, fmt.Errorf("worker: GPU %d: want 0..%d, or %d for memory of the process", ordinal, len(infos)-1, HostMemory)
	}
	d, err := h.hardware.gpus.Open(infos[ordinal].BusID)
	if err != nil {
		return nil, err
	}
	h.hardware.opened[ordinal] = d
	return d, nil
}

// MemoryArgs names memory.
type MemoryArgs struct {
	Memory string `json:"memory"`
}

func (h *host) free(_ context.Context, a MemoryArgs, _ func(any)) (None, error) {
	m, err := h.named(a.Memory)
	if err != nil {
		return None{}, err
	}
	h.mu.Lock()
	delete(h.memory, a.Memory)
	h.mu.Unlock()
	return None{}, m.free()
}

func (m *memory) free() error {
	if m.device != nil {
		return m.device.Free(m.addr)
	}
	return unix.Munmap(m.host)
}

func (h *host) named(name string) (*memory, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.memory[name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("worker: memory %q is not allocated: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(h.memory)), ", "))
}

func (h *host) register(_ context.Context, a RegisterArgs, _ func(any)) (None, error) {
	e, err := h.engine(a.Engine)
	if err != nil {
		return None{}, err
	}
	m, err := h.named(a.Memory)
	if err != nil {
		return None{}, err
	}
	return None{}, e.RegisterBatch([]railhop.Region{{Addr: m.addr, Length: m.size, Location: a.Location, LocalOnly: a.LocalOnly}})
}

func (h *host) unregister(_ context.Context, a RegisterArgs, _ func(any)) (None, error) {
	e, err := h.engine(a.Engine)
	if err != nil {
		return None{}, err
	}
	m, err := h.named(a.Memory)
	if err != nil {
		return None{}, err
	}
	return None{}, e.Unregister(m.addr)
}

// within checks a part of m, whose length is up to the end if it is 0.
func (m *memory) within(name string, offset, length uint64) (uint64, error) {
	if offset > m.size || length > m.size-offset {
		return 0, fmt.Errorf("worker: %d bytes at offset %d of memory %q: it has %d", length, offset, name, m.size)
	}
	if length == 0 {
		length = m.size - offset
	}
	return length, nil
}

func (h *host) fill(ctx context.Context, a FillArgs, _ func(any)) (None, error) {
	m, err := h.named(a.Memory)
	if err != nil {
		return None{}, err
	}
	length, err := m.within(a.Memory, a.Offset, a.Length)
	if err != nil {
		return None{}, err
	}
	buf := make([]byte, min(chunk, length))
	if a.Poison {
		copy(buf, bytes.Repeat([]byte{a.Value}, len(buf)))
	}
	for done := uint64(0); done < length; {
		if ctx.Err() != nil {
			return None{}, context.Cause(ctx)
		}
		part := buf[:min(chunk, length-done)]
		if !a.Poison {
			pattern.Fill(part, a.Seed, a.From+done)
		}
		if err := m.put(a.Offset+done, part); err != nil {
			return None{}, err
		}
		done += uint64(len(part))
	}
	return None{}, nil
}

func (h *host) verify(ctx context.Context, a FillArgs, _ func(any)) (Verified, error) {
	v := Verified{First: -1}
	m, err := h.named(a.Memory)
	if err != nil {
		return v, err
	}
	length, err := m.within(a.Memory, a.Offset, a.Length)
	if err != nil {
		return v, err
	}
	buf := make([]byte, min(chunk, length))
	for v.Bytes < length {
		if ctx.Err() != nil {
			return v, context.Cause(ctx)
		}
		part := buf[:min(chunk, length-v.Bytes)]
		if err := m.get(part, a.Offset+v.Bytes); err != nil {
			return v, err
		}
		first, n := pattern.Mismatch(part, a.Seed, a.From+v.Bytes)
		if n > 0 && v.First < 0 {
			v.First = int64(a.Offset + v.Bytes + uint64(first))
		}
		v.Mismatched += uint64(n)
		v.Bytes += uint64(len(part))
	}
	return v, nil
}

func (m *memory) put(offset uint64, src []byte) error {
	if m.device != nil {
		return m.device.CopyIn(m.addr+offset, src)
	}
	copy(m.host[offset:], src)
	return nil
}

func (m *memory) get(dst []byte, offset uint64) error {
	if m.device != nil {
		return m.device.CopyOut(dst, m.addr+offset)
	}
	copy(dst, m.host[offset:])
	return nil
}
