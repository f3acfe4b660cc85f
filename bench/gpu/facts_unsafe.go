package main

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probeRobust asks for the calling thread's robust list.
func probeRobust() error {
	var head, length uintptr
	if _, _, errno := unix.Syscall(unix.SYS_GET_ROBUST_LIST, 0, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&length))); errno != 0 {
		return errno
	}
	return nil
}

// wordAt is a 64-bit word of shared memory.
func wordAt(mem []byte, offset int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[offset : offset+8][0]))
}

func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }
