package pump

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The futexes are shared, not private: other processes ring them.
const (
	futexOpWait = 0
	futexOpWake = 1
)

// futexWait returns at once if *word is not Asleep. Interruptions and time-outs
// are no errors: the loop looks around in any case. unix.Syscall tells the
// scheduler, so that the parked thread does not hold a processor.
func futexWait(word *atomic.Uint32, d time.Duration) {
	var ts *unix.Timespec
	if d > 0 {
		t := unix.NsecToTimespec(int64(d))
		ts = &t
	}
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWait, uintptr(Asleep), uintptr(unsafe.Pointer(ts)), 0, 0)
}

func futexWake(word *atomic.Uint32) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWake, 1, 0, 0, 0)
}

// interrupt ends a thread's wait, by the signal that Go itself interrupts threads
// with: the kernel begins the wait anew, and finds that the word is gone.
func interrupt(tid int32) {
	if tid != 0 {
		unix.Tgkill(unix.Getpid(), int(tid), unix.SIGURG)
	}
}
