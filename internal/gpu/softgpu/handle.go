package softgpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

// Handles, little-endian:
//
//	magic u64 @0, version u32 @8, pid i32 @12, start ticks u64 @16, inode u64 @24,
//	size u64 @32, fd i32 @40, bus id {domain u32 @44, bus u8 @48, devfn u8 @49},
//	zero @50, FNV-1a 64 of all before it @56
const (
	handleMagic   = 'r' | 'h'<<8 | 's'<<16 | 'o'<<24 | 'f'<<32 | 't'<<40 | 'g'<<48 | 'p'<<56
	handleVersion = 1
)

// process names a process for as long as the host is up.
type process struct {
	pid   int32
	start uint64 // in clock ticks since boot
}

// source is what a handle says of an allocation.
type source struct {
	owner process
	fd    int32
	inode uint64
	size  uint64
	id    busID
}

func (s source) encode() gpu.Handle {
	var h gpu.Handle
	le := binary.LittleEndian
	le.PutUint64(h[0:], handleMagic)
	le.PutUint32(h[8:], handleVersion)
	le.PutUint32(h[12:], uint32(s.owner.pid))
	le.PutUint64(h[16:], s.owner.start)
	le.PutUint64(h[24:], s.inode)
	le.PutUint64(h[32:], s.size)
	le.PutUint32(h[40:], uint32(s.fd))
	le.PutUint32(h[44:], s.id.domain)
	h[48], h[49] = s.id.bus, s.id.devfn
	le.PutUint64(h[56:], checksum(h[:56]))
	return h
}

func checksum(b []byte) uint64 {
	f := fnv.New64a()
	f.Write(b)
	return f.Sum64()
}

// decode reads a handle. Its errors wrap [gpu.ErrHandle].
func decode(h gpu.Handle) (source, error) {
	le := binary.LittleEndian
	if m := le.Uint64(h[0:]); m != handleMagic {
		return source{}, fmt.Errorf("magic %#x, want %#x: not a softgpu handle: %w", m, uint64(handleMagic), gpu.ErrHandle)
	}
	if v := le.Uint32(h[8:]); v != handleVersion {
		return source{}, fmt.Errorf("handle version %d, want %d: %w", v, handleVersion, gpu.ErrHandle)
	}
	if got, want := le.Uint64(h[56:]), checksum(h[:56]); got != want {
		return source{}, fmt.Errorf("handle checksum %#x, want %#x: %w", got, want, gpu.ErrHandle)
	}
	s := source{
		owner: process{pid: int32(le.Uint32(h[12:])), start: le.Uint64(h[16:])},
		inode: le.Uint64(h[24:]),
		size:  le.Uint64(h[32:]),
		fd:    int32(le.Uint32(h[40:])),
		id:    busID{domain: le.Uint32(h[44:]), bus: h[48], devfn: h[49]},
	}
	if s.owner.pid <= 0 || s.fd < 0 || s.size == 0 || s.size > 1<<47 {
		return source{}, fmt.Errorf("pid %d, descriptor %d, size %d are not valid: %w", s.owner.pid, s.fd, s.size, gpu.ErrHandle)
	}
	if s.encode() != h {
		return source{}, fmt.Errorf("reserved bytes are not zero: %w", gpu.ErrHandle)
	}
	return s, nil
}

// open opens the allocation's memfd, by way of its owner's descriptor. Nothing
// that the handle says is believed: the file must be the very one, sealed
// against shrinking so that its owner cannot take it away under our feet.
func (s source) open() (fd int, err error) {
	refuse := func(format string, args ...any) (int, error) {
		return -1, fmt.Errorf(format+": %w", append(args, gpu.ErrHandle)...)
	}
	pid := s.owner.pid
	// An open /proc/<pid> stays with its process: it does not come to mean
	// another when the pid is used again.
	dir, err := unix.Open("/proc/"+strconv.Itoa(int(pid)), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return refuse("pid %d: its owner is gone (%w)", pid, err)
	}
	defer unix.Close(dir)
	stat, err := readStat(dir)
	switch {
	case err != nil:
		return refuse("pid %d: its owner is gone (%w)", pid, err)
	case stat.dead:
		return refuse("pid %d: its owner is dead, and not yet reaped", pid)
	case stat.start != s.owner.start:
		return refuse("pid %d: started at tick %d, the handle's owner at %d: the pid was used again", pid, stat.start, s.owner.start)
	}
	name := "fd/" + strconv.Itoa(int(s.fd))
	var st unix.Stat_t
	if err = unix.Fstatat(dir, name, &st, 0); err == nil {
		err = s.match(&st) // before the open, which for a device may do something
	}
	if err == nil {
		fd, err = unix.Openat(dir, name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	}
	if err != nil {
		return refuse("pid %d, descriptor %d: %w", pid, s.fd, err)
	}
	if err := s.check(fd); err != nil {
		unix.Close(fd)
		return refuse("pid %d, descriptor %d: %w", pid, s.fd, err)
	}
	return fd, nil
}

func (s source) check(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := s.match(&st); err != nil {
		return err
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return errors.New("not sealed against shrinking")
	}
	return nil
}

func (s source) match(st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("file mode %#o is not that of a regular file", st.Mode)
	}
	if st.Ino != s.inode {
		return fmt.Errorf("inode %d, want %d: the allocation was freed", st.Ino, s.inode)
	}
	if uint64(st.Size) != roundUp(s.size) {
		return fmt.Errorf("file of %d bytes, want %d", st.Size, roundUp(s.size))
	}
	return nil
}

// lookup returns the identity of a living process.
func lookup(pid int) (process, error) {
	dir, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return process{}, err
	}
	defer unix.Close(dir)
	stat, err := readStat(dir)
	if err != nil {
		return process{}, err
	}
	return process{pid: int32(pid), start: stat.start}, nil
}

type procStat struct {
	start uint64
	dead  bool // zombie, or on its way out
}

func readStat(dir int) (procStat, error) {
	fd, err := unix.Openat(dir, "stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return procStat{}, err
	}
	f := os.NewFile(uintptr(fd), "stat")
	defer f.Close()
	var buf [4096]byte
	n, err := f.Read(buf[:])
	if err != nil {
		return procStat{}, errors.Unwrap(err)
	}
	return parseStat(buf[:n])
}

// parseStat reads a line of /proc/<pid>/stat. The name in parentheses may itself
// hold any character, so fields are counted after the last parenthesis.
func parseStat(line []byte) (procStat, error) {
	i := bytes.LastIndexByte(line, ')')
	fields := bytes.Fields(line[i+1:])
	const state, startTime = 0, 22 - 3 // field 3 is the first
	if i < 0 || len(fields) <= startTime {
		return procStat{}, fmt.Errorf("stat line %q: too short: %w", line, fs.ErrInvalid)
	}
	start, err := strconv.ParseUint(string(fields[startTime]), 10, 64)
	if err != nil {
		return procStat{}, fmt.Errorf("stat line %q: start time: %w", line, err)
	}
	s := fields[state][0]
	return procStat{start: start, dead: s == 'Z' || s == 'X' || s == 'x'}, nil
}
