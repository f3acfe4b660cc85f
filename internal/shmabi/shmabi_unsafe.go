package shmabi

import (
	"fmt"
	"unsafe"
)

// A wrong size or offset does not compile, and the message has both numbers.
var (
	_ [ControlBytes]struct{}  = [unsafe.Sizeof(ControlBlock{})]struct{}{}
	_ [HeaderBytes]struct{}   = [unsafe.Sizeof(RegistryHeader{})]struct{}{}
	_ [LaneBytes]struct{}     = [unsafe.Sizeof(LaneControl{})]struct{}{}
	_ [DescriptorLen]struct{} = [unsafe.Sizeof(Descriptor{})]struct{}{}
	_ [DescriptorFix]struct{} = [unsafe.Offsetof(Descriptor{}.Plans)]struct{}{}
	_ [64]struct{}            = [unsafe.Sizeof(LaneHeader{})]struct{}{}
	_ [64]struct{}            = [unsafe.Sizeof(Completion{})]struct{}{}
	_ [16]struct{}            = [unsafe.Sizeof(Identity{})]struct{}{}
	_ [PlanLen]struct{}       = [unsafe.Sizeof(Plan{})]struct{}{}
	_ [24]struct{}            = [unsafe.Offsetof(RegistryHeader{}.State)]struct{}{}
	_ [32]struct{}            = [unsafe.Offsetof(RegistryHeader{}.Owner)]struct{}{}
	_ [96]struct{}            = [unsafe.Offsetof(RegistryHeader{}.Rail)]struct{}{}
	_ [352]struct{}           = [unsafe.Offsetof(RegistryHeader{}.ArenaHandle)]struct{}{}
	_ [416]struct{}           = [unsafe.Offsetof(RegistryHeader{}.Life)]struct{}{}
	_ [420]struct{}           = [unsafe.Offsetof(RegistryHeader{}.Wake)]struct{}{}
	_ [440]struct{}           = [unsafe.Offsetof(RegistryHeader{}.Flags)]struct{}{}
	_ [24]struct{}            = [unsafe.Offsetof(LaneHeader{}.SenderEpoch)]struct{}{}
	_ [40]struct{}            = [unsafe.Offsetof(LaneHeader{}.Doorbell)]struct{}{}
)

// ControlAt returns the control block at the start of b, which stays the owner
// of the memory. It fails if b is too short or not aligned; it validates
// nothing else.
func ControlAt(b []byte) (*ControlBlock, error) {
	if len(b) < ControlBytes {
		return nil, fmt.Errorf("shmabi: control block: have %d bytes, need %d", len(b), ControlBytes)
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%64 != 0 {
		return nil, fmt.Errorf("shmabi: control block: %p is not on a cache line", p)
	}
	return (*ControlBlock)(p), nil
}

// LaneOffset is where lane i begins in a control block.
func LaneOffset(i int) int { return HeaderBytes + i*LaneBytes }

// DoorbellOffset is where lane i's doorbell lies in a control block.
func DoorbellOffset(i int) int {
	return LaneOffset(i) + int(unsafe.Offsetof(LaneHeader{}.Doorbell))
}

// Doorbell returns the address of lane i's doorbell, and the page of block that
// it lies on. block must begin on a page.
func Doorbell(block []byte, i int) (addr uint64, page []byte) {
	const pageSize = 4096
	at := DoorbellOffset(i)
	first := at &^ (pageSize - 1)
	return uint64(uintptr(unsafe.Pointer(&block[at]))), block[first:min(first+pageSize, len(block))]
}
