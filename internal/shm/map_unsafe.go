package shm

import "unsafe"

// Contains reports whether addr lies in the mapping, such as the address of a
// [*FaultError].
func (m *Mapping) Contains(addr uintptr) bool {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(m.b)))
	return addr >= start && addr-start < uintptr(len(m.b))
}
