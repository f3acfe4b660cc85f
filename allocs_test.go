package railhop_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/railhop/railhop"
)

// round returns a function that submits requests, waits for them, and makes the
// batch empty again.
func round(t *testing.T, e *railhop.Engine, reqs []railhop.Request) func() {
	b := e.NewBatch(len(reqs))
	return func() {
		if err := b.Submit(reqs); err != nil {
			t.Fatal(err)
		}
		if err := b.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		if s := b.Poll(); s != railhop.Completed {
			t.Fatal(s)
		}
		if err := b.Reset(); err != nil {
			t.Fatal(err)
		}
	}
}

// steady checks that a round costs no allocation, whoever in the process makes
// it: the caller, the pump, the software NIC or the software GPU. There are so many
// rounds that what happens once a second, such as a stats file, does not count.
func steady(t *testing.T, f func()) {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for range 200 {
		f() // queues and tables grow to their size
	}
	if n := testing.AllocsPerRun(1000, f); n > 0 {
		t.Errorf("%v allocations a round, want none", n)
	}
}

// requests are n writes or reads of length bytes, each from another place.
func requests(op railhop.Opcode, id railhop.SegmentID, src, dst, length uint64, n int) []railhop.Request {
	reqs := make([]railhop.Request, n)
	for i := range reqs {
		at := uint64(n-1-i) * length // backwards, so that nothing is joined
		reqs[i] = railhop.Request{Op: op, Source: src + at, Target: id, TargetAddr: dst + at, Length: length}
	}
	return reqs
}

func TestDirectAllocatesNothing(t *testing.T) {
	a, err := open(with(rankSettings("g", 0), settings{"MC_PXN_ENABLE": "0"}), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	b, err := open(targetSettings(), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	const size = 1 << 20
	src, err := a.memory(size)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := b.memory(size)
	if err != nil {
		t.Fatal(err)
	}
	id, err := a.engine.OpenSegment(t.Context(), b.engine.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		op     railhop.Opcode
		length uint64
		n      int
	}{
		{"one small write", railhop.Write, 4096, 1},
		{"a write of many slices", railhop.Write, size, 1},
		{"many writes", railhop.Write, 4096, 64},
		{"a read", railhop.Read, 4096, 1},
	} {
		t.Run(c.name, func(t *testing.T) { steady(t, round(t, a.engine, requests(c.op, id, src, dst, c.length, c.n))) })
	}
	for _, p := range []*process{a, b} {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestRelayedAllocatesNothing(t *testing.T) {
	target, name := start(t, targetSettings(), t.TempDir())
	r := newRig(t, target, name, 1<<20, settings{})
	defer r.log.end()
	r.log.min = slog.LevelWarn
	r.open(options{})
	r.write()
	for _, c := range []struct {
		name   string
		length uint64
		n      int
	}{
		{"one small write", 4096, 1},
		{"a write of four pieces", 1 << 20, 1},
		{"many writes", 4096, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			steady(t, round(t, r.sender.engine, requests(railhop.Write, r.id, r.src, r.dst, c.length, c.n)))
		})
	}
	if s := r.sender.engine.Stats(); len(s.Fallbacks) > 0 {
		t.Errorf("fallbacks: %v", s.Fallbacks)
	}
	if err := r.sender.close(); err != nil {
		t.Error(err)
	}
}
