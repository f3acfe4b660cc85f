package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
)

// drivers runs a test on the real driver, where there is one, and on the fake.
func drivers(t *testing.T, opts Options, test func(t *testing.T, p *Provider, library string)) {
	t.Run("real", func(t *testing.T) { test(t, open(t, opts), "") })
	t.Run("fake", func(t *testing.T) {
		p, _ := fake(t, opts, "BATCH_V2", "DRIVER=13000")
		test(t, p, p.opts.Library)
	})
}

// state is what a caller's thread has of the driver's.
type state struct {
	context uint64
	mode    int32
}

func threadState(p *Provider, f *frame) state {
	var s state
	f.callOut(p.drv.ctxGetCurrent)
	s.context = f.word
	f.mode = captureRelaxed
	f.call(p.drv.exchangeCaptureMode, addr(&f.mode))
	s.mode = f.mode
	f.call(p.drv.exchangeCaptureMode, addr(&f.mode))
	return s
}

// everything calls all there is to call on a device, and says which call went wrong.
func everything(t testing.TB, p *Provider, d *Device, after func(call string)) {
	t.Helper()
	must := func(call string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", call, err)
		}
		after(call)
	}
	const size = 4 << 20
	src, err := d.Alloc(size)
	must("Alloc", err)
	dst, err := d.Alloc(size)
	must("Alloc", err)
	_, err = d.Export(src)
	must("Export", err)
	if _, err := d.Import(gpu.Handle{1}, 1); err == nil {
		t.Error("Import of nonsense: want an error")
	}
	after("Import")
	d.PeerAtomics(d.Info().BusID)
	d.PeerAtomics("ffff:00:00.0")
	after("PeerAtomics")
	p.Classify(src, size)
	after("Classify")
	p.Current()
	after("Current")
	words, bell, unmap := mapPage(t, d)
	after("MapHost")
	s, err := d.NewStream()
	must("NewStream", err)
	e, err := d.NewEvent()
	must("NewEvent", err)
	must("CopyIn", d.CopyIn(src, []byte("railhop")))
	must("RecordCaller", d.RecordCaller(0, e))
	must("SyncCaller", d.SyncCaller(0))
	must("Wait", s.Wait(e))
	must("Copy of one", s.Copy([]gpu.Copy{{Dst: dst, Src: src, Length: 4096}}))
	must("Copy of many", s.Copy([]gpu.Copy{{Dst: dst, Src: src, Length: 1000}, {Dst: dst + 2000, Src: src + 5000, Length: 999}}))
	for range 3 {
		must("Copy of a long one", s.Copy([]gpu.Copy{{Dst: dst, Src: src, Length: size}}))
	}
	if d.Info().StreamMemOps {
		must("Write64", s.Write64(bell, 1))
		must("CopyWrite64", s.(gpu.Ringer).CopyWrite64([]gpu.Copy{{Dst: dst, Src: src, Length: 64}}, bell, 2))
	}
	must("Record", s.Record(e))
	for done := false; !done && err == nil; {
		done, err = e.Done()
		after("Done")
	}
	must("Done", err)
	for idle := false; !idle && err == nil; {
		idle, err = s.Idle()
		after("Idle")
	}
	must("Idle", err)
	got := make([]byte, 7)
	must("CopyOut", d.CopyOut(got, dst))
	if string(got) != "railhop" {
		t.Errorf("copied %q", got)
	}
	if word := hostWord(addressOf(words)).Load(); d.Info().StreamMemOps && word != 2 {
		t.Errorf("word = %d, want 2", word)
	}
	must("close stream", s.Close())
	must("close event", e.Close())
	unmap()
	after("unmap")
	must("Free", errors.Join(d.Free(src), d.Free(dst)))
}

