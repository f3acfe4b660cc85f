package cuda

import "github.com/railhop/railhop/internal/gpu"

// What is asked of an address: CU_POINTER_ATTRIBUTE_…, in the order of frame.pointerValues.
const (
	pointerContext    = iota // where it was allocated; 0 for memory of no context: mappings, pools
	pointerMemoryType        // 1 host, 2 device; 0 if the driver does not know the address
	pointerManaged
	pointerOrdinal
	pointerLegacy // of cuMemAlloc, or an import: exactly one range
	pointerStart
	pointerSize
	pointerMapped
	pointerAttributes
)

// attributeNumbers are theirs in cuda.h.
var attributeNumbers = [pointerAttributes]uint32{1, 2, 8, 9, 10, 11, 12, 13}

const (
	memoryHost, memoryDevice = 1, 2
	// chunkBytes is the least that can be mapped into a reserved range, and no more
	// of such a range is believed at a time: it may have holes.
	chunkBytes = 2 << 20
)

// Classify says what the whole of [addr, addr+length) is: device memory if all of it
// is mapped and on one device, and, unless it is made of mappings, is one
// allocation. Memory that was allocated in a context other than the device's primary
// one is of no use to streams here, and unknown.
func (p *Provider) Classify(at, length uint64) gpu.Range {
	if length == 0 || at+length < at {
		return gpu.Range{}
	}
	f, err := p.frames.get()
	if err != nil {
		return gpu.Range{}
	}
	defer p.frames.put(f)
	f.lock()
	defer f.unlock()
	defer p.anyContext(f)()

	end := at + length
	first, to := p.ask(f, at, end)
	if first.Kind == gpu.UnknownMemory {
		return gpu.Range{}
	}
	for to < end {
		var r gpu.Range
		if r, to = p.ask(f, to, end); r != first {
			return gpu.Range{}
		}
	}
	if first.Kind == gpu.DeviceMemory && !p.find(first.BusID).within(at, end) {
		return gpu.Range{}
	}
	return first
}

// ask says what memory at an address is, and how far that is known to hold: at least
// one byte, at most to end. An allocation that ends before that is unknown.
func (p *Provider) ask(f *frame, at, end uint64) (r gpu.Range, to uint64) {
	f.pointerAttrs = attributeNumbers
	f.pointerValues = [pointerAttributes]uint64{}
	for i := range f.pointerData {
		f.pointerData[i] = uint64(addr(&f.pointerValues[i]))
	}
	code := f.call(p.drv.pointerGetAttributes, pointerAttributes, addr(&f.pointerAttrs), addr(&f.pointerData), uintptr(at))
	if code != success {
		return gpu.Range{}, end
	}
	v := &f.pointerValues
	start, size := v[pointerStart], v[pointerSize]
	inside := at >= start && at-start < size
	to = min(end, at/chunkBytes*chunkBytes+chunkBytes)
	if inside {
		to = min(to, start+size)
	}
	whole := inside && end-start <= size
	if whole && v[pointerLegacy]&0xff != 0 {
		to = end
	}
	switch {
	case v[pointerManaged]&0xff != 0:
		return gpu.Range{Kind: gpu.ManagedMemory}, to
	case uint32(v[pointerMemoryType]) == memoryHost:
		if whole {
			to = end
		}
		return gpu.Range{Kind: gpu.HostMemory}, to
	case uint32(v[pointerMemoryType]) != memoryDevice:
		return gpu.Range{}, end
	}
	d := p.byOrdinal(int32(uint32(v[pointerOrdinal])))
	if d == nil || v[pointerMapped]&0xff == 0 || v[pointerLegacy]&0xff != 0 && !whole {
		return gpu.Range{}, end
	}
	if ctx := d.context.Load(); ctx != 0 && v[pointerContext] != 0 && v[pointerContext] != ctx {
		return gpu.Range{}, end
	}
	return gpu.Range{Kind: gpu.DeviceMemory, BusID: d.info.BusID}, to
}

// anyContext makes some context of this process current on the calling thread if
// none is: the driver answers questions about addresses only then. It returns what
// takes it away again.
func (p *Provider) anyContext(f *frame) (restore func()) {
	if f.callOut(p.drv.ctxGetCurrent) != success || f.word != 0 {
		return func() {}
	}
	for _, d := range p.devices {
		f.pair = [2]uint64{}
		if f.call(p.drv.primaryCtxGetState, uintptr(d.ordinal), addr(&f.pair[0]), addr(&f.pair[1])) != success || uint32(f.pair[1]) == 0 {
			continue
		}
		if f.callOut(p.drv.primaryCtxRetain, uintptr(d.ordinal)) != success {
			continue
		}
		f.call(p.drv.ctxSetCurrent, uintptr(f.word))
		return func() {
			f.call(p.drv.ctxSetCurrent, 0)
			f.call(p.drv.primaryCtxRelease, uintptr(d.ordinal))
		}
	}
	return func() {}
}
