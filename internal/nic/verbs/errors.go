package verbs

import (
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
	why string
	err error
}

func (e *memoryError) Error() string { return fmt.Sprintf("%s: %v", e.why, e.err) }

// explain finds the cause of a registration that failed.
func (p *Provider) explain(c cause) error {
	c.limit, c.peermem = math.MaxUint64, p.peermem()
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil {
		c.limit = limit.Cur
	}
	err := error(c.errno)
	if c.errno == 0 {
		err = c.dmabuf
	}
	return &memoryError{c.words(), err}
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
	errno   syscall.Errno // of the registration by address; 0 if that was not tried
	kind    gpu.Kind
	length  uint64
	limit   uint64 // of locked memory, in bytes
	peermem bool   // the kernel module is loaded
	way     GPUMemory
	dmabuf  error // why it is no dma-buf, if that was tried
}

func (c cause) words() string {
	const unlimited = math.MaxUint64
	switch {
	case c.kind == gpu.DeviceMemory:
		return c.deviceWords()
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

// deviceWords says of GPU memory what was tried, and why that is not enough.
func (c cause) deviceWords() string {
	var dmabuf, peermem string
	switch {
	case c.way == ByPeermem:
		dmabuf = "as a dma-buf it was not tried, for WITH_NVIDIA_PEERMEM=1"
	default:
		dmabuf = fmt.Sprintf("as a dma-buf: %v", c.dmabuf)
	}
	switch {
	case c.way == ByDMABuf:
		peermem = "by nvidia-peermem it was not tried, for WITH_NVIDIA_PEERMEM=0"
	case !c.peermem:
		peermem = "by nvidia-peermem: the kernel module is not loaded, try modprobe nvidia-peermem"
	default:
		peermem = "by nvidia-peermem: it does not take it; memory of cuMemCreate (such as PyTorch's expandable_segments) needs a dma-buf"
	}
	return "GPU memory: " + dmabuf + "; " + peermem
}
