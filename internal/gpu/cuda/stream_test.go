package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/gpu"
)

func drain(t testing.TB, s gpu.Stream) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		idle, err := s.Idle()
		if err != nil {
			t.Fatal(err)
		}
		if idle {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the stream is not idle within 30s")
		}
	}
}

// TestLongCopiesKeepTheirOrder gives a stream copies that are long enough to be spread,
// at random among few places, so that most depend on one before. Model and device end
// alike.
func TestLongCopiesKeepTheirOrder(t *testing.T) {
	drivers(t, Options{}, func(t *testing.T, p *Provider, _ string) {
		const places, size, steps = 5, wideBytes, 200
		d := first(t, p)
		base := alloc(t, d, places*size)
		model := make([]byte, places*size)
		rng := rand.New(rand.NewPCG(3, 4))
		for i := 0; i < len(model); i += 1021 {
			model[i] = byte(rng.Uint32())
		}
		if err := d.CopyIn(base, model); err != nil {
			t.Fatal(err)
		}
		words, bell, unmap := mapPage(t, d)
		defer unmap()
		word := hostWord(addressOf(words))
		s, e := newStream(t, d), newEvent(t, d)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		rung := uint64(0)
		for i := range steps {
			from, to := rng.IntN(places), rng.IntN(places)
			if from == to {
				continue
			}
			shift := rng.IntN(256) // in part, so that copies overlap places
			length := size - shift
			c := []gpu.Copy{{Dst: base + uint64(to*size), Src: base + uint64(from*size+shift), Length: uint64(length)}}
			copy(model[to*size:][:length], model[from*size+shift:][:length])
			switch i % 11 {
			case 3:
				must(s.Copy(c))
				must(s.Record(e))
			case 7:
				must(s.Wait(e))
				must(s.Copy(c))
			case 9: // something short behind it
				must(s.Copy(c))
				must(s.Copy([]gpu.Copy{{Dst: base, Src: base + size, Length: 7}, {Dst: base + 100, Src: base + size + 200, Length: 9}}))
				copy(model[:7], model[size:])
				copy(model[100:109], model[size+200:])
			default:
				rung++
				must(s.CopyWrite64(c, bell, rung))
			}
			if now := word.Load(); now > rung {
				t.Fatalf("the bell is at %d, of %d", now, rung)
			}
		}
		drain(t, s)
		if got := word.Load(); got != rung {
			t.Errorf("the bell is at %d, want %d", got, rung)
		}
		got := make([]byte, len(model))
		must(d.CopyOut(got, base))
		if !bytes.Equal(got, model) {
			t.Error("the copies ran in another order than given")
		}
	})
}

// TestBellsRise watches the bell of a row of long pieces, each into a place of its own,
// by copy engines and by the kernel: it never falls, and what it has reached is there.
func TestBellsRise(t *testing.T) {
	drivers(t, Options{}, func(t *testing.T, p *Provider, _ string) {
		const places, size, pieces = 9, 4 << 20, 200
		d := first(t, p)
		src, arena := alloc(t, d, places*size), alloc(t, d, places*size)
		words, bell, unmap := mapPage(t, d)
		defer unmap()
		word := hostWord(addressOf(words))
		s := newStream(t, d)
		seen := uint64(0)
		reach := func(n uint64) {
			t.Helper()
			for deadline := time.Now().Add(30 * time.Second); seen < n; {
				now := word.Load()
				if now < seen || now > pieces {
					t.Fatalf("the bell is at %d after %d", now, seen)
				}
				if time.Now().After(deadline) {
					t.Fatalf("the bell is at %d, want %d", now, n)
				}
				seen = now
			}
		}
		for i := uint64(1); i <= pieces; i++ {
			if i > places {
				reach(i - places) // else its place and its mark are in use
			}
			at := (i - 1) % places * size
			mark := fmt.Appendf(nil, "piece %06d", i)
			if err := d.CopyIn(src+at+size-16, mark); err != nil {
				t.Fatal(err)
			}
			if err := s.CopyWrite64(bellPiece(int(i), arena+at, src+at, size), bell, i); err != nil {
				t.Fatal(err)
			}
			if i%7 == 0 {
				reach(i)
				got := make([]byte, len(mark))
				if err := d.CopyOut(got, arena+at+size-16); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, mark) {
					t.Fatalf("the bell has reached %d, and its last bytes are %q", i, got)
				}
			}
		}
		reach(pieces)
	})
}

