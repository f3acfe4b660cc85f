package segment

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/wire"
)

func TestCover(t *testing.T) {
	opts := twoNICs()
	opts.MaxMR = 0x1000
	l := newLocal(t, opts)
	add(t, l, 0x10000, 0x2800, "cpu:0") // three chunks
	add(t, l, 0x12800, 0x800, "cpu:1")  // touches
	add(t, l, 0x20000, 0x1000, "cuda:0")
	for _, tc := range []struct {
		name         string
		addr, length uint64
		want         string // pieces, or part of the error
	}{
		{"nothing", 0x99, 0, ""},
		{"first byte", 0x10000, 1, "10000+1"},
		{"one chunk", 0x10000, 0x1000, "10000+1000"},
		{"over a chunk's border", 0x10fff, 2, "10fff+1 11000+1"},
		{"over two buffers", 0x11fff, 0x1001, "11fff+1 12000+800 12800+800"},
		{"last byte", 0x20fff, 1, "20fff+1"},
		{"below all", 0xffff, 1, "address 0xffff is in no buffer that this process has registered; the nearest, [0x10000, 0x12800), begins 1 bytes above"},
		{"into a gap", 0x12fff, 2, "address 0x13000 is in no buffer that this process has registered (range of 2 bytes at 0x12fff); the nearest, [0x12800, 0x13000), ends 0 bytes below"},
		{"above all", 0xb7869c1cb5cae9f3, 8, "0xb7869c1cb5cae9f3 is in no buffer that this process has registered (range of 8 bytes at 0xb7869c1cb5cae9f3); the nearest, [0x20000, 0x21000), ends"},
		{"over the end of memory", 1<<64 - 1, 2, "runs over the end of the address space"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var cur Cursor
			pieces, err := l.Cover(&cur, nil, tc.addr, tc.length)
			if err != nil {
				if !strings.Contains(err.Error(), tc.want) || len(pieces) > 0 {
					t.Errorf("error %v with %d pieces, want %q", err, len(pieces), tc.want)
				}
				return
			}
			var got []string
			for _, p := range pieces {
				if p.Addr < p.Chunk.Addr || p.Addr+p.Length > p.Chunk.Addr+p.Chunk.Length {
					t.Errorf("piece %#x+%#x is not in its chunk", p.Addr, p.Length)
				}
				got = append(got, fmt.Sprintf("%x+%x", p.Addr, p.Length))
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("pieces %s, want %s", s, tc.want)
			}
		})
	}
}

func TestFind(t *testing.T) {
	l := newLocal(t, twoNICs())
	b := add(t, l, 0x1000, 0x1000, "cpu:0")
	add(t, l, 0x2000, 0x1000, "cpu:0")
	for _, tc := range []struct {
		addr, length uint64
		ok           bool
	}{
		{0x1000, 0x1000, true},
		{0x1fff, 1, true},
		{0x1fff, 2, false}, // touching buffers are not joined
		{0x1000, 0, false},
		{0xfff, 1, false},
		{0x1000, 1<<64 - 1, false},
	} {
		var cur Cursor
		if got, err := l.Find(&cur, tc.addr, tc.length); (err == nil) != tc.ok || tc.ok && got != b {
			t.Errorf("Find(%#x, %d) = %v, %v", tc.addr, tc.length, got, err)
		}
	}
	var empty *NotCoveredError
	if _, err := newLocal(t, twoNICs()).Find(new(Cursor), 1, 1); !errors.As(err, &empty) || !strings.Contains(err.Error(), "it has registered none") {
		t.Errorf("without buffers: %v", err)
	}
}

