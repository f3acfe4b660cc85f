package shm

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// ErrTruncated is the sentinel of [FaultError].
var ErrTruncated = errors.New("shm: memory is gone: its file was truncated")

// FaultError is a load or store that the memory behind a mapping did not allow:
// the file is shorter than its mapping, or its file system is full.
type FaultError struct {
	Addr uintptr // see [Mapping.Contains]
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("%v (fault at %#x)", ErrTruncated, e.Addr)
}

// Is makes every FaultError an [ErrTruncated].
func (e *FaultError) Is(target error) bool { return target == ErrTruncated }

// Guard runs f on this goroutine and returns its error, or a [*FaultError] if f
// touched memory that is not there. It costs some tens of nanoseconds and no
// allocation of its own, so that a whole step of a loop fits into one; guards
// may be nested.
//
// After a fault f has stopped halfway: its deferred calls have run, its other
// effects stand, and a mutex that it held without a deferred unlock is held for
// ever. The guard covers this goroutine alone, not those that f starts. A system
// call that meets such memory returns EFAULT instead. Any other panic, a nil
// pointer included, passes through.
func Guard(f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if v := recover(); v != nil {
			// Only a fault at a real address has Addr.
			fault, ok := v.(interface {
				runtime.Error
				Addr() uintptr
			})
			if !ok || fault.Addr() < 4096 {
				panic(v)
			}
			err = &FaultError{fault.Addr()}
		}
	}()
	return f()
}
