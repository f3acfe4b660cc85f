package faulttest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/nic/nicfault"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/registry"
)

// A stream writes without pause into the slots of a [sink], several writes at a
// time, and tells the sink of each that has completed.
type stream struct {
	c    *child
	id   railhop.SegmentID
	conn net.Conn
	base uint64
	size uint64
	src  []uint64
	// limit is each write's
	limit time.Duration
	free  chan int
	stop  chan struct{}
	wg    sync.WaitGroup

	out    sync.Mutex
	mu     sync.Mutex
	next   uint64
	open   map[uint64]uint64 // when the writes began that are under way
	recent []span            // writes that have ended since the mark
	counts StreamCounts
}

// StreamCounts is what has become of a stream's writes.
type StreamCounts struct {
	Begun, Completed, Failed uint64
	Err                      string // the first
}

type span struct{ begin, end uint64 }

// now is the clock that processes of a host share, in ns.
func now() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // it exists on every Linux
	}
	return uint64(t.Nano())
}

// patience bounds a write of a stream: one that is not over by then is lost.
const patience = 10 * time.Second

// startStream begins a stream to the sink that listens at cmd.Socket, in segment
// cmd.Name.
func (c *child) startStream(cmd *command) error {
	if c.stream != nil {
		return errors.New("already streaming")
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	id, err := c.engine.OpenSegment(ctx, cmd.Name)
	if err != nil {
		return err
	}
	conn, err := net.Dial("unix", cmd.Socket)
	if err != nil {
		return err
	}
	in := bufio.NewScanner(conn)
	in.Buffer(nil, 1<<20)
	var first sinkFree
	if !in.Scan() {
		return fmt.Errorf("sink: %w", errors.Join(in.Err(), errors.New("no ring")))
	}
	if err := json.Unmarshal(in.Bytes(), &first); err != nil {
		return err
	}
	s := &stream{
		c: c, id: id, conn: conn, base: first.Base, size: first.Size,
		free: make(chan int, 4096), stop: make(chan struct{}), open: make(map[uint64]uint64),
		limit: time.Duration(cmd.Limit) * time.Millisecond,
	}
	for _, n := range first.Slots {
		s.free <- n
	}
	go func() {
		for in.Scan() {
			var f sinkFree
			if json.Unmarshal(in.Bytes(), &f) == nil {
				for _, n := range f.Slots {
					s.free <- n
				}
			}
		}
	}()
	for range cmd.Depth {
		var a Answer
		if err := c.memory(s.size, &a); err != nil {
			return err
		}
		s.src = append(s.src, a.Addr)
		s.wg.Go(func() { s.run(a.Addr, cmd.Seed) })
	}
	c.stream = s
	return nil
}

// stopStream ends a stream. Every write of it ends first.
func (c *child) stopStream(a *Answer) error {
	s := c.stream
	if s == nil {
		return errors.New("not streaming")
	}
	c.stream = nil
	close(s.stop)
	s.wg.Wait()
	s.conn.Close()
	a.Stream = &s.counts
	for _, addr := range s.src {
		if err := errors.Join(c.engine.Unregister(addr), c.forget(addr)); err != nil {
			return err
		}
	}
	return nil
}

// run writes, one after the other, from memory at src.
func (s *stream) run(src, seed uint64) {
	for {
		var slot int
		select {
		case slot = <-s.free:
		case <-s.stop:
			return
		}
		select {
		case <-s.stop:
			return
		default:
		}
		s.mu.Lock()
		s.next++
		id := s.next
		s.mu.Unlock()
		rnd := rand.New(rand.NewPCG(seed, id))
		d := sinkDone{ID: id, Slot: slot, Size: 1 + rnd.Uint64N(s.size), Seed: rnd.Uint64() &^ reusedBit}
		b := make([]byte, d.Size)
		pattern.Fill(b, d.Seed, 0)
		if err := s.c.dev.CopyIn(src, b); err != nil {
			s.c.log.Error("stream", "err", err)
			return
		}
		if err := s.write(src, &d); err != nil {
			s.c.log.Debug("stream", "err", err)
			select { // it may be the target's end; do not spin
			case <-time.After(5 * time.Millisecond):
			case <-s.stop:
				return
			}
			s.free <- slot
			continue
		}
		line, err := json.Marshal(d)
		if err != nil {
			s.c.log.Error("stream", "err", err)
			return
		}
		s.out.Lock()
		s.conn.Write(append(line, '\n'))
		s.out.Unlock()
	}
}

func (s *stream) write(src uint64, d *sinkDone) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.limit)
	defer cancel()
	begin := now()
	s.mu.Lock()
	s.counts.Begun++
	s.open[d.ID] = begin
	s.mu.Unlock()
	err := s.c.engine.Write(ctx, s.id, src, s.base+uint64(d.Slot)*s.size, d.Size)
	end := now()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, d.ID)
	s.recent = append(s.recent, span{begin, end})
	if err == nil {
		s.counts.Completed++
		return nil
	}
	s.counts.Failed++
	if s.counts.Err == "" {
		s.counts.Err = err.Error()
	}
	return err
}

