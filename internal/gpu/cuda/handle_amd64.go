package cuda

import (
	"encoding/binary"

	"github.com/railhop/railhop/internal/dl"
)

// openHandle calls cuIpcOpenMemHandle with the handle in f.handle. A struct of 64
// bytes goes by value on the stack here (class MEMORY of the System V ABI), while
// the two other arguments take the first registers; four more, unused, push the
// handle's words onto the stack.
func openHandle(f *frame, p dl.Proc, flags uintptr) int32 {
	args := [14]uintptr{0: f.wordAddr(), 1: flags}
	for i := range 8 {
		args[6+i] = uintptr(binary.NativeEndian.Uint64(f.handle[8*i:]))
	}
	return f.call(p, args[:]...)
}