// bellPiece is one copy, several long ones, or many spans in another order.
func bellPiece(i int, dst, src, size uint64) []gpu.Copy {
	parts := []uint64{1, 2, 1024}[i/5%3]
	part := size / parts
	copies := make([]gpu.Copy, parts)
	for k := range copies {
		at := (uint64(k) * 7) % parts * part
		copies[k] = gpu.Copy{Dst: dst + at, Src: src + at, Length: part}
	}
	return copies
}

// TestTableIsFull has more underway than the table holds, which does not block: the
// rest goes to copy engines, and all arrives.
func TestTableIsFull(t *testing.T) {
	p, f := fake(t, Options{}, "BATCH_V2", "DRIVER=13000")
	d := first(t, p)
	src, dst := alloc(t, d, 1<<20), alloc(t, d, 1<<20)
	s := newStream(t, d)
	s.wide.tables[0].launched += 2 // as if these never finished
	for range 2 {
		s.wide.tables[0].room()
		s.wide.tables[0].take(tableSpans/2-10, s.wide.tables[0].launched+1000)
	}
	var copies []gpu.Copy
	for i := range uint64(100) {
		copies = append(copies, gpu.Copy{Dst: dst + i*100, Src: src + i*200, Length: 100})
	}
	if err := d.CopyIn(src+99*200, []byte("last")); err != nil {
		t.Fatal(err)
	}
	before := f.calls("cuLaunchKernel")
	if err := s.Copy(copies); err != nil {
		t.Fatal(err)
	}
	if n := f.calls("cuLaunchKernel") - before; n != 1 {
		t.Errorf("%d launches, want 1 for what fits", n)
	}
	if got := d.Stats(); got.Spans != 20 || got.EngineCopies != 80 || got.TableFull != 1 {
		t.Errorf("Stats = %+v, want 20 spans and 80 copies by engines", got)
	}
	got := make([]byte, 4)
	if err := d.CopyOut(got, dst+99*100); err != nil {
		t.Fatal(err)
	}
	if string(got) != "last" {
		t.Errorf("copied %q", got)
	}
}

// TestTurnsWithAFullTable has the stream whose turn it is unable to take more: the
// stream's own table does, and nothing goes to copy engines.
func TestTurnsWithAFullTable(t *testing.T) {
	p, f := fake(t, Options{}, "BATCH_V2", "DRIVER=13000")
	d := first(t, p)
	const size = 4 << 20
	src, dst := alloc(t, d, size), alloc(t, d, size)
	words, bell, unmap := mapPage(t, d)
	defer unmap()
	s := newStream(t, d)
	piece := func(seq uint64) {
		t.Helper()
		if err := s.CopyWrite64(bellPiece(10, dst, src, size), bell, seq); err != nil {
			t.Fatal(err)
		}
	}
	for seq := range uint64(3) { // plain, the first of a round, and the second
		piece(seq + 1)
	}
	if !s.wide.on || s.wide.turn != 2 {
		t.Fatalf("on %v, turn %d, want the third's turn", s.wide.on, s.wide.turn)
	}
	for range 2 * len(s.wide.streams) {
		before := f.calls("cuEventRecord")
		piece(4)
		if n := f.calls("cuEventRecord") - before; n > 1 != (s.wide.turn == 1) {
			t.Errorf("%d events recorded, the next turn is %d: want one for the bell, and more at the start of a round", n, s.wide.turn)
		}
	}
	full := s.wide.tables[s.wide.turn]
	full.launched++ // as if this never finished
	full.room()
	full.take(sideSpans-1000, full.launched+1000)
	piece(5)
	if s.wide.on {
		t.Error("the piece was not for the stream itself")
	}
	if got := d.Stats(); got.EngineCopies != 0 || got.TableFull != 0 || got.Launches != int64(4+2*len(s.wide.streams)) {
		t.Errorf("Stats = %+v, want launches alone", got)
	}
	if got := hostWord(addressOf(words)).Load(); got != 5 {
		t.Errorf("the bell is at %d, want 5", got)
	}
}

