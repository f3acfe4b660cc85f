package capi

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Blocks of managed memory never overlap, are as large as was asked for, and, all given
// back, leave whole slabs.
func TestManagedBuffers(t *testing.T) {
	e, _ := open(t, NewLibrary())
	rapid.Check(t, func(t *rapid.T) {
		type block struct{ addr, length uint64 }
		var live []block
		t.Repeat(map[string]func(*rapid.T){
			"allocate": func(t *rapid.T) {
				length := uint64(1) << rapid.IntRange(0, 24).Draw(t, "order")
				length += uint64(rapid.IntRange(0, 3).Draw(t, "more"))
				addr, err := e.Allocate(length)
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range live {
					if addr < b.addr+b.length && b.addr < addr+length {
						t.Fatalf("%d bytes at %#x overlap %d at %#x", length, addr, b.length, b.addr)
					}
				}
				live = append(live, block{addr, length})
			},
			"free": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("the random run has freed everything already")
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				e.Free(live[i].addr)
				e.Free(live[i].addr) // it is gone: nothing happens
				live = slices.Delete(live, i, i+1)
			},
		})
		for _, b := range live {
			e.Free(b.addr)
		}
		m := &e.managed
		for order, spare := range m.spare {
			if want := map[bool]int{true: len(m.slabs)}[order == slabOrder]; len(spare) != want {
				t.Fatalf("%d blocks of order %d are spare, want %d", len(spare), order, want)
			}
		}
	})
}

func TestLargeManagedBuffer(t *testing.T) {
	e, _ := open(t, NewLibrary())
	for range 3 { // each is unmapped and unregistered again
		addr, err := e.Allocate(slabSize + 1)
		if err != nil {
			t.Fatal(err)
		}
		e.Free(addr)
		if len(e.managed.maps) != 0 {
			t.Fatalf("%d mappings are left", len(e.managed.maps))
		}
	}
	for _, length := range []uint64{0, 1 << 60} {
		if _, err := e.Allocate(length); Code(err) != -1 {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}