// Times is how long things took after a fault, in ns. What did not happen is 0.
type Times struct {
	Suspected uint64 // until the sender suspects the relay
	FirstByte uint64 // until it first posts to its own NIC
	Completed uint64 // until the last write ends that was under way
}

// marks are the instants that a sender notes after a mark.
type marks struct {
	mu        sync.Mutex
	set       bool
	suspected uint64
	posts     []uint64
}

func (m *marks) suspect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.set && m.suspected == 0 {
		m.suspected = now()
	}
}

func (m *marks) post() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.set && len(m.posts) < 4096 {
		m.posts = append(m.posts, now())
	}
}

// mark forgets what was noted so far.
func (c *child) mark() {
	c.marks.mu.Lock()
	c.marks.set, c.marks.suspected, c.marks.posts = true, 0, nil
	c.marks.mu.Unlock()
	if s := c.stream; s != nil {
		s.mu.Lock()
		s.recent = nil
		s.mu.Unlock()
	}
}

// measure waits until the writes have ended that were under way at an instant.
func (c *child) measure(at uint64, a *Answer) error {
	s := c.stream
	if s == nil {
		return errors.New("not streaming")
	}
	older := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, begin := range s.open {
			if begin < at {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(patience + time.Second); older(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("lost: a write has not ended")
		}
	}
	a.Times = new(Times)
	s.mu.Lock()
	for _, w := range s.recent {
		if w.begin < at && w.end > at {
			a.Times.Completed = max(a.Times.Completed, w.end-at)
		}
	}
	counts := s.counts
	s.mu.Unlock()
	a.Stream = &counts
	m := &c.marks
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set = false
	if m.suspected > at {
		a.Times.Suspected = m.suspected - at
	}
	for _, p := range m.posts {
		if p > at && m.suspected > 0 && p >= m.suspected {
			a.Times.FirstByte = p - at
			break
		}
	}
	return nil
}

// onPost is a hook that notes when something is posted.
func (m *marks) onPost(c *nicfault.Call) error {
	if c.Op == nicfault.Post {
		m.post()
	}
	return nil
}

// markedGroup is a registry that notes when a peer is suspected.
type markedGroup struct {
	registry.Group
	marks *marks
}

func (g markedGroup) Scan() ([]registry.OtherRank, []registry.Refusal, error) {
	peers, refused, err := g.Group.Scan()
	for i, p := range peers {
		peers[i] = markedRank{p, g.marks}
	}
	return peers, refused, err
}

type markedRank struct {
	registry.OtherRank
	marks *marks
}

func (r markedRank) Suspected(at time.Duration) (bool, string) {
	yes, why := r.OtherRank.Suspected(at)
	if yes {
		r.marks.suspect()
	}
	return yes, why
}

func (m *marks) group(o registry.Options) (registry.Group, error) {
	g, err := registry.OpenGroup(o)
	if err != nil {
		return nil, err
	}
	return markedGroup{g, m}, nil
}

// touch makes a process slow to die: it has memory to be torn down.
func touch(size uint64) ([]byte, error) {
	if size == 0 {
		return nil, nil
	}
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("faulttest: %d bytes to touch: %w", size, err)
	}
	if err := unix.Madvise(b, unix.MADV_NOHUGEPAGE); err != nil {
		return nil, err
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return b, nil
}
