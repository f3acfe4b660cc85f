package topo

import "unsafe"

func hostAddress(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&mem[0]))) }
