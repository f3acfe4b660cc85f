package lane

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

var geometry = Geometry{Slots: shmabi.Slots, SlotSize: 1 << 20, MaxSpans: shmabi.MaxSpans}

const epoch = 0x1122334455667788

func ready(tb testing.TB) (Mapped, *Sender, *Relay) {
	tb.Helper()
	block := new(shmabi.ControlBlock)
	h := &block.Lanes[3].Header
	h.SenderEpoch.Store(epoch)
	h.ArenaAttached.Store(1)
	h.State.Store(shmabi.LaneReady)
	m := Map(block, 3)
	r := NewRelay(m, geometry, 2)
	if st := r.Adopt(); st != shmabi.LaneReady || r.Epoch() != epoch {
		tb.Fatalf("Adopt: state %d, epoch %#x", st, r.Epoch())
	}
	return m, NewSender(m, geometry, epoch), r
}

func spansOf(seq uint64, n int) ([]shmabi.Plan, uint32) {
	spans := make([]shmabi.Plan, n)
	var sum uint32
	for i := range spans {
		l := uint64(i%7 + 1)
		spans[i] = shmabi.Plan{Dest: seq<<20 | uint64(i+1)<<4, Length: l}
		sum += uint32(l)
	}
	return spans, sum
}

func offer(t *testing.T, s *Sender, n int) uint64 {
	t.Helper()
	spans, sum := spansOf(s.Next(), n)
	if err := s.Prepare(1, []byte("node-b:15001"), spans, sum); err != nil {
		t.Fatal(err)
	}
	return s.Commit()
}

// TestBothEnds runs a sender that revokes at random against a relay, each on its
// own goroutine. Every piece must end exactly once, and as its commit word says.
func TestBothEnds(t *testing.T) {
	const pieces = 20_000
	_, s, r := ready(t)
	sent := make([]bool, pieces+1)
	relayDone := make(chan struct{})
	go func() {
		defer close(relayDone)
		var b Body
		for done := 0; done < pieces; {
			seq, o := r.Look()
			st := xfer.OK
			switch o {
			case Nothing:
				runtime.Gosched()
				continue
			case Broken:
				t.Errorf("sequence %d: broken", seq)
				return
			case Revoked:
				st = xfer.ErrRevoked
			case Piece:
				if !r.Claim(seq) {
					st = xfer.ErrRevoked
					break
				}
				if err := r.Read(seq, &b); err != nil {
					t.Errorf("sequence %d: %v", seq, err)
					return
				}
				want, _ := spansOf(seq, len(b.Plans))
				if last := len(want) - 1; b.Plans[last] != want[last] || string(b.Session) != "node-b:15001" {
					t.Errorf("sequence %d: span %+v, want %+v", seq, b.Plans[last], want[last])
				}
				sent[seq] = true
			}
			r.Pass()
			r.Complete(st)
			r.Flush()
			done++
		}
	}()
	revoked := make([]bool, pieces+1)
	rnd := rand.New(rand.NewPCG(1, 2))
	ended := 0
	for ended < pieces {
		if s.Room() && s.Next() <= pieces {
			seq := offer(t, s, rnd.IntN(40)+1)
			if rnd.IntN(3) == 0 {
				revoked[seq] = s.Revoke(seq)
			}
			s.Ring(seq)
			if rnd.IntN(3) == 0 && !revoked[seq] {
				revoked[seq] = s.Revoke(seq)
			}
		}
		seq, st, ok := s.Reap()
		if !ok {
			runtime.Gosched()
			continue
		}
		ended++
		if revoked[seq] != (st == xfer.ErrRevoked) {
			t.Fatalf("sequence %d: revoked %v and its completion says %v", seq, revoked[seq], st)
		}
	}
	<-relayDone
	for seq := 1; seq <= pieces; seq++ {
		if sent[seq] == revoked[seq] {
			t.Fatalf("sequence %d: sent %v, revoked %v", seq, sent[seq], revoked[seq])
		}
	}
	if r.Underway() || s.InFlight() != 0 {
		t.Error("something is left under way")
	}
}

func TestCredit(t *testing.T) {
	_, s, r := ready(t)
	for range geometry.Slots {
		if !s.Room() {
			t.Fatal("no room in an empty lane")
		}
		s.Ring(offer(t, s, 1))
	}
	if s.Room() {
		t.Fatal("room for a piece beyond the last slot")
	}
	for range geometry.Slots {
		if seq, o := r.Look(); o != Piece || !r.Claim(seq) {
			t.Fatalf("sequence %d: offer %d", seq, o)
		}
		r.Pass()
	}
	if _, o := r.Look(); o != Nothing {
		t.Fatalf("a full lane offers %d", o)
	}
	r.Complete(xfer.OK)
	if _, _, ok := s.Reap(); !ok || !s.Room() {
		t.Fatal("a completion does not return the slot")
	}
}

