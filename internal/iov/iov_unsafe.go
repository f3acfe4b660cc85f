// Package iov moves bytes between sockets and registered memory, which is known by its
// address as a number: scattered reads and gathered writes, without copies.
//
// It owns the structs that readv and sendmsg take. It keeps no memory alive and checks no
// range: whoever registered the memory does. It has no state and starts nothing.
package iov

import (
	"structs"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Vec is struct iovec of <sys/uio.h>: a run of memory. The base is a number, since registered
// memory is known by number and is not the garbage collector's business: its owner
// keeps it alive, and our own buffers live in the structs that use them.
type Vec struct {
	_    structs.HostLayout
	Base uintptr
	Len  uintptr
}

var _ [unsafe.Sizeof(unix.Iovec{})]struct{} = [unsafe.Sizeof(Vec{})]struct{}{}

// Of is the run of memory that b describes. b must be of the heap.
func Of(b []byte) Vec {
	return Vec{Base: uintptr(unsafe.Pointer(unsafe.SliceData(b))), Len: uintptr(len(b))}
}

// Advance takes n bytes off the front of vs, which it changes.
func Advance(vs []Vec, n int) []Vec {
	for n > 0 && uintptr(n) >= vs[0].Len {
		n -= int(vs[0].Len)
		vs = vs[1:]
	}
	if n > 0 {
		vs[0].Base += uintptr(n)
		vs[0].Len -= uintptr(n)
	}
	return vs
}

// Read reads into vs, of which there must be one, from a non-blocking socket.
func Read(fd uintptr, vs []Vec) (int, syscall.Errno) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&vs[0])), uintptr(len(vs)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// Msg is struct msghdr of <sys/socket.h>, as far as it is used. The zero value is ready
// for use.
type Msg struct {
	_          structs.HostLayout
	name       uintptr
	namelen    uint32
	_          uint32
	iov        *Vec
	iovlen     uint64
	control    uintptr
	controllen uint64
	flags      int32
	_          int32
}

var _ [unsafe.Sizeof(unix.Msghdr{})]struct{} = [unsafe.Sizeof(Msg{})]struct{}{}

// Write writes vs, of which there must be one, to a socket, without blocking and without
// SIGPIPE: the process may not be Go's own. m is the caller's, to be used again.
func Write(fd uintptr, m *Msg, vs []Vec) (int, syscall.Errno) {
	m.iov, m.iovlen = &vs[0], uint64(len(vs))
	for {
		n, _, errno := unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(m)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// CopyTo writes src to registered memory. Like a card's, its accesses are no
// business of the race detector, which looks into the builtin copy even here; so
// under it this copies words.
//
//go:norace
//go:noinline
func CopyTo(addr uint64, src []byte) {
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
