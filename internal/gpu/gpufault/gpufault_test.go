package gpufault_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/gpufault"
	"github.com/railhop/railhop/internal/gpu/softgpu"
)

var errBoom = errors.New("boom")

func open(t *testing.T, hook gpufault.Hook) (*gpufault.Provider, gpu.Device) {
	t.Helper()
	soft, err := softgpu.New(softgpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := gpufault.New(soft, hook)
	d, err := p.Open("0000:a0:00.0")
	if err != nil {
		t.Fatal(err)
	}
	return p, d
}

// operations runs each operation once on d and returns the errors by name.
func operations(t *testing.T, d gpu.Device) map[string]error {
	t.Helper()
	below := d.(*gpufault.Device).Device
	addr, err := below.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	e, err := below.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := below.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	errs := make(map[string]error)
	if s, err := d.NewStream(); err != nil {
		errs[gpufault.NewStream] = err
	} else {
		stream.Close()
		stream = s
		errs[gpufault.Wait] = s.Wait(e)
		errs[gpufault.Copy] = s.Copy([]gpu.Copy{{Dst: addr, Src: addr + 2048, Length: 8}})
		errs[gpufault.Record] = s.Record(e)
		errs[gpufault.Write64] = s.Write64(addr, 1) // not host memory: fails by itself
	}
	a, err := d.Alloc(1)
	errs[gpufault.Alloc] = err
	if err == nil {
		errs[gpufault.Free] = d.Free(a)
	}
	h, err := d.Export(addr)
	errs[gpufault.Export] = err
	if err == nil {
		imported, err := d.Import(h, 4096)
		errs[gpufault.Import] = err
		if err == nil {
			errs[gpufault.CloseImport] = d.CloseImport(imported)
		}
	}
	_, _, err = d.MapHost(nil) // fails by itself
	errs[gpufault.MapHost] = err
	_, err = d.NewEvent()
	errs[gpufault.NewEvent] = err
	errs[gpufault.RecordCaller] = d.RecordCaller(0, e)
	errs[gpufault.SyncCaller] = d.SyncCaller(0)
	errs[gpufault.CopyIn] = d.CopyIn(addr, []byte{1})
	errs[gpufault.CopyOut] = d.CopyOut([]byte{1}, addr)
	stream.Close()
	return errs
}

func TestEachOperationCanFail(t *testing.T) {
	for _, op := range []string{
		gpufault.Alloc, gpufault.Free, gpufault.Export, gpufault.Import, gpufault.CloseImport, gpufault.MapHost,
		gpufault.NewStream, gpufault.NewEvent, gpufault.RecordCaller, gpufault.SyncCaller, gpufault.CopyIn, gpufault.CopyOut,
		gpufault.Wait, gpufault.Copy, gpufault.Write64, gpufault.Record,
	} {
		t.Run(op, func(t *testing.T) {
			p, d := open(t, gpufault.Fail(op, 1, 1, errBoom))
			for name, err := range operations(t, d) {
				if got, want := errors.Is(err, errBoom), name == op; got != want {
					t.Errorf("%s: err = %v, want the fault: %v", name, err, want)
				}
			}
			if n := p.Count(op); n != 1 {
				t.Errorf("Count = %d, want 1", n)
			}
		})
	}
	t.Run(gpufault.Open, func(t *testing.T) {
		soft, err := softgpu.New(softgpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p := gpufault.New(soft, gpufault.Fail(gpufault.Open, 2, 0, errBoom))
		for n := 1; n <= 3; n++ {
			if _, err := p.Open("0000:a0:00.0"); errors.Is(err, errBoom) != (n >= 2) {
				t.Errorf("open %d: err = %v", n, err)
			}
		}
	})
}

func TestFailCounts(t *testing.T) {
	_, d := open(t, gpufault.All(
		gpufault.Fail(gpufault.Alloc, 2, 3, errBoom),
		gpufault.Fail(gpufault.Free, 1, 0, errBoom),
	))
	for n := 1; n <= 4; n++ {
		addr, err := d.Alloc(1)
		if want := n == 2 || n == 3; errors.Is(err, errBoom) != want {
			t.Errorf("alloc %d: err = %v, want a fault: %v", n, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "alloc") {
			t.Errorf("alloc %d: %v does not name the operation", n, err)
		}
		if err := d.Free(addr); !errors.Is(err, errBoom) {
			t.Errorf("free %d: err = %v, want a fault", n, err)
		}
	}
}

func TestGateHolds(t *testing.T) {
	gate := gpufault.Hold(gpufault.CopyIn, 2)
	_, d := open(t, gate.Hook)
	addr, err := d.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.CopyIn(addr, []byte("a")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- d.CopyIn(addr, []byte("b")) }()
	<-gate.Reached()
	got := make([]byte, 1)
	if err := d.CopyOut(got, addr); err != nil || got[0] != 'a' {
		t.Errorf("while held: %q, %v, want a", got, err)
	}
	gate.Release()
	gate.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := d.CopyOut(got, addr); err != nil || got[0] != 'b' {
		t.Errorf("released: %q, %v, want b", got, err)
	}
}