// TestThreadIsLeftAsItWas has a thread's current context and capture mode after each
// call as they were before.
func TestThreadIsLeftAsItWas(t *testing.T) {
	drivers(t, Options{}, func(t *testing.T, p *Provider, _ string) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		d := first(t, p)
		infos, err := p.Devices()
		if err != nil {
			t.Fatal(err)
		}
		last, err := p.Open(infos[len(infos)-1].BusID)
		if err != nil {
			t.Fatal(err)
		}
		defer last.Close()
		f, err := p.frames.get()
		if err != nil {
			t.Fatal(err)
		}
		defer p.frames.put(f)
		for _, tc := range []struct {
			name    string
			context uint64
			current string
		}{
			{"no context", 0, ""},
			{"the device's context", d.d.context.Load(), d.d.info.BusID},
			{"the last device's context", last.(*Device).d.context.Load(), infos[len(infos)-1].BusID},
		} {
			t.Run(tc.name, func(t *testing.T) {
				runtime.LockOSThread() // a subtest is a goroutine of its own
				defer runtime.UnlockOSThread()
				f.call(p.drv.ctxSetCurrent, uintptr(tc.context))
				defer f.call(p.drv.ctxSetCurrent, 0)
				want := threadState(p, f)
				if want.context != tc.context {
					t.Fatalf("context = %#x, want %#x", want.context, tc.context)
				}
				if bus, ok := p.Current(); bus != tc.current || ok != (tc.current != "") {
					t.Errorf("Current = %q, %v, want %q", bus, ok, tc.current)
				}
				everything(t, p, d, func(call string) {
					if got := threadState(p, f); got != want {
						t.Errorf("after %s the thread has %+v, before it had %+v", call, got, want)
					}
				})
				detach, err := d.Attach()
				if err != nil {
					t.Fatal(err)
				}
				attached := state{d.d.context.Load(), captureRelaxed}
				everything(t, p, d, func(call string) {
					if got := threadState(p, f); got != attached {
						t.Errorf("after %s the attached thread has %+v, want %+v", call, got, attached)
					}
				})
				if err := detach(); err != nil {
					t.Error(err)
				}
				if err := detach(); !errors.Is(err, gpu.ErrClosed) {
					t.Errorf("second detach: err = %v, want %v", err, gpu.ErrClosed)
				}
				if got := threadState(p, f); got != want {
					t.Errorf("after detach the thread has %+v, before it had %+v", got, want)
				}
			})
		}
	})
}

// TestCaptureGoesOn captures a graph in global mode, which forbids unsafe calls on all
// threads, while this and another thread do all there is to do.
func TestCaptureGoesOn(t *testing.T) {
	drivers(t, Options{}, func(t *testing.T, p *Provider, library string) {
		d := first(t, p)
		c := bindCapture(t, library)
		s := newStream(t, d)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		end, err := c.start(s)
		if err != nil {
			t.Fatal(err)
		}
		everything(t, p, d, func(string) {})
		done := make(chan struct{})
		go func() {
			defer close(done)
			everything(t, p, d, func(string) {})
		}()
		<-done
		if err := d.RecordCaller(s.own(), newEvent(t, d)); !errors.Is(err, gpu.ErrCapturing) {
			t.Errorf("RecordCaller on the capturing stream: err = %v, want %v", err, gpu.ErrCapturing)
		}
		if err := end(); err != nil {
			t.Errorf("the capture was broken: %v", err)
		}
	})
}

// TestFatal loses a device: all that follows says so, what is to be freed is, and it
// is logged once.
func TestFatal(t *testing.T) {
	for _, code := range []int32{700, 719, 999} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			var log strings.Builder
			opts := Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
			p, f := fake(t, opts, "BATCH_V2", "DRIVER=13000")
			d := first(t, p)
			src := alloc(t, d, 4096)
			s := newStream(t, d)
			e := newEvent(t, d)
			words, bell, unmap := mapPage(t, d)
			defer unmap()
			_ = words
			f.sticky(code)
			for _, tc := range []struct {
				what string
				try  func() error
			}{
				{"Copy", func() error { return s.Copy([]gpu.Copy{{Dst: src, Src: src + 100, Length: 10}}) }},
				{"Write64", func() error { return s.Write64(bell, 1) }},
				{"Record", func() error { return s.Record(e) }},
				{"Wait", func() error { return s.Wait(e) }},
				{"Idle", func() error { _, err := s.Idle(); return err }},
				{"Done", func() error { _, err := e.Done(); return err }},
				{"Alloc", func() error { _, err := d.Alloc(1); return err }},
				{"Import", func() error { _, err := d.Import(gpu.Handle{}, 1); return err }},
				{"CopyIn", func() error { return d.CopyIn(src, []byte{1}) }},
				{"RecordCaller", func() error { return d.RecordCaller(0, e) }},
				{"NewStream", func() error { _, err := d.NewStream(); return err }},
				{"Open", func() error { _, err := p.Open(d.Info().BusID); return err }},
			} {
				if err := tc.try(); !errors.Is(err, gpu.ErrFatal) {
					t.Errorf("%s: err = %v, want %v", tc.what, err, gpu.ErrFatal)
				}
			}
			if n := strings.Count(log.String(), "GPU lost"); n != 1 {
				t.Errorf("said %d times, want once: %s", n, log.String())
			}
			f.sticky(0)
		})
	}
}

