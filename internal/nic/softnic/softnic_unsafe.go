package softnic

import (
	"structs"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// iovec is struct iovec of <sys/uio.h>. The base is a number, since registered
// memory is known by number and is not the garbage collector's business: its owner
// keeps it alive, and our own buffers live in the structs that use them.
type iovec struct {
	_    structs.HostLayout
	base uintptr
	len  uintptr
}

var _ [unsafe.Sizeof(unix.Iovec{})]struct{} = [unsafe.Sizeof(iovec{})]struct{}{}

// iovOf is the run of memory that b describes. b must be of the heap.
func iovOf(b []byte) iovec {
	return iovec{base: uintptr(unsafe.Pointer(unsafe.SliceData(b))), len: uintptr(len(b))}
}

func readv(fd uintptr, iov []iovec) (int, syscall.Errno) {
	n, _, errno := unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
	return int(n), errno
}

func writev(fd uintptr, iov []iovec) (int, syscall.Errno) {
	n, _, errno := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
	return int(n), errno
}

// copyTo writes src to registered memory. Like a card's, its accesses are no
// business of the race detector, which looks into the builtin copy even here; so
// this copies words.
//
//go:norace
//go:noinline
func copyTo(addr uint64, src []byte) {
	at := uintptr(addr)
	p := *(*unsafe.Pointer)(unsafe.Pointer(&at))
	i := 0
	for ; i+8 <= len(src); i += 8 {
		*(*uint64)(unsafe.Add(p, i)) = *(*uint64)(unsafe.Pointer(&src[i]))
	}
	for ; i < len(src); i++ {
		*(*byte)(unsafe.Add(p, i)) = src[i]
	}
}
