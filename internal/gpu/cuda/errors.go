package cuda

import (
	"errors"
	"fmt"

	"github.com/railhop/railhop/internal/gpu"
)

// CUresult, as far as it is told apart.
const (
	success           = 0
	errOutOfMemory    = 2
	errDeinitialized  = 4
	errNotReady       = 600
	errNotSupported   = 801
	errCaptureFirst   = 900 // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	errCaptureLast    = 908 // CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
	errInvalidContext = 201
)

// fatalCodes are those after which nothing works on the context any more: those that
// pxn.md 9 lists, and others of which cuda.h says that the process must end.
var fatalCodes = map[int32]bool{
	errDeinitialized:  true,
	errInvalidContext: true,
	700:               true, // ILLEGAL_ADDRESS
	702:               true, // LAUNCH_TIMEOUT
	709:               true, // CONTEXT_IS_DESTROYED
	710:               true, // ASSERT
	714:               true, // HARDWARE_STACK_ERROR
	715:               true, // ILLEGAL_INSTRUCTION
	716:               true, // MISALIGNED_ADDRESS
	717:               true, // INVALID_ADDRESS_SPACE
	718:               true, // INVALID_PC
	719:               true, // LAUNCH_FAILED
	999:               true, // UNKNOWN
}

// Error is a call that the driver did not do.
type Error struct {
	Call string // such as "cuMemAlloc"
	Code int32  // CUresult
	Name string // such as "CUDA_ERROR_OUT_OF_MEMORY"
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: error %d (%s)", e.Call, e.Code, e.Name)
}

// Is tells which of the seam's causes the code is.
func (e *Error) Is(target error) bool {
	switch target {
	case gpu.ErrMemory:
		return e.Code == errOutOfMemory
	case gpu.ErrFatal:
		return fatalCodes[e.Code]
	case gpu.ErrCapturing:
		return e.Code >= errCaptureFirst && e.Code <= errCaptureLast
	case errors.ErrUnsupported:
		return e.Code == errNotSupported
	}
	return false
}

// noCompiler reports whether the driver does not compile PTX, or none as new as ours,
// for whatever device.
func noCompiler(err error) bool {
	const first, last = 221, 223 // JIT_COMPILER_NOT_FOUND, UNSUPPORTED_PTX_VERSION, JIT_COMPILATION_DISABLED
	var e *Error
	return errors.As(err, &e) && e.Code >= first && e.Code <= last
}

// failure describes a code that is not success.
func (d *driver) failure(f *frame, call string, code int32) *Error {
	e := &Error{Call: call, Code: code, Name: "unknown to the driver"}
	f.word = 0
	if f.call(d.getErrorName, uintptr(code), f.wordAddr()) == success && f.word != 0 {
		e.Name = cString(f.word)
	}
	return e
}

// check returns what went wrong with a call that returned code, or nil.
func (p *Provider) check(call string, code int32) error {
	if code == success {
		return nil
	}
	f, err := p.frames.get()
	if err != nil {
		return &Error{Call: call, Code: code, Name: "unknown"}
	}
	defer p.frames.put(f)
	return p.drv.failure(f, call, code)
}

// check is the provider's, and notes what is fatal for the device.
func (d *device) check(call string, code int32) error {
	if code == success {
		return nil
	}
	err := d.p.check(call, code)
	if fatalCodes[code] {
		d.lose(err)
	}
	return err
}
