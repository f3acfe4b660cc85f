package softgpu

import (
	"errors"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

func TestParseDevices(t *testing.T) {
	a0 := Uniform(1)[0]
	for _, tc := range []struct {
		name string
		text string
		want []DeviceConfig // nil if it is refused
		err  string         // part of the error
	}{
		{name: "none", text: "0", want: []DeviceConfig{}},
		{name: "count", text: "2", want: Uniform(2)},
		{name: "one", text: "0000:a0:00.0", want: []DeviceConfig{a0}},
		{name: "all facts", text: "0000:a0:00.0,numa=1,index=3,memops=off,peer=off,batch=off,max=4096", want: []DeviceConfig{
			{BusID: "0000:a0:00.0", NUMA: 1, Index: 3, MaxBytes: 4096},
		}},
		{name: "two, with blanks", text: "0000:a0:00.0, numa=-1; 10000:01:1f.7,memops=on", want: []DeviceConfig{
			a0, {BusID: "10000:01:1f.7", NUMA: -1, Index: -1, StreamMemOps: true, PeerAtomics: true, BatchedCopy: true},
		}},
		{name: "empty", text: "", err: `""`},
		{name: "too many", text: "33", err: `"33": want 0..32`},
		{name: "negative", text: "-1", err: `"-1": want 0..32`},
		{name: "upper case", text: "0000:A0:00.0", err: `"0000:A0:00.0": want a lower-case`},
		{name: "no domain", text: "a0:00.0", err: `"a0:00.0"`},
		{name: "needless zeros", text: "000000a0:a0:00.0", err: `"000000a0:a0:00.0"`},
		{name: "unknown key", text: "0000:a0:00.0,color=red", err: `"color=red": want numa`},
		{name: "no value", text: "0000:a0:00.0,memops", err: `"memops": want on or off`},
		{name: "bad switch", text: "0000:a0:00.0,peer=yes", err: `"peer=yes": want on or off`},
		{name: "bad node", text: "0000:a0:00.0,numa=-2", err: `"numa=-2": want a node`},
		{name: "bad size", text: "0000:a0:00.0,max=1G", err: `"max=1G": want a number of bytes`},
		{name: "twice", text: "0000:a0:00.0;0000:a0:00.0", err: "listed twice"},
		{name: "trailing semicolon", text: "0000:a0:00.0;", err: `""`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseDevices(tc.text)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("err = %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("ParseDevices = %+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts Options
		want string
	}{
		{"bus id", Options{Devices: []DeviceConfig{{BusID: "soft0"}}}, `"soft0"`},
		{"twice", Options{Devices: append(Uniform(1), Uniform(1)...)}, "listed twice"},
		{"too many", Options{Devices: Uniform(33)}, "33 devices"},
		{"current", Options{Current: 1}, "current device 1: want -1..0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := New(tc.opts); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("err = %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestCurrent(t *testing.T) {
	p, err := New(Options{Devices: Uniform(2), Current: 1})
	must(t, err)
	check := func(want string) {
		t.Helper()
		if got, ok := p.Current(); got != want || ok != (want != "") {
			t.Errorf("Current = %q, %v, want %q", got, ok, want)
		}
	}
	check("0000:a1:00.0")
	must(t, p.SetCurrent(-1))
	check("")
	must(t, p.SetCurrent(0))
	check("0000:a0:00.0")
	if err := p.SetCurrent(2); err == nil {
		t.Error("SetCurrent(2) of 2: want an error")
	}
	none, err := New(Options{Devices: []DeviceConfig{}})
	must(t, err)
	if id, ok := none.Current(); ok {
		t.Errorf("Current without devices = %q", id)
	}
}

func TestLink(t *testing.T) {
	devices, err := ParseDevices("0000:a0:00.0,peer=off;0000:a1:00.0")
	must(t, err)
	p, err := New(Options{Devices: devices})
	must(t, err)
	for _, tc := range []struct {
		name, from, to string
		want           gpu.Link
		err            error
	}{
		{"itself", "0000:a0:00.0", "0000:a0:00.0", gpu.Link{Access: true, Atomics: true}, nil},
		{"without atomics", "0000:a0:00.0", "0000:a1:00.0", gpu.Link{Access: true}, nil},
		{"with atomics", "0000:a1:00.0", "0000:a0:00.0", gpu.Link{Access: true, Atomics: true}, nil},
		{"not there", "0000:a1:00.0", "0000:a2:00.0", gpu.Link{}, gpu.ErrNoDevice},
	} {
		if got, err := p.Link(tc.from, tc.to); got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: Link = %+v, %v, want %+v, %v", tc.name, got, err, tc.want, tc.err)
		}
	}
}

func TestPeerAtomics(t *testing.T) {
	devices, err := ParseDevices("0000:a0:00.0;0000:a1:00.0,peer=off")
	must(t, err)
	p, err := New(Options{Devices: devices})
	must(t, err)
	for _, tc := range []struct {
		device int
		busID  string
		want   bool
	}{
		{0, "0000:a0:00.0", true}, {0, "0000:a1:00.0", true}, {0, "0000:a7:00.0", true}, {0, "elsewhere", false},
		{1, "0000:a1:00.0", true}, {1, "0000:a0:00.0", false},
	} {
		if got := openOn(t, p, tc.device).PeerAtomics(tc.busID); got != tc.want {
			t.Errorf("device %d: PeerAtomics(%s) = %v, want %v", tc.device, tc.busID, got, tc.want)
		}
	}
}

func TestMapHostRefuses(t *testing.T) {
	_, d := open(t, Options{})
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	defer unix.Munmap(mem)
	_, unmap, err := d.MapHost(mem[page : 2*page])
	must(t, err)
	for _, tc := range []struct {
		name string
		mem  []byte
	}{
		{"nothing", nil},
		{"half a page", mem[:page/2]},
		{"off by one", mem[1 : page+1]},
		{"mapped", mem[page : 2*page]},
		{"partly mapped", mem},
	} {
		if _, _, err := d.MapHost(tc.mem); err == nil {
			t.Errorf("%s: want an error", tc.name)
		}
	}
	if c := d.Counts(); c.HostMaps != 1 {
		t.Errorf("%d host mappings, want 1", c.HostMaps)
	}
	must(t, unmap())
}

func TestCallerStreams(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, d := open(t, Options{})
	a := alloc(t, d, 4096)
	e := event(t, d)

	if err := d.RecordCaller(77, e); err == nil || !strings.Contains(err.Error(), "0x4d") {
		t.Errorf("RecordCaller(77) = %v, want an error that names it", err)
	}

	release := hold(d)
	defer release()
	mine, err := d.DefaultStream()
	must(t, err)
	must(t, mine.Copy([]gpu.Copy{{Dst: a, Src: a + 8, Length: 8}}))
	must(t, d.RecordCaller(0, e))
	if done, err := e.Done(); done || err != nil {
		t.Errorf("Done behind this thread's work = %v, %v, want false", done, err)
	}
	done := make(chan bool)
	go func() {
		runtime.LockOSThread() // this goroutine has another thread, with nothing pending
		defer runtime.UnlockOSThread()
		other := &Event{d: d.d}
		err := d.RecordCaller(0, other)
		ok, failed := other.Done()
		done <- ok && err == nil && failed == nil
	}()
	if !<-done {
		t.Error("another thread's default stream has to wait for this one's")
	}
	release()
	must(t, wait(e))

	handle, s, err := d.NewUserStream()
	must(t, err)
	must(t, d.RecordCaller(handle, e))
	must(t, wait(e))
	must(t, d.SyncCaller(0))
	s.SetCapturing(true)
	for what, err := range map[string]error{
		"RecordCaller": d.RecordCaller(handle, e),
		"SyncCaller":   d.SyncCaller(handle),
		"Copy":         s.Copy([]gpu.Copy{{Dst: a, Src: a + 8, Length: 8}}),
	} {
		if !errors.Is(err, gpu.ErrCapturing) {
			t.Errorf("%s on a capturing stream: err = %v, want %v", what, err, gpu.ErrCapturing)
		}
	}
	s.SetCapturing(false)
	must(t, d.RecordCaller(handle, e))
	must(t, s.Close())
	if err := d.RecordCaller(handle, e); err == nil {
		t.Error("RecordCaller on a closed stream: want an error")
	}
	if err := d.SyncCaller(handle); err == nil {
		t.Error("SyncCaller on a closed stream: want an error")
	}
}

func TestSyncCallerWaits(t *testing.T) {
	_, d := open(t, Options{})
	a := alloc(t, d, 4096)
	handle, s, err := d.NewUserStream()
	must(t, err)
	defer s.Close()
	release := hold(d)
	must(t, s.Copy([]gpu.Copy{{Dst: a, Src: a + 8, Length: 8}}))
	bad := s.Copy([]gpu.Copy{{Dst: a, Src: 8, Length: 8}})
	synced := make(chan error)
	go func() { synced <- d.SyncCaller(handle) }()
	for s.waiters.Load() == 0 {
		select {
		case err := <-synced:
			t.Fatalf("SyncCaller returned (%v) under a copy", err)
		default:
			runtime.Gosched()
		}
	}
	release()
	if err := <-synced; err == nil || !errors.Is(err, bad) {
		t.Errorf("SyncCaller = %v, want %v", err, bad)
	}
	if idle, _ := s.Idle(); !idle {
		t.Error("the stream is not idle after SyncCaller")
	}
}

func TestFail(t *testing.T) {
	_, d := open(t, Options{})
	addr, err := d.Alloc(4096)
	must(t, err)
	must(t, d.CopyIn(addr, []byte("ab")))
	h, err := d.Export(addr)
	must(t, err)
	imported, err := d.Import(h, 4096)
	must(t, err)
	mem, word := words(t, d)
	s, e := stream(t, d), event(t, d)

	started, gate := make(chan struct{}), make(chan struct{})
	d.SetCopyHook(func([]gpu.Copy) { close(started); <-gate })
	must(t, s.Copy([]gpu.Copy{{Dst: addr, Src: addr + 1, Length: 1}}))
	must(t, s.Write64(word, 1))
	must(t, s.Record(e))
	<-started
	boom := errors.New("boom")
	d.Fail(boom)
	d.Fail(errors.New("too late"))
	close(gate)

	fatal := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, gpu.ErrFatal) || !errors.Is(err, boom) {
			t.Errorf("%s: err = %v, want %v of %v", what, err, gpu.ErrFatal, boom)
		}
	}
	fatal("Done", wait(e))
	_, err = s.Idle()
	fatal("Idle", err)
	fatal("Copy", s.Copy([]gpu.Copy{{Dst: addr, Src: addr + 1, Length: 1}}))
	fatal("Write64", s.Write64(word, 2))
	fatal("Record", s.Record(e))
	fatal("Wait", s.Wait(e))
	_, err = d.Alloc(1)
	fatal("Alloc", err)
	_, err = d.Export(addr)
	fatal("Export", err)
	_, err = d.Import(h, 4096)
	fatal("Import", err)
	_, err = d.NewStream()
	fatal("NewStream", err)
	_, err = d.NewEvent()
	fatal("NewEvent", err)
	_, _, err = d.MapHost(mem)
	fatal("MapHost", err)
	fatal("RecordCaller", d.RecordCaller(0, e))
	fatal("SyncCaller", d.SyncCaller(0))
	fatal("CopyIn", d.CopyIn(addr, []byte{1}))
	fatal("CopyOut", d.CopyOut([]byte{1}, addr))
	if mem[0] != 0 {
		t.Error("the stream went on after the device was lost")
	}
	// What is to be freed is freed, and Counts (open) sees that nothing is left.
	fatal("CloseImport", d.CloseImport(imported))
	fatal("Free", d.Free(addr))
}

func TestClose(t *testing.T) {
	p, err := New(Options{})
	must(t, err)
	a, err := p.Open("0000:a0:00.0")
	must(t, err)
	b, err := p.Open("0000:a0:00.0")
	must(t, err)
	addr, err := b.Alloc(1)
	must(t, err)
	must(t, a.Close())
	must(t, a.Close()) // is not b's
	if _, err := a.Alloc(1); !errors.Is(err, gpu.ErrClosed) {
		t.Errorf("Alloc on a closed device: err = %v, want %v", err, gpu.ErrClosed)
	}
	if err := a.Free(addr); !errors.Is(err, gpu.ErrClosed) {
		t.Errorf("Free on a closed device: err = %v, want %v", err, gpu.ErrClosed)
	}
	if err := b.Close(); err == nil || !strings.Contains(err.Error(), "1 allocations") {
		t.Errorf("Close with an allocation: err = %v, want one that counts it", err)
	}
	if got := p.Classify(addr, 1).Kind; got != gpu.DeviceMemory {
		t.Errorf("what was left open is %v, want it to stay", got)
	}
}
