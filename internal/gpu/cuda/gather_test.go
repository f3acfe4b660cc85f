package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
)

// pages returns n copies of one length, from scattered pages to back to back.
func pages(n int, length uint64) []gpu.Copy {
	copies := make([]gpu.Copy, n)
	for i := range copies {
		copies[i] = gpu.Copy{Dst: 1<<30 + uint64(i)*length, Src: 1<<40 + uint64(i*7919%n)*2*length, Length: length}
	}
	return copies
}

func cp(dst, src, length uint64) gpu.Copy { return gpu.Copy{Dst: dst, Src: src, Length: length} }

func TestFill(t *testing.T) {
	const cut, engine = 4096, 1 << 20
	for _, tc := range []struct {
		name   string
		copies []gpu.Copy
		room   int
		spans  []gpu.Copy
		engine []gpu.Copy
		run    gpu.Copy // pending
		n      int
	}{
		{name: "none", room: 8},
		{name: "empty", copies: []gpu.Copy{{Dst: 5, Src: 6}, {}}, room: 8, n: 2},
		{
			name: "apart", copies: []gpu.Copy{cp(128, 1000, 10), cp(256, 2000, 20)}, room: 8, n: 2,
			spans: []gpu.Copy{cp(128, 1000, 10), cp(256, 2000, 20)},
		},
		{
			name: "back to back at both ends", copies: []gpu.Copy{cp(128, 1000, 10), cp(138, 1010, 20), {}, cp(158, 1030, 1), cp(159, 9000, 1)}, room: 8, n: 5,
			spans: []gpu.Copy{cp(128, 1000, 31), cp(159, 9000, 1)},
		},
		{
			name: "one run", copies: []gpu.Copy{cp(128, 1000, 10), cp(138, 1010, 20), cp(158, 1030, 1)}, room: 8, n: 3,
			spans: []gpu.Copy{cp(128, 1000, 31)},
		},
		{
			name: "cut on lines of the destination", copies: []gpu.Copy{cp(130, 1000, 8200)}, room: 8, n: 1,
			spans: []gpu.Copy{cp(130, 1000, 4094), cp(4224, 5094, 4096), cp(8320, 9190, 10)},
		},
		{
			name: "long", copies: []gpu.Copy{cp(0, 0, engine), cp(engine, 5*engine, engine-1), cp(8*engine, 9*engine, engine/2), cp(8*engine+engine/2, 9*engine+engine/2, engine)}, room: 300, n: 4,
			engine: []gpu.Copy{cp(0, 0, engine), cp(8*engine, 9*engine, engine+engine/2)},
		},
		{
			name: "no room for the second", copies: []gpu.Copy{cp(128, 1000, 10), cp(256, 2000, 20), cp(512, 3000, 30)}, room: 1, n: 2,
			spans: []gpu.Copy{cp(128, 1000, 10)}, run: cp(256, 2000, 20),
		},
		{
			name: "no room for all of one", copies: []gpu.Copy{cp(0, 0, 10), cp(4096, 5000, 5000)}, room: 2, n: 2,
			spans: []gpu.Copy{cp(0, 0, 10)}, run: cp(4096, 5000, 5000),
		},
		{name: "no room at all", copies: []gpu.Copy{cp(128, 1000, 10)}, n: 1, run: cp(128, 1000, 10)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			room := make([]gpu.Copy, tc.room)
			var b filling
			n := b.fill(room, tc.copies, cut, engine)
			if tc.name == "long" {
				tc.spans = room[:b.spans] // its shape is the case above
				if want := uint64(engine - 1); b.bytes != want {
					t.Errorf("%d bytes in the table, want %d", b.bytes, want)
				}
			}
			if !slices.Equal(room[:b.spans], tc.spans) {
				t.Errorf("spans %+v, want %+v", room[:b.spans], tc.spans)
			}
			if !slices.Equal(b.engine, tc.engine) {
				t.Errorf("to engines %+v, want %+v", b.engine, tc.engine)
			}
			if b.run != tc.run || n != tc.n {
				t.Errorf("pending %+v after %d copies, want %+v after %d", b.run, n, tc.run, tc.n)
			}
		})
	}
}

