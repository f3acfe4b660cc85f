package shm

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy is returned when another process holds a lock.
var ErrBusy = errors.New("shm: lock is held")

// The two kinds of lock do not meet: flock(2) is for short critical sections,
// the open-file-description lock says that its holder lives.

// LockLiveness takes the file's open-file-description lock without blocking. It
// lasts until the description's last descriptor and mapping are gone, in this
// process and in forked children. It returns [ErrBusy] if another description
// holds it.
func (f *File) LockLiveness() error {
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	err := unix.FcntlFlock(uintptr(f.fd()), unix.F_OFD_SETLK, &lk)
	if err == unix.EAGAIN || err == unix.EACCES {
		return fmt.Errorf("%w: liveness of %s", ErrBusy, f.path)
	}
	if err != nil {
		return fmt.Errorf("shm: liveness lock of %s: %w", f.path, err)
	}
	return nil
}

// LivenessHeld reports whether another description holds the liveness lock. It
// takes nothing.
func (f *File) LivenessHeld() (bool, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(uintptr(f.fd()), unix.F_OFD_GETLK, &lk); err != nil {
		return false, fmt.Errorf("shm: look at the liveness lock of %s: %w", f.path, err)
	}
	return lk.Type != unix.F_UNLCK, nil
}

// Flock takes the file's exclusive flock, trying for at most wait, and returns
// [ErrBusy] if it is not to be had. It sleeps between tries: not for a pump.
func (f *File) Flock(wait time.Duration) error {
	const pause = 500 * time.Microsecond
	for tries := 1 + int(wait/pause); ; tries-- {
		err := unix.Flock(f.fd(), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case err == unix.EINTR:
			tries++
		case err != unix.EWOULDBLOCK:
			return fmt.Errorf("shm: flock %s: %w", f.path, err)
		case tries <= 1:
			return fmt.Errorf("%w: %s, after %v", ErrBusy, f.path, wait)
		default:
			time.Sleep(pause)
		}
	}
}

// Funlock gives the flock back.
func (f *File) Funlock() error {
	if err := unix.Flock(f.fd(), unix.LOCK_UN); err != nil {
		return fmt.Errorf("shm: unlock %s: %w", f.path, err)
	}
	return nil
}
