package cuda

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/dl"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/gputest"
)

// libraryEnv tells the suite's second process which driver to load.
const libraryEnv = "RAILHOP_TEST_LIBCUDA"

func TestMain(m *testing.M) {
	gputest.Child(func() (gpu.Provider, error) { return Open(Options{Library: os.Getenv(libraryEnv)}) })
	os.Exit(m.Run())
}

// open opens the real driver, or skips, or fails where there has to be one.
func open(t testing.TB, opts Options) *Provider {
	t.Helper()
	p, err := Open(opts)
	switch {
	case err == nil:
		return p
	case !errors.Is(err, errors.ErrUnsupported):
		t.Fatal(err)
	case slices.Contains(strings.Split(os.Getenv("RAILHOP_REQUIRE"), ","), "cuda"):
		t.Fatalf("RAILHOP_REQUIRE has cuda: %v", err)
	default:
		t.Skip(err)
	}
	return nil
}

// fakeLibrary returns a driver built from testdata/fakecuda.c, with macros such as
// "BATCH_V1" or "WRITE64=0". Under an emulator there is no compiler: its driver is
// built beforehand.
func fakeLibrary(t testing.TB, macros ...string) string {
	t.Helper()
	name := "fakecuda-" + strings.Join(macros, "-") + ".so"
	if dir := os.Getenv(builtEnv); dir != "" {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			t.Skipf("not built for this architecture: %v", err)
		}
		return path
	}
	path := filepath.Join(t.TempDir(), name)
	compile(t, "gcc", path, macros)
	return path
}

func compile(t testing.TB, compiler, path string, macros []string) {
	t.Helper()
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("no C compiler to build the fake driver with: %v", err)
	}
	args := []string{"-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o", path, "testdata/fakecuda.c"}
	for _, m := range macros {
		args = append(args, "-D"+m)
	}
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", compiler, err, out)
	}
}

// fake opens a fake driver and what tests ask of it.
func fake(t testing.TB, opts Options, macros ...string) (*Provider, *fakeDriver) {
	t.Helper()
	opts.Library = fakeLibrary(t, macros...)
	p, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	lib, err := dl.Open(opts.Library)
	if err != nil {
		t.Fatal(err)
	}
	d := &fakeDriver{lib: lib}
	if err := dl.Bind(lib, 0, []dl.Symbol{
		{Names: []string{"fakeCalls"}, Target: &d.calls},
		{Names: []string{"fakeBroken"}, Target: &d.broken},
		{Names: []string{"fakeMode"}, Target: &d.mode},
		{Names: []string{"fakeSticky"}, Target: &d.sticky},
		{Names: []string{"fakeLast"}, Target: &d.last},
		{Names: []string{"fakeMap"}, Target: &d.mapChunks},
		{Names: []string{"fakeManaged"}, Target: &d.managed},
		{Names: []string{"fakeForeign"}, Target: &d.foreign},
		{Names: []string{"fakePrivate"}, Target: &d.private},
	}); err != nil {
		t.Fatal(err)
	}
	return p, d
}

// fakeDriver is what the fake has beside a driver's functions.
type fakeDriver struct {
	lib       dl.Library
	calls     func(name string) uint64
	broken    func() int32
	mode      func() int32
	sticky    func(code int32)
	last      func(handle *[64]byte, args *[16]uint64)
	mapChunks func(chunks, hole, device, foreign int32) uint64
	managed   func(size uint64) uint64
	foreign   func(size uint64) uint64
	private   func(at uint64)
}