// TestTable takes and frees places of all sizes at random, against a model that
// marks each place: none is given twice, and all comes back.
func TestTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	done := new(atomic.Uint64)
	tab := &table{spans: make([]gpu.Copy, 1000), done: done}
	owner := make([]uint64, len(tab.spans))
	wraps, full := 0, 0
	for range 100_000 {
		if rng.IntN(3) == 0 {
			done.Store(min(tab.launched, done.Load()+rng.Uint64N(6)))
		}
		before := tab.next
		room := tab.room()
		if tab.next < before {
			wraps++
		}
		want := 1 + rng.IntN(300)
		n := min(want, len(room))
		if n == 0 {
			full++
			continue
		}
		if &room[0] != &tab.spans[tab.next] {
			t.Fatal("the room does not begin where the next spans go")
		}
		tab.launched++
		for i := tab.next; i < tab.next+n; i++ {
			if owner[i] > done.Load() {
				t.Fatalf("launch %d is given place %d, which launch %d reads", tab.launched, i, owner[i])
			}
			owner[i] = tab.launched
		}
		tab.take(n, tab.launched)
	}
	if wraps < 100 || full < 100 {
		t.Errorf("%d wraps, %d times full: the test has lost its point", wraps, full)
	}
	done.Store(tab.launched)
	if n := len(tab.room()); n != len(tab.spans) {
		t.Errorf("%d places free at the end, want %d", n, len(tab.spans))
	}
}

func TestTableLaunches(t *testing.T) {
	done := new(atomic.Uint64)
	tab := &table{spans: make([]gpu.Copy, 1000), done: done}
	for range tableBatches {
		if len(tab.room()) == 0 {
			t.Fatal("no room before the last launch")
		}
		tab.launched++
		tab.take(1, tab.launched)
	}
	if n := len(tab.room()); n != 0 {
		t.Errorf("room for %d spans with %d launches underway, want none", n, tableBatches)
	}
	done.Store(1)
	if len(tab.room()) == 0 {
		t.Error("no room after the first has finished")
	}
}

func TestShape(t *testing.T) {
	for _, tc := range []struct {
		blocks, n                  int
		bytes                      uint64
		grid, threads, share, team int
	}{
		{4, 0, 0, 1, 256, 1, 32},
		{4, 2, 8192, 1, 256, 1, 32},
		{4, 4096, 8 << 20, 4, 1024, 32, 16},
		{4, 4096, 8<<20 + 1, 4, 1024, 32, 16},
		{4, 4096, 9 << 20, 4, 1024, 32, 32},
		{16, 4096, 4 << 20, 16, 1024, 8, 8},
		{32, 4096, 4 << 20, 32, 1024, 4, 8},
		{64, 4096, 4 << 20, 64, 1024, 2, 16},
		{132, 4096, 8 << 20, 132, 1024, 1, 32},
		{16, 512, 8 << 20, 16, 1024, 1, 32},
		{4, 4096, 4096, 4, 1024, 32, 8},
		{16, 100, 100 << 10, 7, 1024, 1, 32},
		{1, 9000, 8 << 20, 1, 1024, 32, 8},
	} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			grid, threads, share, team := shape(tc.blocks, tc.n, tc.bytes)
			if grid != tc.grid || threads != tc.threads || share != tc.share || team != tc.team {
				t.Errorf("shape = %d blocks of %d, share %d, team %d, want %d of %d, %d, %d", grid, threads, share, team, tc.grid, tc.threads, tc.share, tc.team)
			}
		})
	}
}

func BenchmarkFill(b *testing.B) {
	for _, length := range []uint64{2 << 10, 16 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dx%d", 8<<20/length, length), func(b *testing.B) {
			copies := pages(int(8<<20/length), length)
			room := make([]gpu.Copy, tableSpans)
			var f filling
			for b.Loop() {
				f = filling{engine: f.engine[:0]}
				f.fill(room, copies, cutBytes(4, copies), engineBytes(4))
			}
		})
	}
}
