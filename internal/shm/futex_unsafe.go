package shm

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexOpWake        = 1
	futexOpWakePrivate = 1 | 128
	futexSize32        = 2
	futexPrivate       = 128
)

// WaitMax is the most words that [WaitAny] takes.
const WaitMax = 128

// Wait is one word that [WaitAny] waits for.
type Wait struct {
	Word    *atomic.Uint32
	Old     uint32 // wait only while the word has this value
	Private bool   // the word is not in shared memory
}

// Wake wakes at most n threads, of any process, that wait for a shared word. A
// word whose memory is gone wakes nobody.
func Wake(word *atomic.Uint32, n int) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWake, uintptr(n), 0, 0, 0)
}

// WakePrivate wakes this process's waiters for a word outside shared memory.
func WakePrivate(word *atomic.Uint32) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWakePrivate, WaitMax, 0, 0, 0)
}

// waitv is struct futex_waitv.
type waitv struct {
	val   uint64
	addr  uintptr
	flags uint32
	_     uint32
}

// WaitAny blocks its OS thread until a word is woken or differs from its Old
// value, for at most d; negative means for ever. It returns nil for all three:
// the caller looks at the words. It returns an error that wraps EFAULT if a
// word's memory is gone, and ENOSYS or EPERM where the kernel (before 5.16) or
// a seccomp filter does not offer the call.
func WaitAny(waits []Wait, d time.Duration) error {
	if len(waits) == 0 || len(waits) > WaitMax {
		return fmt.Errorf("shm: wait for %d words, valid are 1 to %d", len(waits), WaitMax)
	}
	var v [WaitMax]waitv
	for i, w := range waits {
		v[i] = waitv{val: uint64(w.Old), addr: uintptr(unsafe.Pointer(w.Word)), flags: futexSize32}
		if w.Private {
			v[i].flags |= futexPrivate
		}
	}
	var until *unix.Timespec
	if d >= 0 {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return fmt.Errorf("shm: clock: %w", err)
		}
		t := unix.NsecToTimespec(now.Nano() + int64(d))
		until = &t
	}
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX_WAITV, uintptr(unsafe.Pointer(&v[0])), uintptr(len(waits)), 0,
		uintptr(unsafe.Pointer(until)), unix.CLOCK_MONOTONIC, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.ETIMEDOUT, unix.EINTR:
		return nil
	}
	return fmt.Errorf("shm: wait for %d words: %w", len(waits), errno)
}
