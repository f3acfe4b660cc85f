package faulttest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/railhop/railhop/internal/pattern"
)

// A sink is a target's end of streams of writes. Each stream has a ring of slots.
// When its sender says that a write has completed, the sink checks the slot, and
// at once puts other bytes in it; before it lets the sender write there again, it
// looks whether these are still there. Nobody else writes there, so that one look
// sees whatever has landed late.
type sink struct {
	c    *child
	lis  net.Listener
	geom sinkGeometry
	wg   sync.WaitGroup

	mu      sync.Mutex
	rings   []*sinkRing
	conns   map[net.Conn]bool
	parking int // slots that each ring still keeps until it is settled
	ended   bool
	counts  SinkCounts
}

// SinkCounts is what a target has seen of streams. Wrong and Late count bytes.
type SinkCounts struct {
	Writes, Wrong, Late, Double uint64
}

type sinkGeometry struct {
	Slots int
	Size  uint64
}

type sinkRing struct {
	base   uint64
	taken  bool
	fifo   []sinkSlot // completed, oldest first
	parked []sinkSlot
	parks  int // of those parked since the last settling
	orphan bool
	conn   net.Conn
	out    sync.Mutex
	slots  map[int]bool // with the sender
	done   map[uint64]bool
}

type sinkSlot struct {
	n    int
	seed uint64
}

// reusedBit marks the seeds of what a sink puts into a slot.
const reusedBit = 1 << 63

// sinkDone is what a sender says of a write, sinkFree what the sink answers.
type sinkDone struct {
	ID   uint64
	Slot int
	Size uint64
	Seed uint64
}

type sinkFree struct {
	Base  uint64 `json:",omitempty"` // only in the first
	Size  uint64 `json:",omitempty"`
	Slots []int
}

// openSink allocates rings and listens at a unix socket.
func (c *child) openSink(cmd *command) error {
	s := &sink{c: c, geom: sinkGeometry{Slots: cmd.Slots, Size: cmd.Size}, conns: make(map[net.Conn]bool)}
	for range cmd.Rings {
		var a Answer
		if err := c.memory(uint64(cmd.Slots)*cmd.Size, &a); err != nil {
			return err
		}
		s.rings = append(s.rings, &sinkRing{base: a.Addr, orphan: true})
	}
	s.settle()
	lis, err := net.Listen("unix", cmd.Name)
	if err != nil {
		return err
	}
	s.lis, c.sink = lis, s
	s.wg.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.serve(conn) })
		}
	})
	return nil
}

func (s *sink) close() {
	s.lis.Close()
	s.mu.Lock()
	s.ended = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *sink) serve(conn net.Conn) {
	defer conn.Close()
	r := s.take(conn)
	if r == nil {
		return
	}
	in := bufio.NewScanner(conn)
	for in.Scan() {
		var d sinkDone
		if err := json.Unmarshal(in.Bytes(), &d); err != nil {
			s.c.log.Error("sink", "err", err)
			break
		}
		if err := s.completed(r, d); err != nil {
			s.c.log.Error("sink", "err", err)
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	r.conn, r.orphan = nil, true
}

// take gives a stream its ring.
func (s *sink) take(conn net.Conn) *sinkRing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	for _, r := range s.rings {
		if !r.taken {
			for _, k := range r.fifo {
				s.look(r, k)
			}
			s.conns[conn] = true
			*r = sinkRing{base: r.base, taken: true, conn: conn, slots: make(map[int]bool), done: make(map[uint64]bool)}
			f := sinkFree{Base: r.base, Size: s.geom.Size}
			for i := range s.geom.Slots {
				r.slots[i] = true
				f.Slots = append(f.Slots, i)
			}
			r.tell(f)
			return r
		}
	}
	s.c.log.Error("sink: no ring is free")
	return nil
}

func (r *sinkRing) tell(f sinkFree) {
	b, err := json.Marshal(f)
	if err != nil || r.conn == nil {
		return
	}
	r.out.Lock()
	defer r.out.Unlock()
	r.conn.SetWriteDeadline(time.Now().Add(Patience))
	r.conn.Write(append(b, '\n'))
}

func (s *sink) at(r *sinkRing, slot int) uint64 { return r.base + uint64(slot)*s.geom.Size }

// completed checks a slot, uses it again, and lets go the oldest that is watched.
func (s *sink) completed(r *sinkRing, d sinkDone) error {
	if d.Slot < 0 || d.Slot >= s.geom.Slots || d.Size > s.geom.Size {
		return fmt.Errorf("no such slot: %+v", d)
	}
	bad, err := s.c.compare(s.at(r, d.Slot), d.Size, d.Seed)
	if err != nil {
		return err
	}
	reused := d.ID | reusedBit
	if err := s.put(r, d.Slot, reused); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Writes++
	s.counts.Wrong += uint64(bad)
	if r.done[d.ID] || !r.slots[d.Slot] {
		s.counts.Double++
	}
	r.done[d.ID] = true
	delete(r.slots, d.Slot)
	slot := sinkSlot{d.Slot, reused}
	if r.parks < s.parking {
		r.parks++
		r.parked = append(r.parked, slot)
	} else {
		r.fifo = append(r.fifo, slot)
	}
	// Half of the ring that is not parked is watched at any time.
	for len(r.fifo) > max((s.geom.Slots-len(r.parked))/2, 1) {
		s.letGo(r, r.fifo[:1])
		r.fifo = r.fifo[1:]
	}
	return nil
}

func (s *sink) put(r *sinkRing, slot int, seed uint64) error {
	b := make([]byte, s.geom.Size)
	pattern.Fill(b, seed, 0)
	return s.c.dev.CopyIn(s.at(r, slot), b)
}

// letGo looks at slots for the last time and gives them back.
func (s *sink) letGo(r *sinkRing, slots []sinkSlot) {
	f := sinkFree{}
	for _, k := range slots {
		s.look(r, k)
		r.slots[k.n] = true
		f.Slots = append(f.Slots, k.n)
	}
	r.tell(f)
}

func (s *sink) look(r *sinkRing, k sinkSlot) {
	bad, err := s.c.compare(s.at(r, k.n), s.geom.Size, k.seed)
	if err != nil {
		s.c.log.Error("sink", "err", err)
	}
	if bad > 0 {
		s.c.log.Error("bytes have landed late", "slot", k.n, "bytes", bad)
	}
	s.counts.Late += uint64(bad)
}

// park keeps the next slots that complete until they are settled.
func (s *sink) park(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parking = n
}

// settle looks at what is parked and lets it go, and readies the rings whose
// sender has left. It looks at these once more before their next use.
func (s *sink) settle() (SinkCounts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parking = 0
	for _, r := range s.rings {
		if !r.orphan {
			s.letGo(r, r.parked)
			r.parked, r.parks = nil, 0
			continue
		}
		if r.taken || r.done == nil { // what its sender has left half written
			for _, k := range append(r.fifo, r.parked...) {
				s.look(r, k)
			}
			r.fifo, r.parked = nil, nil
			for i := range s.geom.Slots {
				seed := uint64(i) | reusedBit
				if err := s.put(r, i, seed); err != nil {
					return s.counts, err
				}
				r.fifo = append(r.fifo, sinkSlot{i, seed})
			}
			r.taken, r.done = false, make(map[uint64]bool)
			continue
		}
		for _, k := range r.fifo {
			s.look(r, k)
		}
	}
	return s.counts, nil
}

func (c *child) settle(a *Answer) error {
	if c.sink == nil {
		return errors.New("no sink")
	}
	counts, err := c.sink.settle()
	a.Sink = &counts
	return err
}
