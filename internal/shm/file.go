package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNoSpace is the sentinel of [SpaceError].
var ErrNoSpace = errors.New("shm: no space")

// SpaceError says that a file system has too little room.
type SpaceError struct {
	Path string
	Need uint64 // bytes
	Free uint64 // bytes, before the attempt
	Err  error  // what the kernel said
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("shm: reserve space in %s: need %d bytes, %d are free: %v", e.Path, e.Need, e.Free, e.Err)
}

// Unwrap returns the kernel's error.
func (e *SpaceError) Unwrap() error { return e.Err }

// Is makes every SpaceError an [ErrNoSpace].
func (e *SpaceError) Is(target error) bool { return target == ErrNoSpace }

// File is an open file. It has its own open file description: locks taken by
// one File meet those of another, even within a process.
type File struct {
	f    *os.File
	path string
	size int64
}

// Path is where the file is, or the directory of a file without a name.
func (f *File) Path() string { return f.path }

// Size is the size that the file had when it was opened or created.
func (f *File) Size() int64 { return f.size }

// Descriptor is the file's descriptor. It stays the File's.
func (f *File) Descriptor() int { return f.fd() }

// Stat describes the file as it is now.
func (f *File) Stat() (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd(), &st); err != nil {
		return st, fmt.Errorf("shm: stat %s: %w", f.path, err)
	}
	return st, nil
}

// ReadAt reads by a system call, which a truncated file cannot kill.
func (f *File) ReadAt(b []byte, off int64) (int, error) { return f.f.ReadAt(b, off) }

// Write appends at the file's position.
func (f *File) Write(b []byte) (int, error) { return f.f.Write(b) }

// Range is a part of a file.
type Range struct {
	Off, Len int64
}

// Pages is the range of whole pages that holds n bytes at off.
func Pages(off, n int) Range {
	page := os.Getpagesize()
	start, end := off/page*page, (off+n+page-1)/page*page
	return Range{int64(start), int64(end - start)}
}

// Reserve allocates the pages of some ranges, so that touching them cannot fail
// for want of space. Pages that are there already keep their content, and the
// file its size. The error is a [*SpaceError] over all ranges if the file system
// is full; some may be allocated then.
func (f *File) Reserve(ranges ...Range) error {
	var need, got int64
	for _, r := range ranges {
		need += r.Len
	}
	for _, r := range ranges {
		_, err := ignoringEINTR(func() (int, error) {
			return 0, unix.Fallocate(f.fd(), unix.FALLOC_FL_KEEP_SIZE, r.Off, r.Len)
		})
		switch {
		case err == unix.ENOSPC || err == unix.EDQUOT || err == unix.ENOMEM:
			return f.spaceError(need, got, err)
		case err != nil:
			return fmt.Errorf("shm: reserve %d bytes at %d of %s: %w", r.Len, r.Off, f.path, err)
		}
		got += r.Len
	}
	return nil
}

// spaceError counts as free what the attempt has taken.
func (f *File) spaceError(need, got int64, err error) error {
	e := &SpaceError{Path: f.path, Need: uint64(need), Err: err}
	var st unix.Statfs_t
	if unix.Fstatfs(f.fd(), &st) == nil {
		e.Free = st.Bavail*uint64(st.Bsize) + uint64(got)
	}
	return e
}

// Close closes the file and drops its locks, but for a lock that a mapping of
// the file or a forked child still holds up. Mappings stay.
func (f *File) Close() error { return f.f.Close() }

func (f *File) fd() int { return int(f.f.Fd()) }

// Reopen opens the same file once more, with a description and so with locks of
// its own, whether or not it still has a name.
func (f *File) Reopen() (*File, error) {
	self := fmt.Sprintf("/proc/self/fd/%d", f.fd())
	fd, err := ignoringEINTR(func() (int, error) { return unix.Open(self, unix.O_RDWR|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, fmt.Errorf("shm: reopen %s: %w", f.path, err)
	}
	return &File{f: os.NewFile(uintptr(fd), f.path), path: f.path, size: f.size}, nil
}
