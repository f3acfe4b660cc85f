package nicfault_test

import (
	"runtime"
	"testing"
	"unsafe"
)

// alloc returns n bytes of the heap and their address.
func alloc(t testing.TB, n int) (uint64, []byte) {
	mem := make([]byte, n)
	t.Cleanup(func() { runtime.KeepAlive(mem) })
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), mem
}
