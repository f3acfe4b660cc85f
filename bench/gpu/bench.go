package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/cuda"
)

// bench is what all groups use.
type bench struct {
	report report
	info   gpu.Info
	blas   string // path of libcublas, or ""

	base   *cuda.Provider // for memory, and for what stays the same
	device gpu.Device
	detach func() error
	raw    *raw

	shared []byte // sharedPages
	taken  [sharedPages]bool
	file   *os.File
	block  []byte // a control block, shared with the relay
	lane   *os.File
	relay  *peer
	handle gpu.Handle // of the relay's arena
	arena  uint64     // imported
	src    uint64     // sourceBytes
}

// sourceBytes leaves room for pages that lie apart.
const sourceBytes = 4 * arenaBytes

func newBench(p *cuda.Provider, blas string) (*bench, error) {
	infos, err := p.Devices()
	if err != nil {
		return nil, err
	}
	b := &bench{info: infos[0], base: p, blas: blas}
	if b.device, err = p.Open(b.info.BusID); err != nil {
		return nil, err
	}
	b.info = b.device.Info()
	// The raw calls need the context current; the provider's find it so.
	if b.detach, err = b.device.(*cuda.Device).Attach(); err != nil {
		return nil, err
	}
	if b.raw, err = bindRaw(); err != nil {
		return nil, err
	}
	if b.file, b.shared, err = sharedMemory(sharedPages * os.Getpagesize()); err != nil {
		return nil, err
	}
	if b.lane, b.block, err = sharedMemory(controlBytes()); err != nil {
		return nil, err
	}
	if b.relay, err = startPeer(relayArg, b.file, b.lane); err != nil {
		return nil, err
	}
	a, err := b.relay.ask(ask{Op: "open"})
	if err != nil {
		return nil, err
	}
	b.handle = gpu.Handle(a.Handle)
	if b.arena, err = b.device.Import(b.handle, arenaBytes); err != nil {
		return nil, err
	}
	if b.src, err = b.device.Alloc(sourceBytes); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *bench) close() error {
	return errors.Join(b.device.CloseImport(b.arena), b.device.Free(b.src), b.relay.close(), b.detach(), b.device.Close(), b.file.Close(), b.lane.Close())
}

// sharedMemory is a file of so many bytes that has no name, and its mapping.
func sharedMemory(bytes int) (*os.File, []byte, error) {
	fd, err := unix.MemfdCreate("bench-gpu", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fd), "bench-gpu")
	if err := file.Truncate(int64(bytes)); err != nil {
		return nil, nil, err
	}
	mem, err := unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return file, mem, err
}

// sender is a stream of a provider with options of its own, with a page mapped for its
// bell.
type sender struct {
	b      *bench
	device *cuda.Device
	stream *cuda.Stream
	number int // of the page
	page   []byte
	bell   uint64 // its address for the device
	unmap  func() error
	seq    uint64
}

func (b *bench) sender(opts cuda.Options) (*sender, error) {
	p, err := cuda.Open(opts)
	if err != nil {
		return nil, err
	}
	d, err := p.Open(b.info.BusID)
	if err != nil {
		return nil, err
	}
	s := &sender{b: b, device: d.(*cuda.Device), number: slices.Index(b.taken[:], false)}
	if s.number < 0 {
		return nil, fmt.Errorf("more than %d senders", sharedPages)
	}
	s.page = b.shared[s.number*os.Getpagesize():][:os.Getpagesize()]
	offset, unmap, err := d.MapHost(s.page)
	if err != nil {
		return nil, err
	}
	b.taken[s.number] = true
	s.bell, s.unmap = addressOf(s.page)+offset+bellWord, unmap
	st, err := d.NewStream()
	if err != nil {
		return nil, err
	}
	s.stream = st.(*cuda.Stream)
	return s, nil
}

func (s *sender) close() error {
	s.b.taken[s.number] = false
	return errors.Join(s.stream.Close(), s.unmap(), s.device.Close())
}

func (s *sender) word(offset int) *atomic.Uint64 { return wordAt(s.page, offset) }

// echoing runs a measurement while the relay echoes. Sequences begin at 1.
func (s *sender) echoing(measure func() error) error {
	s.seq = 0
	for _, w := range []int{bellWord, echoWord, stopWord} {
		s.word(w).Store(0)
	}
	if _, err := s.b.relay.ask(ask{Op: "echo", Page: s.number}); err != nil {
		return err
	}
	err := measure()
	s.word(stopWord).Store(1)
	var a answer
	return errors.Join(err, s.b.relay.wait(&a))
}

// patience is how long anything on the device may take.
const patience = 20 * time.Second

// reach waits until the relay has read seq.
func (s *sender) reach(seq uint64) error {
	echo := s.word(echoWord)
	start := time.Time{}
	for n := 0; echo.Load() < seq; n++ {
		if n%(1<<20) != 1<<20-1 {
			continue
		}
		if start.IsZero() {
			start = time.Now()
		} else if time.Since(start) > patience {
			return fmt.Errorf("the relay has read %d, want %d, after %v", echo.Load(), seq, patience)
		}
	}
	return nil
}

// ring publishes n pieces, with 18 in flight at most and one call and doorbell for each
// group of together, and returns bytes a second.
func (s *sender) ring(n, together uint64, piece func(slot uint64) []gpu.Copy) (float64, error) {
	bytes := uint64(0)
	for _, c := range piece(0) {
		bytes += c.Length
	}
	var group []gpu.Copy
	start := time.Now()
	first := s.seq
	for i := uint64(1); i <= n; i++ {
		s.seq++
		if s.seq > arenaSlots {
			if err := s.reach(s.seq - arenaSlots); err != nil {
				return 0, err
			}
		}
		copies := piece((s.seq - 1) % arenaSlots)
		if together > 1 {
			group = append(group, copies...)
			copies = group
		}
		if i%together != 0 && i != n {
			continue
		}
		if err := s.stream.CopyWrite64(copies, s.bell, s.seq); err != nil {
			return 0, err
		}
		group = group[:0]
	}
	if err := s.reach(s.seq); err != nil {
		return 0, err
	}
	return float64(bytes) * float64(s.seq-first) / time.Since(start).Seconds(), nil
}

// pages is a piece for each slot: n spans of one size from pages apart, back to back
// into the slot.
func (b *bench) pages(n int, size uint64) func(slot uint64) []gpu.Copy {
	var slots [arenaSlots][]gpu.Copy
	for k := range slots {
		slots[k] = make([]gpu.Copy, n)
		for i := range slots[k] {
			page := uint64(i*7919) % uint64(n)
			slots[k][i] = gpu.Copy{
				Dst:    b.arena + uint64(k)*slotBytes + uint64(i)*size,
				Src:    b.src + uint64(k)*4*slotBytes + page*2*size,
				Length: size,
			}
		}
	}
	return func(slot uint64) []gpu.Copy { return slots[slot] }
}

func sizeText(n uint64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
