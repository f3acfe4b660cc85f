package pattern

import (
	"bytes"
	"encoding/hex"
	"testing"

	"pgregory.net/rapid"
)

func TestFillIsTheSameHoweverCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		start := rapid.Uint64Range(0, 1<<40).Draw(t, "start")
		whole := make([]byte, rapid.IntRange(0, 200).Draw(t, "length"))
		Fill(whole, seed, start)
		cut := rapid.IntRange(0, len(whole)).Draw(t, "cut")
		parts := make([]byte, len(whole))
		Fill(parts[:cut], seed, start)
		Fill(parts[cut:], seed, start+uint64(cut))
		if !bytes.Equal(whole, parts) {
			t.Fatalf("cut at %d: got %x, want %x", cut, parts, whole)
		}
	})
}

func TestFillStaysInBounds(t *testing.T) {
	for length := range 40 {
		for off := range uint64(8) {
			buf := bytes.Repeat([]byte{0xee}, 64)
			Fill(buf[8:8+length], 1, off)
			for i, b := range buf {
				if (i < 8 || i >= 8+length) && b != 0xee {
					t.Fatalf("length %d, offset %d: byte %d outside was written", length, off, i-8)
				}
			}
		}
	}
}

// TestFillIsFixed holds the stream to bytes worked out elsewhere: the two ends of
// a transfer may be different builds.
func TestFillIsFixed(t *testing.T) {
	got := make([]byte, 16)
	Fill(got, 7, 3)
	const want = "66ccabb57445ceab7e97c2b4b8fec88e"
	if s := hex.EncodeToString(got); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
}

func TestMismatchCountsEveryFlippedByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		off := rapid.Uint64Range(0, 1<<40).Draw(t, "offset")
		buf := make([]byte, rapid.IntRange(0, 100).Draw(t, "length"))
		Fill(buf, seed, off)
		wantFirst, wantN := -1, 0
		for i := range buf {
			if rapid.IntRange(0, 9).Draw(t, "flip") != 0 {
				continue
			}
			buf[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
			if wantFirst < 0 {
				wantFirst = i
			}
			wantN++
		}
		if first, n := Mismatch(buf, seed, off); first != wantFirst || n != wantN {
			t.Fatalf("Mismatch = %d, %d, want %d, %d", first, n, wantFirst, wantN)
		}
	})
}

func TestMismatchSeesOtherStreams(t *testing.T) {
	const size = 1 << 16
	for _, tc := range []struct {
		name      string
		seed, off uint64
	}{
		{"next seed", 2, 0},
		{"one byte on", 1, 1},
		{"one word on", 1, 8},
		{"a page on", 1, 4096},
		{"high offset", 1, 1 << 63},
	} {
		t.Run(tc.name, func(t *testing.T) {
			buf := make([]byte, size)
			Fill(buf, tc.seed, tc.off)
			// One byte in 256 is equal by chance: 256 of them, give or take 16.
			if _, n := Mismatch(buf, 1, 0); n < size-400 {
				t.Errorf("%d of %d bytes differ, want nearly all", n, size)
			}
		})
	}
	for _, b := range []byte{0, 0xa5, 0xff} {
		buf := bytes.Repeat([]byte{b}, size)
		if _, n := Mismatch(buf, 1, 0); n < size-400 {
			t.Errorf("constant %#x: %d of %d bytes differ, want nearly all", b, n, size)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	buf := make([]byte, 1000)
	if n := testing.AllocsPerRun(10, func() {
		Fill(buf, 1, 3)
		if first, _ := Mismatch(buf, 1, 3); first != -1 {
			t.Error("mismatch")
		}
	}); n != 0 {
		t.Errorf("%v allocations a run, want 0", n)
	}
}

func BenchmarkFill(b *testing.B) {
	buf := make([]byte, 1<<20)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		Fill(buf, 1, 0)
	}
}

func BenchmarkMismatch(b *testing.B) {
	for _, off := range []uint64{0, 3} {
		b.Run(map[uint64]string{0: "aligned", 3: "odd"}[off], func(b *testing.B) {
			buf := make([]byte, 1<<20)
			Fill(buf, 1, off)
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if first, _ := Mismatch(buf, 1, off); first >= 0 {
					b.Fatal("mismatch at", first)
				}
			}
		})
	}
}

func BenchmarkMismatchSmall(b *testing.B) {
	buf := make([]byte, 512)
	Fill(buf, 1, 0)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if first, _ := Mismatch(buf, 1, 0); first >= 0 {
			b.Fatal("mismatch at", first)
		}
	}
}
