package shm

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel walks a thread's robust list when the thread dies, and in each
// futex on it that holds the thread's id it sets OWNER_DIED and wakes a waiter:
// within microseconds of a SIGKILL, long before the process's memory, locks and
// descriptors are gone. struct robust_list_head in linux/futex.h.
type robustHead struct {
	next    uintptr // the first node, or the head itself
	offset  int     // from a node to its futex
	pending uintptr
}

// robustList is a list of one. It is private memory outside the Go heap, since
// the kernel keeps its address; only the futex lies in shared memory, and the
// offset bridges the two.
type robustList struct {
	head robustHead
	node uintptr // robust_list.next: back to the head
}

// robustWaiters tells the kernel that somebody waits for the word.
const robustWaiters uint32 = 0x80000000

// Robust is a futex that says that this process lives.
type Robust struct {
	word *atomic.Uint32
	tid  int
	stop chan struct{}
	done chan struct{}
	once sync.Once
}

// HoldRobust makes word, in shared memory, a robust futex: the id of a thread
// of this process, with the waiters bit set so that the thread's death always
// wakes. The thread is an OS thread of its own, parked until Release.
//
// The thread's robust list is replaced meanwhile. A C library that has made the
// thread (cgo) keeps its robust mutexes there; none is taken on this thread, and
// Release puts the list back.
func HoldRobust(word *atomic.Uint32) (*Robust, error) {
	r := &Robust{word: word, stop: make(chan struct{}), done: make(chan struct{})}
	held := make(chan error)
	go r.run(held)
	if err := <-held; err != nil {
		return nil, err
	}
	return r, nil
}

// Release clears the word, wakes its waiters and gives the thread back. The word
// must still be mapped. A second call does nothing.
func (r *Robust) Release() {
	r.once.Do(func() { close(r.stop) })
	<-r.done
}

// TID is the thread that holds the word.
func (r *Robust) TID() int { return r.tid }

func (r *Robust) run(held chan<- error) {
	defer close(r.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		held <- fmt.Errorf("shm: robust list: %w", err)
		return
	}
	defer unix.Munmap(page)
	list := (*robustList)(unsafe.Pointer(unsafe.SliceData(page)))
	list.head.next = uintptr(unsafe.Pointer(&list.node))
	list.head.offset = int(uintptr(unsafe.Pointer(r.word)) - uintptr(unsafe.Pointer(&list.node)))
	list.node = uintptr(unsafe.Pointer(&list.head))

	var old, oldSize uintptr
	if _, _, errno := unix.RawSyscall(unix.SYS_GET_ROBUST_LIST, 0, uintptr(unsafe.Pointer(&old)), uintptr(unsafe.Pointer(&oldSize))); errno != 0 {
		held <- fmt.Errorf("shm: read the robust list: %w", errno)
		return
	}
	if oldSize == 0 {
		oldSize = unsafe.Sizeof(list.head)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SET_ROBUST_LIST, uintptr(unsafe.Pointer(&list.head)), unsafe.Sizeof(list.head), 0); errno != 0 {
		held <- fmt.Errorf("shm: set the robust list: %w", errno)
		return
	}
	r.tid = unix.Gettid()
	// A file that was truncated takes the word away, not the process.
	err = Guard(func() error { r.word.Store(uint32(r.tid) | robustWaiters); return nil })
	held <- err
	if err == nil {
		<-r.stop
		Guard(func() error { r.word.Store(0); return nil })
	}
	unix.RawSyscall(unix.SYS_SET_ROBUST_LIST, old, oldSize, 0)
	Wake(r.word, WaitMax)
}
