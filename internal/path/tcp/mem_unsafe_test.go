package tcp

import "unsafe"

// addressOf returns where b lies. The caller keeps b alive.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
