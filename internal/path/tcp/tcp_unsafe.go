package tcp

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
	for {
		n, _, errno := unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// msghdr is struct msghdr of <sys/socket.h>, as far as it is used.
type msghdr struct {
	_          structs.HostLayout
	name       uintptr
	namelen    uint32
	_          uint32
	iov        *iovec
	iovlen     uint64
	control    uintptr
	controllen uint64
	flags      int32
	_          int32
}

var _ [unsafe.Sizeof(unix.Msghdr{})]struct{} = [unsafe.Sizeof(msghdr{})]struct{}{}

// writev is sendmsg without SIGPIPE: the process may not be Go's own.
func writev(fd uintptr, m *msghdr, iov []iovec) (int, syscall.Errno) {
	m.iov, m.iovlen = &iov[0], uint64(len(iov))
	for {
		n, _, errno := unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(m)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// copyTo writes src to registered memory. Like a card's, its accesses are no
// business of the race detector, which looks into the builtin copy even here; so
// under it this copies words.
//
//go:norace
//go:noinline
func copyTo(addr uint64, src []byte) {
	at := uintptr(addr)
	p := *(*unsafe.Pointer)(unsafe.Pointer(&at))
	if !raceEnabled {
		copy(unsafe.Slice((*byte)(p), len(src)), src)
		return
	}
	i := 0
	for ; i+8 <= len(src); i += 8 {
		*(*uint64)(unsafe.Add(p, i)) = *(*uint64)(unsafe.Pointer(&src[i]))
	}
	for ; i < len(src); i++ {
		*(*byte)(unsafe.Add(p, i)) = src[i]
	}
}
