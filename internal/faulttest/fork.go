package faulttest

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// fork makes a child of the process that sleeps, as fork(2) does: it has all
// descriptors, or, with bare, none, as where a handler of pthread_atfork(3) has
// closed them. It never has the standard ones, whose ends the test waits for.
//
//go:norace
func fork(bare bool) (pid int, err error) {
	last := uintptr(2)
	if bare {
		last = ^uintptr(0) >> 32
	}
	// The child shares nothing with Go's scheduler, and must not meet it.
	r, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return 0, fmt.Errorf("fork: %w", errno)
	}
	if r == 0 {
		unix.RawSyscall(unix.SYS_CLOSE_RANGE, 0, last, 0)
		for {
			unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	return int(r), nil
}
