package shm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestGuardTurnsATruncationIntoAnError(t *testing.T) {
	for _, tc := range []struct {
		name  string
		touch func(b []byte)
	}{
		{"load", func(b []byte) { sink = b[5000] }},
		{"store", func(b []byte) { b[5000] = 1 }},
		{"copy out", func(b []byte) { copy(make([]byte, 4096), b[4096:]) }},
		{"copy in", func(b []byte) { copy(b[4096:], make([]byte, 4096)) }},
		{"string", func(b []byte) { text = string(b[4096:]) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := openDir(t)
			_, m := create(t, d, "a", 8192)
			if err := Guard(func() error { tc.touch(m.Bytes()); return nil }); err != nil {
				t.Fatalf("before: %v", err)
			}
			if err := os.Truncate(filepath.Join(d.Path(), "a"), 4096); err != nil {
				t.Fatal(err)
			}
			deferred := false
			err := Guard(func() error {
				defer func() { deferred = true }()
				sink = m.Bytes()[0] // still there
				tc.touch(m.Bytes())
				return errors.New("went on")
			})
			fault, ok := errors.AsType[*FaultError](err)
			if !ok || !errors.Is(err, ErrTruncated) {
				t.Fatalf("after: %v, want %v", err, ErrTruncated)
			}
			if !m.Contains(fault.Addr) {
				t.Errorf("fault at %#x is not in the mapping", fault.Addr)
			}
			if !deferred {
				t.Error("a deferred call was left out")
			}
			_, other := create(t, d, "b", 8192)
			if other.Contains(fault.Addr) {
				t.Error("fault is in another mapping, too")
			}
		})
	}
}

var (
	sink byte
	text string
)

func TestGuardPassesOn(t *testing.T) {
	want := errors.New("mine")
	if err := Guard(func() error { return want }); err != want {
		t.Errorf("error: %v", err)
	}
	panics := func(name string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s: the panic was swallowed", name)
			}
		}()
		Guard(func() error { f(); return nil })
	}
	var nowhere *int
	panics("nil pointer", func() { *nowhere = 1 })
	panics("index", func() { _ = make([]byte, 1)[len(text)+1] })
	panics("value", func() { panic("x") })
}

func TestGuardsNest(t *testing.T) {
	d := openDir(t)
	_, m := create(t, d, "a", 4096)
	if err := os.Truncate(filepath.Join(d.Path(), "a"), 0); err != nil {
		t.Fatal(err)
	}
	touch := func() error { m.Bytes()[0] = 1; return nil }
	err := Guard(func() error {
		if err := Guard(touch); !errors.Is(err, ErrTruncated) {
			t.Errorf("inner: %v", err)
		}
		return touch() // the outer guard is still up
	})
	if !errors.Is(err, ErrTruncated) {
		t.Errorf("outer: %v", err)
	}
}

func TestGuardAllocatesNothing(t *testing.T) {
	n := 0
	f := func() error { n++; return nil }
	if a := testing.AllocsPerRun(100, func() { Guard(f) }); a != 0 {
		t.Errorf("%v allocations", a)
	}
}

func BenchmarkGuard(b *testing.B) {
	f := func() error { return nil }
	for b.Loop() {
		Guard(f)
	}
}
