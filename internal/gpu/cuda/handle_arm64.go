package cuda

import "github.com/railhop/railhop/internal/dl"

// openHandle calls cuIpcOpenMemHandle with the handle in f.handle. A struct of more
// than 16 bytes goes as the address of a copy here (AAPCS64, B.4), which is the
// callee's to change: the frame's is one.
func openHandle(f *frame, p dl.Proc, flags uintptr) int32 {
	return f.call(p, f.wordAddr(), addr(&f.handle), flags)
}
