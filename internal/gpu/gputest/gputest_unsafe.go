package gputest

import (
	"sync/atomic"
	"unsafe"
)

// addressOf returns where mem is.
func addressOf(mem []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// word returns the nth 64-bit word of mem, which begins on a page.
func word(mem []byte, n int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[8*n : 8*n+8][0]))
}
