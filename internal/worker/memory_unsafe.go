package worker

import "unsafe"

// addrOf is where mapped memory lies. The collector does not move it.
func addrOf(mapped []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mapped)))) }
