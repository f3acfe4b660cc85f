package cli

import "unsafe"

// mappedAt is where mapped memory lies. The collector does not move it.
func mappedAt(mapped []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mapped)))) }
