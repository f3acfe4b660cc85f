package cuda

import (
	"errors"
	"fmt"
)

// open counts an Open, of which the first gets the device ready.
func (d *device) open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.lostErr(); err != nil {
		return err
	}
	if d.context.Load() == 0 {
		if err := d.start(); err != nil {
			return err
		}
	}
	d.opens++
	return nil
}

// start retains the primary context, loads the kernel, and proves what the device
// is said to have. The caller holds d.mu, and the kernel and the rest do not change
// until stop.
func (d *device) start() error {
	p := d.p
	f, err := p.frames.get()
	if err != nil {
		return err
	}
	defer p.frames.put(f)
	f.lock()
	defer f.unlock()
	f.word = 0
	if err := d.check("cuDevicePrimaryCtxRetain", f.callOut(p.drv.primaryCtxRetain, uintptr(d.ordinal))); err != nil {
		return err
	}
	d.context.Store(f.word)
	err = d.do(d.prepare)
	if err == nil {
		return nil
	}
	return errors.Join(err, d.stop())
}

func (d *device) prepare(f *frame) error {
	drv := d.p.drv
	if !d.p.opts.LowPriority {
		if err := d.check("cuCtxGetStreamPriorityRange", f.call(drv.ctxGetStreamPriorityRange, addr(&f.pair[0]), addr(&f.pair[1]))); err != nil {
			return err
		}
		d.priority = int32(uint32(f.pair[1]))
	}
	s, err := d.newStaging(f)
	if err != nil {
		return err
	}
	d.stagings = append(d.stagings, s)
	if d.write64.Found() {
		if err := d.proveWrites(f, s); err != nil {
			if d.lostErr() != nil {
				return err
			}
			d.noWrites.Store(true)
			d.p.log.Warn("no stream memory operations", "device", d.info.BusID, "err", err)
		}
	}
	if d.info.BatchedCopy && !d.noKernel.Load() {
		if err := d.loadKernel(f, s); err != nil {
			if d.lostErr() != nil {
				return err
			}
			d.kernel = 0
			d.noKernel.Store(true)
			if noCompiler(err) {
				for _, other := range d.p.devices {
					other.noKernel.Store(true)
				}
			}
			d.p.log.Warn("no gather kernel: scattered memory is copied run by run", "device", d.info.BusID, "err", err)
		}
	}
	return nil
}

// proveWrites has a stream write a word.
func (d *device) proveWrites(f *frame, s *staging) error {
	const value = 0x5261696c686f7021
	word := hostWord(s.host)
	word.Store(0)
	if err := d.check("cuStreamWriteValue64", f.call(d.write64, uintptr(s.stream), uintptr(s.device), value, 0)); err != nil {
		return err
	}
	if err := d.check("cuStreamSynchronize", f.call(d.p.drv.streamSynchronize, uintptr(s.stream))); err != nil {
		return err
	}
	if got := word.Load(); got != value {
		return fmt.Errorf("a stream wrote %#x: the word is %#x", uint64(value), got)
	}
	return nil
}

// stop gives all that start took back. The caller holds d.mu.
func (d *device) stop() error {
	err := d.free(func(f *frame) error {
		var err error
		for _, t := range d.tables {
			err = errors.Join(err, d.freeTable(f, t))
		}
		for _, s := range d.stagings {
			err = errors.Join(err, d.freeStaging(f, s))
		}
		if d.module != 0 {
			err = errors.Join(err, d.check("cuModuleUnload", f.call(d.p.drv.moduleUnload, uintptr(d.module))))
		}
		return err
	})
	d.tables, d.stagings, d.module, d.kernel = nil, nil, 0, 0
	f, failed := d.p.frames.get()
	if failed != nil {
		return errors.Join(err, failed)
	}
	defer d.p.frames.put(f)
	code := f.call(d.p.drv.primaryCtxRelease, uintptr(d.ordinal))
	d.context.Store(0)
	if d.lostErr() != nil {
		return nil
	}
	return errors.Join(err, d.check("cuDevicePrimaryCtxRelease", code))
}

// pinned allocates host memory that the device reads and writes at the second
// address.
func (d *device) pinned(f *frame, size int) (host, device uint64, err error) {
	drv := d.p.drv
	if err := d.check("cuMemHostAlloc", f.callOut(drv.memHostAlloc, uintptr(size), hostPortable|hostDeviceMap)); err != nil {
		return 0, 0, fmt.Errorf("%d bytes: %w", size, err)
	}
	host = f.word
	if err := d.check("cuMemHostGetDevicePointer", f.callOut(drv.memHostGetDevicePointer, uintptr(host), 0)); err != nil {
		f.call(drv.memFreeHost, uintptr(host))
		return 0, 0, err
	}
	return host, f.word, nil
}

func (d *device) unpin(f *frame, host uint64) error {
	return d.check("cuMemFreeHost", f.call(d.p.drv.memFreeHost, uintptr(host)))
}
