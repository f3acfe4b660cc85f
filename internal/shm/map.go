package shm

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Mapping is a file in memory. A forked child does not inherit it: a mapping
// holds its file's description, and with it the description's locks.
type Mapping struct {
	b    []byte
	once sync.Once
	err  error
}

// Map maps the whole file, shared, for reading and, if writable, writing.
func (f *File) Map(writable bool) (*Mapping, error) {
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	if f.size <= 0 || int64(int(f.size)) != f.size {
		return nil, fmt.Errorf("shm: map %s: size %d", f.path, f.size)
	}
	b, err := unix.Mmap(f.fd(), 0, int(f.size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shm: map %d bytes of %s: %w", f.size, f.path, err)
	}
	m := &Mapping{b: b}
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		m.Unmap()
		return nil, fmt.Errorf("shm: map %s: keep it from forked children: %w", f.path, err)
	}
	return m, nil
}

// Bytes is the mapped memory, page-aligned. It must not be touched after Unmap,
// and only under [Guard] where others may truncate the file.
func (m *Mapping) Bytes() []byte { return m.b }

// Unmap takes the memory away. A second call does nothing.
func (m *Mapping) Unmap() error {
	m.once.Do(func() {
		if err := unix.Munmap(m.b); err != nil {
			m.err = fmt.Errorf("shm: unmap %d bytes: %w", len(m.b), err)
		}
	})
	return m.err
}
