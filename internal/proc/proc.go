// Package proc reads the facts that /proc tells about a process: when it
// started, whether it is a zombie, which boot and which pid namespace it lives in.
//
// A pid alone names nobody: it is reused, and containers that share /dev/shm
// need not share the pid namespace. (pid, start ticks) within one namespace of
// one boot is unique. The package decides nothing about life and death; that is
// internal/registry. It has no state and may be used from any goroutine.
package proc

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrGone is returned for a pid that no process has.
var ErrGone = errors.New("proc: no such process")

// FS is a mounted procfs. The zero value is /proc.
type FS struct {
	Root string // empty means /proc
}

// Self is what a process tells others about itself.
type Self struct {
	PID          int32
	StartTicks   uint64
	BootIDHash   uint64 // FNV-1a 64 of the boot id's text
	PIDNamespace uint64 // inode; 0 if it cannot be read
}

func (f FS) path(name string) string {
	if f.Root == "" {
		return filepath.Join("/proc", name)
	}
	return filepath.Join(f.Root, name)
}

// Self describes the calling process.
func (f FS) Self() (Self, error) {
	// By "self", not by number: in a container /proc may be another namespace's.
	st, err := f.readStat("self")
	if err != nil {
		return Self{}, err
	}
	boot, err := os.ReadFile(f.path("sys/kernel/random/boot_id"))
	if err != nil {
		return Self{}, fmt.Errorf("proc: boot id: %w", err)
	}
	s := Self{
		PID:        int32(os.Getpid()),
		StartTicks: st.StartTicks,
		BootIDHash: HashBootID(string(boot)),
	}
	if link, err := os.Readlink(f.path("self/ns/pid")); err == nil {
		s.PIDNamespace = parseNamespace(link)
	}
	return s, nil
}

// Stat reads the state of process pid. It returns [ErrGone] only if the kernel,
// too, says that there is no such process: a procfs that is not mounted, or
// that hides others, proves nothing.
func (f FS) Stat(pid int) (Stat, error) {
	st, err := f.readStat(strconv.Itoa(pid))
	if err == nil {
		if st.PID != pid {
			return Stat{}, fmt.Errorf("proc: stat of %d: is about %d", pid, st.PID)
		}
		return st, nil
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		if unix.Kill(pid, 0) == unix.ESRCH {
			return Stat{}, fmt.Errorf("%w: %d", ErrGone, pid)
		}
	}
	return Stat{}, err
}

// Pidfd opens a descriptor of process pid, close-on-exec and non-blocking. It
// returns [ErrGone] if there is no such process. The pid may have been reused:
// compare its start ticks after this call.
func (f FS) Pidfd(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	switch {
	case err == unix.ESRCH:
		return -1, fmt.Errorf("%w: %d", ErrGone, pid)
	case err != nil:
		return -1, fmt.Errorf("proc: pidfd of %d: %w", pid, err)
	}
	return fd, nil
}

func (f FS) readStat(dir string) (Stat, error) {
	file, err := os.Open(f.path(dir + "/stat"))
	if err != nil {
		return Stat{}, fmt.Errorf("proc: %w", err)
	}
	defer file.Close()
	// The whole file, since a command name may hold a newline.
	b, err := io.ReadAll(io.LimitReader(file, 4096))
	if err != nil {
		return Stat{}, fmt.Errorf("proc: %w", err)
	}
	return ParseStat(b)
}

// HashBootID is FNV-1a 64 of the text of /proc/sys/kernel/random/boot_id,
// without the newline.
func HashBootID(text string) uint64 {
	h := fnv.New64a()
	io.WriteString(h, strings.TrimSpace(text))
	return h.Sum64()
}

// parseNamespace takes "pid:[4026531836]"; 0 if it is something else.
func parseNamespace(link string) uint64 {
	s, ok := strings.CutPrefix(link, "pid:[")
	if !ok {
		return 0
	}
	s, ok = strings.CutSuffix(s, "]")
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