// TestWrite64Refuses never gives the driver an address of nobody's.
func TestWrite64Refuses(t *testing.T) {
	p, f := fake(t, Options{}, "BATCH_V2", "DRIVER=13000")
	d := first(t, p)
	_, bell, unmap := mapPage(t, d)
	_, gone, unmapGone := mapPage(t, d)
	unmapGone()
	defer unmap()
	before := f.calls("cuStreamWriteValue64_v2")
	for _, tc := range []struct {
		name string
		addr uint64
	}{
		{"odd", bell + 4}, {"past the page", bell + 1<<20}, {"null", 0}, {"unmapped", gone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStream(t, d)
			if err := s.Write64(tc.addr, 1); err == nil {
				t.Error("Write64: want an error")
			}
			if err := s.CopyWrite64(nil, tc.addr, 1); err == nil {
				t.Error("CopyWrite64: want an error")
			}
			if err := s.Write64(bell, 1); err == nil {
				t.Error("Write64 on a stream that has failed: want an error")
			}
		})
	}
	if n := f.calls("cuStreamWriteValue64_v2") - before; n != 0 {
		t.Errorf("the driver was asked %d times", n)
	}
}

// TestDataPathAllocatesNothing is for what the pump does for each piece.
func TestDataPathAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector empties pools at random")
	}
	drivers(t, Options{}, func(t *testing.T, p *Provider, _ string) {
		d := first(t, p)
		src, dst := alloc(t, d, 32<<20), alloc(t, d, 32<<20)
		_, bell, unmap := mapPage(t, d)
		defer unmap()
		s, e := newStream(t, d), newEvent(t, d)
		many := make([]gpu.Copy, 512)
		for i := range many {
			many[i] = gpu.Copy{Dst: dst + uint64(i)*2048, Src: src + uint64(i)*4096, Length: 2048}
		}
		long := []gpu.Copy{{Dst: dst, Src: src, Length: 4 << 20}}
		few := []gpu.Copy{{Dst: dst, Src: src, Length: 4 << 20}, {Dst: dst + 8<<20, Src: src + 8<<20, Length: 4 << 20}, {Dst: dst + 20<<20, Src: src + 20<<20, Length: 1}}
		for _, tc := range []struct {
			name string
			call func() error
		}{
			{"many short", func() error { return s.Copy(many) }},
			{"one long", func() error { return s.CopyWrite64(long, bell, 1) }},
			{"few", func() error { return s.Copy(few) }},
			{"write", func() error { return s.Write64(bell, 1) }},
			{"record", func() error { return s.Record(e) }},
			{"wait", func() error { return s.Wait(e) }},
			{"done", func() error { _, err := e.Done(); return err }},
			{"idle", func() error { _, err := s.Idle(); return err }},
			{"caller", func() error { return d.RecordCaller(0, e) }},
		} {
			t.Run(tc.name, func(t *testing.T) {
				var failed error
				call := func() { failed = errors.Join(failed, tc.call()) }
				call()
				if n := testing.AllocsPerRun(20, call); n != 0 {
					t.Errorf("%v allocations, want none", n)
				}
				if failed != nil {
					t.Error(failed)
				}
				drain(t, s)
			})
		}
	})
}