// TestErrorsNameTheCall has the call, its number and the driver's name for it.
func TestErrorsNameTheCall(t *testing.T) {
	p, _ := fake(t, Options{}, "BATCH_V2", "DRIVER=13000")
	d := first(t, p)
	_, err := d.Alloc(1 << 46)
	if !errors.Is(err, gpu.ErrMemory) || errors.Is(err, gpu.ErrFatal) {
		t.Errorf("err = %v, want %v", err, gpu.ErrMemory)
	}
	for _, word := range []string{"cuMemAlloc", "2 (CUDA_ERROR_OUT_OF_MEMORY)", d.Info().BusID, fmt.Sprint(1 << 46)} {
		if err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("err = %v: want %q in it", err, word)
		}
	}
}

func TestOpenFails(t *testing.T) {
	for _, tc := range []struct {
		name, library, word string
	}{
		{"no library", "/nowhere/libcuda.so.1", "libcuda.so.1"},
		{"another library", "libc.so.6", "cuInit"},
		{"no device", fakeLibrary(t, "INIT_ERROR=100"), "CUDA_ERROR_NO_DEVICE"},
		{"too old", fakeLibrary(t, "DRIVER=9020"), "needs version 10010"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Open(Options{Library: tc.library})
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), tc.word) {
				t.Errorf("err = %v, want %v with %q", err, errors.ErrUnsupported, tc.word)
			}
		})
	}
}

// TestInfo has what each driver can do, known before a device is opened or found out
// then.
func TestInfo(t *testing.T) {
	for _, tc := range []struct {
		name          string
		opts          Options
		macros        []string
		listed, found gpu.Info
	}{
		{"all", Options{}, []string{"DRIVER=13000"}, gpu.Info{StreamMemOps: true, BatchedCopy: true}, gpu.Info{StreamMemOps: true, BatchedCopy: true}},
		{"attribute without its call", Options{}, []string{"DRIVER=13000", "NO_WRITE64_V2"}, gpu.Info{BatchedCopy: true}, gpu.Info{BatchedCopy: true}},
		{"driver too old for the call", Options{}, []string{"DRIVER=11000"}, gpu.Info{BatchedCopy: true}, gpu.Info{BatchedCopy: true}},
		{"driver too old for the kernel", Options{}, []string{"DRIVER=10020", "WRITE64_V1=1"}, gpu.Info{StreamMemOps: true}, gpu.Info{StreamMemOps: true}},
		{"no kernel wanted", Options{NoKernel: true}, []string{"DRIVER=13000"}, gpu.Info{StreamMemOps: true}, gpu.Info{StreamMemOps: true}},
		{"no compiler", Options{}, []string{"DRIVER=13000", "LOAD_ERROR=221"}, gpu.Info{StreamMemOps: true, BatchedCopy: true}, gpu.Info{StreamMemOps: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, _ := fake(t, tc.opts, tc.macros...)
			check := func(when string, want gpu.Info) {
				t.Helper()
				infos, err := p.Devices()
				if err != nil {
					t.Fatal(err)
				}
				for _, got := range infos {
					if got.StreamMemOps != want.StreamMemOps || got.BatchedCopy != want.BatchedCopy {
						t.Errorf("%s: %+v, want what %+v can", when, got, want)
					}
				}
			}
			check("listed", tc.listed)
			d := first(t, p)
			check("opened", tc.found)
			if (d.d.kernel != 0) != tc.found.BatchedCopy {
				t.Errorf("kernel = %#x", d.d.kernel)
			}
		})
	}
}