// first opens a provider's first device until the end of the test.
func first(t testing.TB, p *Provider) *Device {
	t.Helper()
	infos, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Open(infos[0].BusID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d.(*Device)
}

// capture is the functions by which a model captures a graph.
type capture struct {
	begin   dl.Proc // CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
	end     dl.Proc // CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
	destroy dl.Proc // CUresult cuGraphDestroy(CUgraph hGraph)
}

const captureGlobal = 0

func bindCapture(t testing.TB, library string) *capture {
	t.Helper()
	if library == "" {
		library = "libcuda.so.1"
	}
	lib, err := dl.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	c := &capture{}
	if err := dl.Bind(lib, 0, []dl.Symbol{
		{Names: []string{"cuStreamBeginCapture_v2"}, Target: &c.begin},
		{Names: []string{"cuStreamEndCapture"}, Target: &c.end},
		{Names: []string{"cuGraphDestroy"}, Target: &c.destroy},
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

// start captures s in global mode until the returned function is called, which says
// whether the graph came out whole. Both belong to one OS thread.
func (c *capture) start(s *Stream) (end func() error, err error) {
	d := s.d
	err = d.do(func(f *frame) error {
		return d.check("cuStreamBeginCapture", f.call(c.begin, uintptr(s.own()), captureGlobal))
	})
	return func() error {
		return d.do(func(f *frame) error {
			if err := d.check("cuStreamEndCapture", f.call(c.end, uintptr(s.own()), f.wordAddr())); err != nil {
				return err
			}
			return d.check("cuGraphDestroy", f.call(c.destroy, uintptr(f.word)))
		})
	}, err
}

func setup(t testing.TB, p *Provider, library string) gputest.Setup {
	c := bindCapture(t, library)
	return gputest.Setup{
		Provider: p,
		Caller: func(d gpu.Device) (uint64, gpu.Stream, error) {
			s, err := d.NewStream()
			if err != nil {
				return 0, nil, err
			}
			return s.(*Stream).own(), s, nil
		},
		Capturing: func(d gpu.Device) (uint64, func(), error) {
			st, err := d.NewStream()
			if err != nil {
				return 0, nil, err
			}
			s := st.(*Stream)
			runtime.LockOSThread()
			end, err := c.start(s)
			if err != nil {
				runtime.UnlockOSThread()
				return 0, nil, errors.Join(err, s.Close())
			}
			return s.own(), func() {
				err := errors.Join(end(), s.Close())
				runtime.UnlockOSThread()
				if err != nil {
					t.Errorf("the capture was broken: %v", err)
				}
			}, nil
		},
		Live: func(d gpu.Device) string {
			if c := d.(*Device).Counts(); c != (Counts{}) {
				return fmt.Sprintf("%+v", c)
			}
			return ""
		},
	}
}

func TestConformance(t *testing.T) {
	p := open(t, Options{})
	first(t, p) // so that the context lives from test to test
	gputest.Run(t, setup(t, p, ""))
}

func TestConformanceOfFake(t *testing.T) {
	for _, tc := range []struct {
		name   string
		opts   Options
		macros []string
		info   gpu.Info // what the device can
	}{
		{"all", Options{}, []string{"BATCH_V1", "BATCH_V2", "DRIVER=13000"}, gpu.Info{StreamMemOps: true, BatchedCopy: true}},
		{"old stream writes, first batch call", Options{EngineBytes: 1024, Streams: 1}, []string{"BATCH_V1", "WRITE64=0", "WRITE64_V1=1", "NO_WRITE64_V2"}, gpu.Info{StreamMemOps: true, BatchedCopy: true}},
		{"nothing but single copies", Options{LowPriority: true}, []string{"WRITE64=0", "LOAD_ERROR=222"}, gpu.Info{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, f := fake(t, tc.opts, tc.macros...)
			infos, err := p.Devices()
			if err != nil {
				t.Fatal(err)
			}
			for i, info := range infos { // the context of each lives from test to test
				d, err := p.Open(info.BusID)
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				if infos[i] = d.Info(); infos[i].StreamMemOps != tc.info.StreamMemOps || infos[i].BatchedCopy != tc.info.BatchedCopy {
					t.Errorf("Info = %+v, want what %+v can", infos[i], tc.info)
				}
			}
			t.Setenv(libraryEnv, p.opts.Library)
			gputest.Run(t, setup(t, p, p.opts.Library))
			if n := f.broken(); n != 0 {
				t.Errorf("%d calls would have broken a capture or touched the legacy stream", n)
			}
		})
	}
}
