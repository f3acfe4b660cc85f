package cuda

import (
	"fmt"
	"runtime"
	"structs"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/dl"
	"github.com/railhop/railhop/internal/gpu"
)

const (
	textBytes  = 256
	batchSpans = 64 // of one call of cuMemcpyBatchAsync
)

// frame is what calls need beside their integers: arguments, out-parameters and
// structs. It is mapped, so that it neither moves nor is collected. One goroutine
// uses it at a time.
type frame struct {
	_    structs.HostLayout
	args [dl.MaxArgs]uintptr

	word    uint64    // an out-parameter
	pair    [2]uint64 // two
	context uint64    // see enter
	mode    int32
	locked  int32

	pointerAttrs  [pointerAttributes]uint32 // which, in order
	pointerData   [pointerAttributes]uint64 // addresses of pointerValues
	pointerValues [pointerAttributes]uint64

	handle [gpu.HandleSize]byte // CUipcMemHandle
	text   [textBytes]byte

	launch     launchArgs
	launchSize uint64
	extra      [5]uint64 // for cuLaunchKernel: launch, by buffer

	batchDst, batchSrc, batchLength [batchSpans]uint64
	batchAttrs                      batchAttributes
	batchFirst, batchFailed         uint64
}

// launchArgs is Arguments of gather.cu.
type launchArgs struct {
	_         structs.HostLayout
	spans     uint64
	arrived   uint64
	done      uint64
	doneValue uint64
	bell      uint64
	bellValue uint64
	count     uint32
	share     uint32
	team      uint32
	_         uint32
}

// batchAttributes is CUmemcpyAttributes.
type batchAttributes struct {
	_           structs.HostLayout
	sourceOrder uint32
	src, dst    [2]uint32 // CUmemLocation: type, id
	flags       uint32
}

var (
	_ [64]struct{} = [unsafe.Sizeof(launchArgs{})]struct{}{}
	_ [48]struct{} = [unsafe.Offsetof(launchArgs{}.count)]struct{}{}
	// Span of gather.cu is the seam's Copy.
	_ [24]struct{} = [unsafe.Sizeof(gpu.Copy{})]struct{}{}
	_ [0]struct{}  = [unsafe.Offsetof(gpu.Copy{}.Dst)]struct{}{}
	_ [8]struct{}  = [unsafe.Offsetof(gpu.Copy{}.Src)]struct{}{}
	_ [16]struct{} = [unsafe.Offsetof(gpu.Copy{}.Length)]struct{}{}
	_ [24]struct{} = [unsafe.Sizeof(batchAttributes{})]struct{}{}
	_ [20]struct{} = [unsafe.Offsetof(batchAttributes{}.flags)]struct{}{}
	_ [0]struct{}  = [unsafe.Sizeof(frame{}) / 4097]struct{}{}
)

// addr is where mapped memory is.
func addr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

func (f *frame) wordAddr() uintptr { return addr(&f.word) }
func (f *frame) textAddr() uintptr { return addr(&f.text) }

// call calls p. It allocates nothing: args stays on the stack, and what the driver
// gets is the frame's copy.
func (f *frame) call(p dl.Proc, args ...uintptr) int32 {
	n := copy(f.args[:], args)
	return int32(p.Call(f.args[:n]...))
}

// callOut calls p with the address of f.word before the other arguments.
func (f *frame) callOut(p dl.Proc, args ...uintptr) int32 {
	f.args[0] = f.wordAddr()
	n := copy(f.args[1:], args)
	return int32(p.Call(f.args[:n+1]...))
}

// string returns the text that a call has put into the frame.
func (f *frame) string() string {
	f.text[textBytes-1] = 0
	return unix.ByteSliceToString(f.text[:])
}

// setText puts a string with its NUL into the frame.
func (f *frame) setText(s string) uintptr {
	n := copy(f.text[:textBytes-1], s)
	f.text[n] = 0
	return f.textAddr()
}

// setLaunch prepares what does not change between launches.
func (f *frame) setLaunch() {
	f.launchSize = uint64(unsafe.Sizeof(f.launch))
	f.extra = [5]uint64{launchPointer, uint64(addr(&f.launch)), launchSize, uint64(addr(&f.launchSize)), launchEnd}
}

func (f *frame) lock()   { runtime.LockOSThread() }
func (f *frame) unlock() { runtime.UnlockOSThread() }

// cString copies a string of the driver's, of which it believes the first 256 bytes.
func cString(at uint64) string {
	p := *(**byte)(unsafe.Pointer(&at))
	for n := range textBytes {
		if *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) == 0 {
			return string(unsafe.Slice(p, n))
		}
	}
	return string(unsafe.Slice(p, textBytes))
}

// frames is a pool of frames. It keeps what it has mapped.
type frames struct {
	mu   sync.Mutex
	free []*frame
}

func (p *frames) get() (*frame, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		f := p.free[n-1]
		p.free = p.free[:n-1]
		return f, nil
	}
	const page, pages = 4096, 4
	b, err := unix.Mmap(-1, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("cuda: map %d bytes for calls: %w", pages*page, err)
	}
	for i := range pages {
		p.free = append(p.free, (*frame)(unsafe.Pointer(&b[i*page])))
	}
	f := p.free[pages-1]
	p.free = p.free[:pages-1]
	return f, nil
}

func (p *frames) put(f *frame) {
	p.mu.Lock()
	p.free = append(p.free, f)
	p.mu.Unlock()
}

// hostBytes is n bytes of memory that the driver has given.
func hostBytes(at uint64, n int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n)
}

// hostSpans is the same as spans.
func hostSpans(at uint64, n int) []gpu.Copy {
	return unsafe.Slice(*(**gpu.Copy)(unsafe.Pointer(&at)), n)
}

// hostWord is the same as a word that the device writes.
func hostWord(at uint64) *atomic.Uint64 {
	return *(**atomic.Uint64)(unsafe.Pointer(&at))
}

// addressOf is where mem is.
func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }
