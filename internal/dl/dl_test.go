package dl

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

// fake is a library of names; it has no code.
type fake map[string]uintptr

func (f fake) Symbol(name string) (uintptr, bool) {
	addr, ok := f[name]
	return addr, ok
}

func TestBind(t *testing.T) {
	lib := fake{"old": 1, "new_v2": 2, "new": 3, "other": 4}
	for _, tc := range []struct {
		name    string
		version int
		table   func(a, b *Proc) []Symbol
		a, b    Proc
		missing []string // words of the error
	}{
		{
			name:  "newest name first",
			table: func(a, b *Proc) []Symbol { return []Symbol{{Names: []string{"new_v2", "new"}, Target: a}} },
			a:     2,
		},
		{
			name:  "an older name is as good",
			table: func(a, b *Proc) []Symbol { return []Symbol{{Names: []string{"old_v3", "old_v2", "old"}, Target: a}} },
			a:     1,
		},
		{
			name: "optional and not there",
			table: func(a, b *Proc) []Symbol {
				return []Symbol{{Names: []string{"none"}, Target: a, Optional: true}, {Names: []string{"other"}, Target: b}}
			},
			b: 4,
		},
		{
			name:    "too old for it",
			version: 11,
			table: func(a, b *Proc) []Symbol {
				return []Symbol{{Names: []string{"other"}, Target: a, Optional: true, Since: 12}, {Names: []string{"old"}, Target: b, Since: 11}}
			},
			b: 1,
		},
		{
			name: "all that is missing is named",
			table: func(a, b *Proc) []Symbol {
				return []Symbol{{Names: []string{"x_v2", "x"}, Target: a}, {Names: []string{"old"}, Target: b}, {Names: []string{"y"}, Target: a}}
			},
			missing: []string{"x_v2 or x", "y"},
		},
		{
			name:    "required and too old",
			version: 11,
			table:   func(a, b *Proc) []Symbol { return []Symbol{{Names: []string{"old"}, Target: a, Since: 12}} },
			missing: []string{"old", "needs version 12"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var a, b Proc
			err := Bind(lib, tc.version, tc.table(&a, &b))
			if tc.missing != nil {
				if !errors.Is(err, errors.ErrUnsupported) {
					t.Fatalf("err = %v, want %v", err, errors.ErrUnsupported)
				}
				for _, word := range tc.missing {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("err = %v: want %q in it", err, word)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if a != tc.a || b != tc.b {
				t.Errorf("bound %v and %v, want %v and %v", a, b, tc.a, tc.b)
			}
			if a.Found() != (tc.a != 0) {
				t.Errorf("Found = %v of %v", a.Found(), a)
			}
		})
	}
}

func TestOpenMissing(t *testing.T) {
	_, err := Open("librailhop-is-not-here.so.1", "/nowhere/librailhop.so")
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("err = %v, want %v", err, errors.ErrUnsupported)
	}
	for _, word := range []string{"librailhop-is-not-here.so.1", "/nowhere/librailhop.so", "No such file"} {
		if err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("err = %v: want %q in it", err, word)
		}
	}
}

// c is the C library: there wherever this package works at all.
func c(t testing.TB) Library {
	t.Helper()
	lib, err := Open("librailhop-is-not-here.so.1", "libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	return lib
}

func TestCall(t *testing.T) {
	var procs struct {
		labs, getpid Proc
		abs          func(int32) int32
		strlen       func(string) uint64
	}
	table := []Symbol{
		{Names: []string{"labs"}, Target: &procs.labs},
		{Names: []string{"getpid_v9", "getpid"}, Target: &procs.getpid},
		{Names: []string{"abs"}, Target: &procs.abs},
		{Names: []string{"strlen"}, Target: &procs.strlen},
	}
	if err := Bind(c(t), 0, table); err != nil {
		t.Fatal(err)
	}
	minus := -5
	for what, got := range map[string]uint64{
		"labs(-5)": uint64(procs.labs.Call(uintptr(minus))), "abs(-5)": uint64(procs.abs(-5)), `strlen("seven")`: procs.strlen("seven"),
	} {
		if got != 5 {
			t.Errorf("%s = %d, want 5", what, got)
		}
	}
	if procs.getpid.Call() == 0 {
		t.Error("getpid = 0")
	}
	args := []uintptr{uintptr(minus)}
	if n := testing.AllocsPerRun(100, func() { procs.labs.Call(args...) }); n != 0 {
		t.Errorf("a call allocates %v times", n)
	}
}

func TestSymbolOfLibrary(t *testing.T) {
	lib := c(t)
	got := map[string]bool{}
	for _, name := range []string{"malloc", "railhop_has_no_such_function", ""} {
		_, got[name] = lib.Symbol(name)
	}
	want := map[string]bool{"malloc": true, "railhop_has_no_such_function": false, "": false}
	if !maps.Equal(got, want) {
		t.Errorf("found %v, want %v", slices.Sorted(maps.Keys(got)), want)
	}
}

func BenchmarkCall(b *testing.B) {
	var p Proc
	var f func(int64) int64
	if err := Bind(c(b), 0, []Symbol{{Names: []string{"labs"}, Target: &p}, {Names: []string{"labs"}, Target: &f}}); err != nil {
		b.Fatal(err)
	}
	b.Run("proc", func(b *testing.B) {
		b.ReportAllocs()
		args := []uintptr{1}
		for b.Loop() {
			p.Call(args...)
		}
	})
	b.Run("typed", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f(1)
		}
	})
}
