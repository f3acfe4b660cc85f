package verbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

// asError is nil for 0.
func asError(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// memoryError is memory that the card does not take, and why in words that help.
type memoryError struct {
	why   string
	errno syscall.Errno
}

func (e *memoryError) Error() string { return fmt.Sprintf("%s: %v", e.why, e.errno) }

// explain finds the cause of a registration that failed. exported is why the memory
// is no dma-buf, if that was tried.
func (p *Provider) explain(errno syscall.Errno, kind gpu.Kind, length uint64, exported error) error {
	c := cause{errno: errno, kind: kind, length: length, limit: math.MaxUint64, peermem: p.peermem(), exported: exported}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil {
		c.limit = limit.Cur
	}
	return &memoryError{c.words(), errno}
}

// peermem reports whether a kernel module is loaded by which cards reach GPU memory.
func (p *Provider) peermem() bool {
	for _, name := range [...]string{"nvidia_peermem", "nv_peer_mem"} {
		if _, err := os.Stat(filepath.Join(p.opts.Sysfs, "module", name)); err == nil {
			return true
		}
	}
	return false
}

// cause is what is known of a registration that failed.
type cause struct {
	errno    syscall.Errno
	kind     gpu.Kind
	length   uint64
	limit    uint64 // of locked memory, in bytes
	peermem  bool
	exported error
}

func (c cause) words() string {
	const unlimited = math.MaxUint64
	switch {
	case c.kind == gpu.DeviceMemory && c.exported != nil && !errors.Is(c.exported, errors.ErrUnsupported):
		return fmt.Sprintf("GPU memory that cannot be had as a dma-buf (%v)", c.exported)
	case c.kind == gpu.DeviceMemory && !c.peermem:
		return "GPU memory, and neither is the kernel module nvidia-peermem loaded nor does the driver export it as a dma-buf: try modprobe nvidia-peermem, or WITH_NVIDIA_PEERMEM=0 for dma-buf"
	case c.kind == gpu.DeviceMemory:
		return "GPU memory that nvidia-peermem does not take: memory of cuMemCreate (such as PyTorch's expandable_segments) needs dma-buf, WITH_NVIDIA_PEERMEM=0"
	case c.kind == gpu.ManagedMemory:
		return "managed GPU memory, which no card can reach"
	case (c.errno == syscall.ENOMEM || c.errno == syscall.EAGAIN || c.errno == syscall.EPERM) && c.limit != unlimited && c.limit < c.length+1<<20:
		return fmt.Sprintf("the limit of locked memory is %d bytes: raise it with ulimit -l or LimitMEMLOCK", c.limit)
	case c.errno == syscall.ENOMEM:
		return "no memory for it; where the limit of locked memory (ulimit -l) is not it, the card's or the kernel's is"
	case c.errno == syscall.EFAULT:
		return "not all of it is mapped, or not as the access asks"
	}
	return "the card does not take it"
}
