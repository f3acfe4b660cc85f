package rdma_test

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapped returns fresh memory that stays where it is, and its address.
func mapped(t testing.TB, n int) ([]byte, uint64) {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