// TestCoverAgainstModel compares with a map from byte to buffer.
func TestCoverAgainstModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const space = 400
	l := newLocal(t, LocalOptions{Protocol: wire.ProtocolRDMA, MaxMR: 7})
	var owner [space + 64]*Buffer
	var cur Cursor
	for range 4000 {
		addr, length := rnd.Uint64N(space)+1, rnd.Uint64N(30)+1
		switch rnd.IntN(4) {
		case 0:
			b := &Buffer{Addr: addr, Length: length}
			free := !slices.ContainsFunc(owner[addr:addr+length], func(o *Buffer) bool { return o != nil })
			if err := l.Reserve(b); (err == nil) != free {
				t.Fatalf("Reserve(%d, %d): %v, free %v", addr, length, err, free)
			}
			if free {
				l.Publish(b)
				for i := range length {
					owner[addr+i] = b
				}
			}
		case 1:
			o := owner[addr]
			bufs, err := l.Withdraw(addr)
			if ok := o != nil && o.Addr == addr; (err == nil) != ok {
				t.Fatalf("Withdraw(%d): %v, want %v", addr, err, ok)
			}
			l.Free(bufs...)
			for _, b := range bufs {
				clear(owner[b.Addr : b.Addr+b.Length])
			}
		default:
			covered := !slices.Contains(owner[addr:addr+length], nil)
			pieces, err := l.Cover(&cur, nil, addr, length)
			if (err == nil) != covered {
				t.Fatalf("Cover(%d, %d): %v, covered %v", addr, length, err, covered)
			}
			at := addr
			for _, p := range pieces {
				if p.Addr != at || p.Length == 0 || p.Length > 7 || owner[at] != p.Buffer || owner[at+p.Length-1] != p.Buffer {
					t.Fatalf("Cover(%d, %d): bad piece %d+%d", addr, length, p.Addr, p.Length)
				}
				at += p.Length
			}
			if covered && at != addr+length {
				t.Fatalf("Cover(%d, %d) ends at %d", addr, length, at)
			}
		}
	}
}

func TestLocalDevice(t *testing.T) {
	l := newLocal(t, twoNICs())
	near0, near1 := add(t, l, 0x1000, 0x1000, "cpu:0"), add(t, l, 0x2000, 0x1000, "cpu:1")
	parts := add(t, l, 0x3000, 0x1001, "segments:4096:0,1")
	odd := add(t, l, 0x8000, 0x1000, "shelf:7")
	for _, tc := range []struct {
		name  string
		b     *Buffer
		addr  uint64
		retry int
		want  int
	}{
		{"near 0", near0, 0x1000, 0, 0},
		{"near 1", near1, 0x2000, 0, 1},
		{"retry 1 is the first", near1, 0x2000, 1, 1},
		{"retry 2 is the next", near1, 0x2000, 2, 0},
		{"retry 3 is the first again", near1, 0x2000, 3, 1},
		{"first part", parts, 0x37ff, 0, 0},
		{"second part", parts, 0x3800, 0, 1},
		{"its odd last byte", parts, 0x4000, 0, 1},
		{"unknown location", odd, 0x8000, 0, 0}, // any; rnd is 0
	} {
		if got, ok := l.Device(tc.b, tc.addr, tc.retry, 0); !ok || got != tc.want {
			t.Errorf("%s: device %d, %v, want %d", tc.name, got, ok, tc.want)
		}
	}
	l.SetActive(0, false)
	if got, ok := l.Device(near0, 0x1000, 0, 0); !ok || got != 1 {
		t.Errorf("with device 0 off: device %d, %v, want 1", got, ok)
	}
	l.SetActive(1, false)
	if got, ok := l.Device(near0, 0x1000, 0, 0); ok {
		t.Errorf("with both off: device %d", got)
	}
}

func TestLocalLookupDoesNotAllocate(t *testing.T) {
	l := newLocal(t, twoNICs())
	var bufs []*Buffer
	for i := range uint64(1000) {
		bufs = append(bufs, add(t, l, 0x100000+i*0x2000, 0x1000, "segments:4096:0,1"))
	}
	var cur Cursor
	pieces := make([]Piece, 0, 8)
	i := uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		i = (i + 7) % 1000
		var err error
		if pieces, err = l.Cover(&cur, pieces[:0], 0x100000+i*0x2000+5, 100); err != nil {
			t.Fatal(err)
		}
		if _, ok := l.Device(bufs[i], bufs[i].Addr+0x900, 0, i); !ok {
			t.Fatal("no device")
		}
		if _, err := l.Find(&cur, bufs[i].Addr, 1); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a lookup, want 0", n)
	}
}

func BenchmarkCover(b *testing.B) {
	l := newLocal(b, twoNICs())
	for i := range uint64(15000) {
		add(b, l, 0x100000+i*0x2000, 0x1000, "cpu:0")
	}
	for _, step := range []uint64{0, 7919} {
		b.Run(fmt.Sprintf("step=%d", step), func(b *testing.B) {
			var cur Cursor
			pieces := make([]Piece, 0, 8)
			i := uint64(0)
			for b.Loop() {
				i = (i + step) % 15000
				pieces, _ = l.Cover(&cur, pieces[:0], 0x100000+i*0x2000+5, 100)
			}
		})
	}
}
