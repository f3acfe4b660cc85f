package gputest

import (
	"errors"
	"runtime"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
)

func testCaller(t *testing.T, setup Setup) {
	t.Run("default stream", func(t *testing.T) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		r := setup.open(t)
		s, e := r.stream(), r.event()
		r.must(r.d.RecordCaller(0, e))
		r.must(r.d.SyncCaller(0))
		r.done(e)
		r.must(s.Wait(e))
		r.drain(s)
	})
	t.Run("fence", func(t *testing.T) {
		if setup.Caller == nil {
			t.Skip("the setup has no caller's stream")
		}
		r := setup.open(t)
		handle, theirs, err := setup.Caller(r.d)
		r.must(err)
		defer theirs.Close()
		s, e := r.stream(), r.event()
		const size, n = 8 << 20, 4
		src, source, slot := r.alloc(size), r.alloc(n*size), r.alloc(size)
		r.fill(src, size, 1)
		// A model writes its cache; what was recorded behind it waits for the last of it.
		for i := range uint64(n) {
			r.must(theirs.Copy([]gpu.Copy{{Dst: source + i*size, Src: src, Length: size}}))
		}
		r.must(r.d.RecordCaller(handle, e))
		r.must(s.Wait(e))
		r.copyNow(s, gpu.Copy{Dst: slot, Src: source + (n-1)*size, Length: size})
		r.check(slot, size, 1)
		if done, err := e.Done(); !done || err != nil {
			t.Errorf("Done = %v, %v, want true", done, err)
		}
	})
	t.Run("sync", func(t *testing.T) {
		if setup.Caller == nil {
			t.Skip("the setup has no caller's stream")
		}
		r := setup.open(t)
		handle, theirs, err := setup.Caller(r.d)
		r.must(err)
		defer theirs.Close()
		const size = 8 << 20
		src, dst := r.alloc(size), r.alloc(size)
		for seed := range uint64(5) {
			r.fill(src, size, seed)
			r.must(theirs.Copy([]gpu.Copy{{Dst: dst, Src: src, Length: size}}))
			r.must(r.d.SyncCaller(handle))
			r.check(dst, size, seed)
		}
	})
	t.Run("capturing", func(t *testing.T) {
		if setup.Capturing == nil {
			t.Skip("the setup has no capturing stream")
		}
		r := setup.open(t)
		handle, end, err := setup.Capturing(r.d)
		r.must(err)
		defer end()
		e := r.event()
		if err := r.d.RecordCaller(handle, e); !errors.Is(err, gpu.ErrCapturing) {
			t.Errorf("RecordCaller: err = %v, want %v", err, gpu.ErrCapturing)
		}
		if err := r.d.SyncCaller(handle); !errors.Is(err, gpu.ErrCapturing) {
			t.Errorf("SyncCaller: err = %v, want %v", err, gpu.ErrCapturing)
		}
		if done, err := e.Done(); !done || err != nil {
			t.Errorf("Done = %v, %v, want true: nothing was recorded", done, err)
		}
	})
}
