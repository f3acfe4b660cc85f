package topo

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PageNode is the NUMA node of the page that holds addr. It is false if the page was
// never touched, is not there, or the kernel does not say.
func PageNode(addr uint64) (node int, ok bool) {
	page := uintptr(addr) &^ uintptr(os.Getpagesize()-1)
	status := int32(-1)
	// long move_pages(int pid, unsigned long count, void **pages, const int *nodes, int *status, int flags):
	// without nodes it only asks.
	_, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, 1, uintptr(unsafe.Pointer(&page)), 0, uintptr(unsafe.Pointer(&status)), 0)
	if errno != 0 || status < 0 {
		return 0, false
	}
	return int(status), true
}