// TestScribbled gives the relay what a broken or hostile sender may write.
func TestScribbled(t *testing.T) {
	for _, tc := range []struct {
		name string
		harm func(d *shmabi.Descriptor)
	}{
		{"wrong epoch", func(d *shmabi.Descriptor) { d.Epoch++ }},
		{"empty piece", func(d *shmabi.Descriptor) { d.PieceLength = 0 }},
		{"piece beyond the slot", func(d *shmabi.Descriptor) { d.PieceLength = 1<<20 + 1 }},
		{"no plans", func(d *shmabi.Descriptor) { d.PlanCount = 0 }},
		{"too many plans", func(d *shmabi.Descriptor) { d.PlanCount = shmabi.MaxSpans + 1 }},
		{"count of all ones", func(d *shmabi.Descriptor) { d.PlanCount = 1<<32 - 1 }},
		{"no session", func(d *shmabi.Descriptor) { d.SessionLen = 0 }},
		{"session too long", func(d *shmabi.Descriptor) { d.SessionLen = shmabi.MaxSession + 1 }},
		{"rail not ours", func(d *shmabi.Descriptor) { d.RailIndex = 2 }},
		{"null destination", func(d *shmabi.Descriptor) { d.Plans[0].Dest = 0 }},
		{"destination wraps", func(d *shmabi.Descriptor) { d.Plans[1].Dest = 1<<64 - 1 }},
		{"empty span", func(d *shmabi.Descriptor) { d.Plans[1].Length = 0 }},
		{"sum too small", func(d *shmabi.Descriptor) { d.Plans[1].Length-- }},
		{"sum wraps", func(d *shmabi.Descriptor) { d.Plans[0].Length = 1<<64 - 1 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, s, r := ready(t)
			seq := offer(t, s, 3)
			tc.harm(&m.lc.Descriptors[geometry.Slot(seq)])
			s.Ring(seq)
			if _, o := r.Look(); o != Piece || !r.Claim(seq) {
				t.Fatalf("offer %d", o)
			}
			var b Body
			if err := r.Read(seq, &b); err == nil {
				t.Error("Read accepts it")
			}
		})
	}
	t.Run("foreign sequence", func(t *testing.T) {
		m, s, r := ready(t)
		seq := offer(t, s, 1)
		m.Store(Word{Commit, uint8(geometry.Slot(seq))}, 77)
		s.Ring(1 << 62)
		if _, o := r.Look(); o != Broken {
			t.Errorf("offer %d, want %d", o, Broken)
		}
	})
}

// TestBodyIsZeroed checks that a short descriptor leaves nothing of a long one.
func TestBodyIsZeroed(t *testing.T) {
	m, s, r := ready(t)
	for i := range 2 * geometry.Slots {
		n := 100
		if i >= geometry.Slots {
			n = 2
		}
		seq := offer(t, s, n)
		s.Ring(seq)
		r.Look()
		r.Claim(seq)
		r.Pass()
		r.Complete(xfer.OK)
		s.Reap()
	}
	for i := range m.lc.Descriptors {
		d := &m.lc.Descriptors[i]
		for j := 2; j < shmabi.MaxSpans; j++ {
			if d.Plans[j] != (shmabi.Plan{}) {
				t.Fatalf("slot %d keeps plan %d: %+v", i, j, d.Plans[j])
			}
		}
	}
}

func TestFree(t *testing.T) {
	m, s, r := ready(t)
	seq := offer(t, s, 1)
	s.Ring(seq)
	r.Look()
	r.Claim(seq)
	r.Pass()
	r.Complete(xfer.OK)
	s.Reap()
	if r.Released() {
		t.Fatal("released before Release")
	}
	s.Release()
	if !r.Released() {
		t.Fatal("not released after Release")
	}
	r.Free()
	if m.Load(Word{State, 0}) != uint64(shmabi.LaneFree) || m.Load(Word{Head, 0}) != 0 || r.Epoch() != 0 {
		t.Error("words are left in a free lane")
	}
	for i := range geometry.Slots {
		if m.Load(Word{Commit, uint8(i)})|m.Load(Word{DoneCommit, uint8(i)}) != 0 {
			t.Errorf("slot %d keeps a commit word", i)
		}
	}
}

func FuzzDescriptor(f *testing.F) {
	block := new(shmabi.ControlBlock)
	m := Map(block, 0)
	f.Add(uint64(epoch), uint32(10), uint32(1), uint32(4), uint32(0), uint64(4096), uint64(10))
	f.Fuzz(func(t *testing.T, e uint64, length, plans, session, rail uint32, dest, n uint64) {
		d := &block.Lanes[0].Descriptors[0]
		d.Epoch, d.PieceLength, d.PlanCount, d.SessionLen, d.RailIndex = e, length, plans, session, rail
		d.Plans[0] = shmabi.Plan{Dest: dest, Length: n}
		var b Body
		if !m.GetBody(0, &b) || b.check(geometry, epoch, 2) != nil {
			return
		}
		var sum uint64
		for _, s := range b.Plans {
			if s.Dest+s.Length < s.Dest {
				t.Fatalf("span %+v wraps", s)
			}
			sum += s.Length
		}
		if sum != uint64(length) || sum > geometry.SlotSize {
			t.Fatalf("accepted %d bytes of spans in a piece of %d", sum, length)
		}
	})
}

func BenchmarkPiece(b *testing.B) {
	for _, n := range []int{1, 512, 4096} {
		spans, sum := spansOf(1, n)
		name := map[int]string{1: "1span", 512: "512spans", 4096: "4096spans"}[n]
		b.Run(name, func(b *testing.B) {
			_, s, r := ready(b)
			session := []byte("node-b:15001")
			var body Body
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Prepare(0, session, spans, sum); err != nil {
					b.Fatal(err)
				}
				seq := s.Commit()
				s.Ring(seq)
				if _, o := r.Look(); o != Piece || !r.Claim(seq) || r.Read(seq, &body) != nil {
					b.Fatal("not taken")
				}
				r.Pass()
				r.Complete(xfer.OK)
				r.Flush()
				if _, _, ok := s.Reap(); !ok {
					b.Fatal("not reaped")
				}
			}
		})
	}
}
