package verbs_test

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// alloc maps n bytes: cards pin pages, and those of the heap have other tenants.
func alloc(t testing.TB, n int) (uint64, []byte) {
	mem, err := unix.Mmap(-1, 0, max(n, 1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), mem[:n]
}
