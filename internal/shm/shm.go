// Package shm makes, opens, maps and unlinks files of shared memory, and holds
// the words in them that the kernel knows: futexes, shared and robust.
//
//	Dir ── Create ──> File (no name yet) ── Reserve, Lock, Map ──> Link: now seen
//	 └──── Open ────> File ── Map ──> Mapping ── Guard(read it) ── Unmap
//
// Memory shared with other processes fails in ways that memory does not: a full
// tmpfs or a file that somebody truncates turns a load or a store into SIGBUS.
// So space is reserved before the first touch ([File.Reserve]), and code that
// touches a mapping runs under [Guard].
//
// The package knows no layout: what the bytes mean is internal/shmabi, and who
// may write them is internal/registry. Nothing here starts a goroutine but
// [HoldRobust]. A Dir may be used from any goroutine; a File and a Mapping too,
// as long as nobody is in them while they are closed.
package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNotDir is returned for a path that is a symbolic link or not a directory.
var ErrNotDir = errors.New("shm: not a directory")

// Dir is an open directory. Names are looked up in it, whatever becomes of its
// path, and symbolic links are never followed.
type Dir struct {
	f    *os.File
	path string
}

// OpenDir opens a directory. It returns [ErrNotDir] if path is a symbolic link
// or something else.
func OpenDir(path string) (*Dir, error) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	switch {
	case err == unix.ELOOP || err == unix.ENOTDIR:
		return nil, fmt.Errorf("%w: %s", ErrNotDir, path)
	case err != nil:
		return nil, fmt.Errorf("shm: open directory %s: %w", path, err)
	}
	return &Dir{os.NewFile(uintptr(fd), path), path}, nil
}

// Path is the path that the directory was opened by.
func (d *Dir) Path() string { return d.path }

// Descriptor is the directory's descriptor. It stays the Dir's.
func (d *Dir) Descriptor() int { return d.fd() }

// Close closes the directory, not the files opened in it.
func (d *Dir) Close() error { return d.f.Close() }

// Stat describes the directory itself.
func (d *Dir) Stat() (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd(), &st); err != nil {
		return st, fmt.Errorf("shm: stat %s: %w", d.path, err)
	}
	return st, nil
}

// Lstat describes a file of the directory without opening it.
func (d *Dir) Lstat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, fmt.Errorf("shm: stat %s: %w", d.join(name), err)
	}
	return st, nil
}

// Names lists the directory, in no order.
func (d *Dir) Names() ([]string, error) {
	// A description of its own, so that callers do not share a position.
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("shm: list %s: %w", d.path, err)
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("shm: list %s: %w", d.path, err)
	}
	return names, nil
}

// Create makes a file of the given size without a name, mode 0600. It holds no
// space yet, and vanishes unless it is linked.
func (d *Dir) Create(size int64) (*File, error) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(d.fd(), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return nil, fmt.Errorf("shm: create a file in %s: %w", d.path, err)
	}
	f := &File{f: os.NewFile(uintptr(fd), d.path), path: d.path, size: size}
	// The umask may have taken bits away.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		f.Close()
		return nil, fmt.Errorf("shm: chmod a file in %s: %w", d.path, err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		f.Close()
		return nil, fmt.Errorf("shm: size a file in %s to %d bytes: %w", d.path, size, err)
	}
	return f, nil
}

// Open opens a file of the directory, for reading and, if writable, writing. It
// does not follow a symbolic link and does not block on a pipe.
func (d *Dir) Open(name string, writable bool) (*File, error) {
	flags := unix.O_RDONLY
	if writable {
		flags = unix.O_RDWR
	}
	return d.OpenFile(name, flags|unix.O_NONBLOCK, 0)
}

// OpenFile is Open with flags of open(2).
func (d *Dir) OpenFile(name string, flags int, mode uint32) (*File, error) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(d.fd(), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	})
	if err != nil {
		return nil, fmt.Errorf("shm: open %s: %w", d.join(name), err)
	}
	f := &File{f: os.NewFile(uintptr(fd), d.join(name)), path: d.join(name)}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	f.size = st.Size
	return f, nil
}

// Link gives a file made by [Dir.Create] its name. It never replaces: a name
// that is taken is an error that wraps [os.ErrExist].
func (d *Dir) Link(f *File, name string) error {
	self := fmt.Sprintf("/proc/self/fd/%d", f.fd())
	err := unix.Linkat(unix.AT_FDCWD, self, d.fd(), name, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return fmt.Errorf("shm: link %s: %w", d.join(name), err)
	}
	f.path = d.join(name)
	return nil
}

// Rename gives a file of the directory a new name, and replaces what had it.
func (d *Dir) Rename(from, to string) error {
	if err := unix.Renameat(d.fd(), from, d.fd(), to); err != nil {
		return fmt.Errorf("shm: rename %s to %s: %w", d.join(from), to, err)
	}
	return nil
}

// Unlink takes a name away. Mappings and open files stay.
func (d *Dir) Unlink(name string) error {
	if err := unix.Unlinkat(d.fd(), name, 0); err != nil {
		return fmt.Errorf("shm: unlink %s: %w", d.join(name), err)
	}
	return nil
}

func (d *Dir) fd() int                 { return int(d.f.Fd()) }
func (d *Dir) join(name string) string { return filepath.Join(d.path, name) }

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}
