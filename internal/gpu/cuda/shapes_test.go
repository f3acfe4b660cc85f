package cuda

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
)

// TestCallShapes sees what the odd calls look like to C: the handle that goes by
// value, the batch call in its two prototypes, 64-bit values, negative ints.
func TestCallShapes(t *testing.T) {
	for _, macros := range shapes {
		t.Run(strings.Join(macros, " "), func(t *testing.T) {
			p, f := fake(t, Options{EngineBytes: 1}, macros...)
			d := first(t, p)
			var handle [64]byte
			var args [16]uint64

			t.Run("priority", func(t *testing.T) {
				if f.last(&handle, &args); int64(args[2]) != -5 {
					t.Errorf("priority = %d, want -5", int64(args[2]))
				}
			})
			t.Run("handle by value", func(t *testing.T) {
				var h gpu.Handle
				for i := range h {
					h[i] = byte(3*i + 1)
				}
				want := h
				if at, err := d.Import(h, 4096); !errors.Is(err, gpu.ErrHandle) {
					t.Errorf("Import = %#x, %v, want %v", at, err, gpu.ErrHandle)
				}
				f.last(&handle, &args)
				if handle != want {
					t.Errorf("the callee saw the handle %x, want %x", handle, want)
				}
				if args[0] == 0 || args[1] != ipcLazyPeerAccess {
					t.Errorf("the callee saw pdptr %#x and flags %#x, want an address and %#x", args[0], args[1], ipcLazyPeerAccess)
				}
			})
			t.Run("handle of our own", func(t *testing.T) {
				at, err := d.Alloc(4096)
				if err != nil {
					t.Fatal(err)
				}
				defer d.Free(at)
				h, err := d.Export(at)
				if err != nil {
					t.Fatal(err)
				}
				// The driver says "invalid context" of it, which elsewhere is the end.
				if _, err := d.Import(h, 4096); !errors.Is(err, gpu.ErrHandle) || errors.Is(err, gpu.ErrFatal) {
					t.Errorf("Import: err = %v, want %v and not %v", err, gpu.ErrHandle, gpu.ErrFatal)
				}
				if err := d.CopyIn(at, []byte{1}); err != nil {
					t.Error(err)
				}
			})
			t.Run("batch", func(t *testing.T) {
				src, dst := alloc(t, d, 1<<20), alloc(t, d, 1<<20)
				s, err := d.NewStream()
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if err := d.CopyIn(src, []byte(strings.Repeat("0123456789abcdef", 64))); err != nil {
					t.Fatal(err)
				}
				copies := []gpu.Copy{{Dst: dst + 512, Src: src, Length: 100}, {}, {Dst: dst, Src: src + 200, Length: 300}, {Dst: dst + 900, Src: src + 1, Length: 1}}
				if err := s.Copy(copies); err != nil {
					t.Fatal(err)
				}
				call, fail := "cuMemcpyBatchAsync", true
				if len(macros) > 2 {
					call, fail = "cuMemcpyBatchAsync_v2", false
				}
				if n := f.calls(call); n != 1 {
					t.Errorf("%s was called %d times, want 1", call, n)
				}
				f.last(&handle, &args)
				if args[4] != 3 || args[5] != batchSourceStream || args[6] != 0 || args[7] != 0 || args[8] != 1 || (args[9] != 0) != fail {
					t.Errorf("the callee saw count %d, source order %d, flags %d, first %d, attributes %d, failed %#x", args[4], args[5], args[6], args[7], args[8], args[9])
				}
				got := make([]byte, 1024)
				if err := d.CopyOut(got, dst); err != nil {
					t.Fatal(err)
				}
				if string(got[:4]) != "89ab" || string(got[512:516]) != "0123" || got[900] != '1' {
					t.Errorf("copied %q, %q, %q", got[:4], got[512:516], got[900:901])
				}
			})
			t.Run("64-bit value", func(t *testing.T) {
				words, at, unmap := mapPage(t, d)
				defer unmap()
				s, err := d.NewStream()
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				const value = 0xfedcba9876543210
				if err := s.Write64(at+8, value); err != nil {
					t.Fatal(err)
				}
				if got := hostWord(addressOf(words) + 8).Load(); got != value {
					t.Errorf("word = %#x, want %#x", got, uint64(value))
				}
			})
			runtime.KeepAlive(&handle)
		})
	}
}
