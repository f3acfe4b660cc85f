package cuda

import (
	"errors"
	"fmt"
	"os"

	"github.com/railhop/railhop/internal/gpu"
)

var _ gpu.Exporter = (*Provider)(nil)

// pointerRDMA is CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE.
const pointerRDMA = 15

// DMABuf implements [gpu.Exporter]. The file is of the pages that the range touches,
// which may be of several mappings.
func (p *Provider) DMABuf(at, length uint64) (fd int, offset uint64, err error) {
	fail := func(err error) (int, uint64, error) {
		return -1, 0, fmt.Errorf("cuda: export %d bytes at %#x as a dma-buf: %w", length, at, err)
	}
	r := p.Classify(at, length)
	if r.Kind != gpu.DeviceMemory {
		return fail(fmt.Errorf("it is %v memory, want device memory", r.Kind))
	}
	switch {
	case !p.drv.memGetHandleForRange.Found():
		return fail(fmt.Errorf("driver %d has no cuMemGetHandleForAddressRange, want 11070 or later: %w", p.drv.version, errors.ErrUnsupported))
	case !p.find(r.BusID).info.DMABuf:
		return fail(fmt.Errorf("the driver does not export memory of device %s, which takes NVIDIA's open kernel modules and Linux 5.12: %w", r.BusID, errors.ErrUnsupported))
	}
	f, err := p.frames.get()
	if err != nil {
		return fail(err)
	}
	defer p.frames.put(f)
	f.lock()
	defer f.unlock()
	defer p.anyContext(f)()

	page := uint64(os.Getpagesize())
	start := at / page * page
	end := (at + length + page - 1) / page * page
	f.word = 0
	code := f.callOut(p.drv.memGetHandleForRange, uintptr(start), uintptr(end-start), rangeDMABuf, 0)
	if code != success {
		err := p.check("cuMemGetHandleForAddressRange", code)
		if !p.rdmaCapable(f, at) {
			err = fmt.Errorf("it was made without gpuDirectRDMACapable, as by cuMemCreate: %w", err)
		}
		return fail(err)
	}
	return int(int32(uint32(f.word))), at - start, nil
}

// rdmaCapable reports whether memory was made so that NICs may reach it; also true
// where the driver does not say.
func (p *Provider) rdmaCapable(f *frame, at uint64) bool {
	f.pointerAttrs[0], f.pointerValues[0] = pointerRDMA, 1
	f.pointerData[0] = uint64(addr(&f.pointerValues[0]))
	code := f.call(p.drv.pointerGetAttributes, 1, addr(&f.pointerAttrs), addr(&f.pointerData), uintptr(at))
	return code != success || f.pointerValues[0]&0xff != 0
}
