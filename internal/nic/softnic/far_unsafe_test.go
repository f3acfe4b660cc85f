package softnic_test

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/railhop/railhop/internal/nic/nictest"
	"github.com/railhop/railhop/internal/nic/softnic"
)

// farAway is added to host addresses: nothing can be touched there.
const farAway = 1 << 60

// farMemory is host memory that goes by addresses that cannot be touched.
type farMemory struct{ in, out atomic.Int64 }

func (f *farMemory) Find(addr, _ uint64) (softnic.Copier, error) {
	if addr < farAway {
		return nil, nil
	}
	return f, nil
}

func (f *farMemory) CopyIn(dst uint64, src []byte) error {
	f.in.Add(int64(len(src)))
	copyWords(uintptr(dst-farAway), uintptr(unsafe.Pointer(unsafe.SliceData(src))), len(src))
	return nil
}

func (f *farMemory) CopyOut(dst []byte, src uint64) error {
	f.out.Add(int64(len(dst)))
	copyWords(uintptr(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(src-farAway), len(dst))
	return nil
}

// copyWords is no business of the race detector, as a card's accesses are not.
//
//go:norace
//go:noinline
func copyWords(to, from uintptr, n int) {
	dst, src := *(*unsafe.Pointer)(unsafe.Pointer(&to)), *(*unsafe.Pointer)(unsafe.Pointer(&from))
	for i := range n {
		*(*byte)(unsafe.Add(dst, i)) = *(*byte)(unsafe.Add(src, i))
	}
}

// TestFarConformance runs the conformance tests over memory that is staged.
func TestFarConformance(t *testing.T) {
	mem := &farMemory{}
	nictest.Run(t, func(t testing.TB) nictest.Setup {
		p, err := softnic.New(softnic.Options{Memory: mem, Devices: []softnic.DeviceConfig{{Name: "soft0", Addr: loopback}, {Name: "soft1", Addr: loopback}}})
		if err != nil {
			t.Fatal(err)
		}
		return nictest.Setup{Provider: p, DevA: "soft0", DevB: "soft1", Alloc: func(t testing.TB, n int) (uint64, []byte) {
			addr, b := alloc(t, n)
			return addr + farAway, b
		}}
	})
	if mem.in.Load() == 0 || mem.out.Load() == 0 {
		t.Errorf("%d bytes were staged in and %d out: want some", mem.in.Load(), mem.out.Load())
	}
}
