package verbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/nic"
)

// GPUMemory is how cards are told of GPU memory.
type GPUMemory uint8

const (
	// ByEither is ByDMABuf where that works, and else ByPeermem.
	ByEither GPUMemory = iota
	// ByPeermem is by address, of which the kernel module nvidia-peermem tells the card.
	ByPeermem
	// ByDMABuf is by a dma-buf that the GPU's driver exports.
	ByDMABuf
)

// GPU is what registration wants to know of GPU memory. One that is a [gpu.Exporter] is
// asked for dma-bufs.
type GPU interface {
	// Classify says what an address range is.
	Classify(addr, length uint64) gpu.Range
}

// told logs how the card was told of GPU memory, if that is news.
func (d *Device) told(way GPUMemory) {
	if old := d.way.Swap(uint32(way)); old != uint32(way) {
		d.log.Info("GPU memory registered", "by", map[GPUMemory]string{ByPeermem: "nvidia-peermem", ByDMABuf: "dma-buf"}[way])
	}
}

// registerDMABuf has the range exported as a file, which the card imports. The region
// goes by the range's own addresses, and keeps what the file stands for.
func (m *mr) registerDMABuf(f *frame, addr, length uint64, access nic.Access) error {
	lib := m.pd.d.p.lib
	if !lib.regDMABufMR.Found() {
		return fmt.Errorf("this libibverbs has no ibv_reg_dmabuf_mr, want version 34 or later: %w", errors.ErrUnsupported)
	}
	e, ok := m.pd.d.p.opts.GPU.(gpu.Exporter)
	if !ok {
		return fmt.Errorf("these GPUs export none: %w", errors.ErrUnsupported)
	}
	fd, offset, err := e.DMABuf(addr, length)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	at, errno := lib.pointer(f, lib.regDMABufMR, m.pd.at, uintptr(offset), uintptr(length), uintptr(addr), uintptr(fd), uintptr(access))
	if at == 0 {
		if errno == unix.EOPNOTSUPP || errno == unix.ENOSYS || errno == unix.EPROTONOSUPPORT {
			return fmt.Errorf("the card's driver takes none: %w", errno)
		}
		return fmt.Errorf("the card does not take it: %w", errno)
	}
	m.at = at
	m.keys()
	return nil
}
