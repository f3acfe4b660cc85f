package sim

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/shmabi"
)

// region is a piece of a process's memory.
type region struct {
	proc   *proc
	addr   uint64
	mem    []byte
	kind   gpu.Kind
	bus    string
	name   string
	writes []*req // that may land in it
	reads  []*req // that may be read from it
	marks  []mark // what must be in it
	watch  bool   // nothing else may be written or read
}

// mark says that a range holds a pattern.
type mark struct{ off, length, pattern uint64 }

func (r *region) String() string { return r.proc.String() + "/" + r.name }

// space is the addresses of a process. Processes of the same role use the same
// addresses: a number alone means nothing.
type space struct {
	regions []*region
	next    uint64
}

func (s *space) add(r *region) *region {
	if s.next == 0 {
		s.next = 0x10_0000_0000
	}
	r.addr = s.next
	s.next += uint64(len(r.mem)+0xfff)&^0xfff + 1<<20
	s.regions = append(s.regions, r)
	return r
}

func (s *space) remove(addr uint64) *region {
	for i, r := range s.regions {
		if r.addr == addr {
			s.regions = append(s.regions[:i], s.regions[i+1:]...)
			return r
		}
	}
	return nil
}

// find returns the region that holds a range, and where in it.
func (s *space) find(addr, length uint64) (*region, uint64, error) {
	for _, r := range s.regions {
		if addr >= r.addr && addr-r.addr+length <= uint64(len(r.mem)) && addr+length >= addr {
			return r, addr - r.addr, nil
		}
	}
	return nil, 0, fmt.Errorf("sim: no memory at [%#x, %#x)", addr, addr+length)
}

// noise is where patterns come from: a pattern is a place in it.
const noiseBytes = 4 << 20

// pool is memory that runs share, one after the other.
type pool struct {
	noise  []byte
	arenas [][]byte
	blocks []*shared
	parts  [][]byte
}

type shared struct {
	bytes []byte
	block *shmabi.ControlBlock
}

func newPool() *pool {
	p := &pool{noise: make([]byte, noiseBytes)}
	x := uint64(0x9e3779b97f4a7c15)
	for i := range p.noise {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		p.noise[i] = byte(x >> 24)
	}
	return p
}

const partBytes = 768 << 10

func (p *pool) pattern(id, length uint64) []byte {
	at := id * 0x9e3779b97f4a7c15 % (noiseBytes - partBytes)
	return p.noise[at : at+length]
}

func anonymous(n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(fmt.Sprintf("sim: %d bytes: %v", n, err))
	}
	return b
}

func take[T any](free *[]T, fresh func() T) T {
	if n := len(*free); n > 0 {
		v := (*free)[n-1]
		*free = (*free)[:n-1]
		return v
	}
	return fresh()
}

func (p *pool) arena(n int) []byte {
	return take(&p.arenas, func() []byte { return anonymous(n) })
}

func (p *pool) part() []byte { return take(&p.parts, func() []byte { return anonymous(partBytes) }) }

// control returns a control block. Of an earlier run only what is never read before
// it is written is left in it.
func (p *pool) control() *shared {
	s := take(&p.blocks, func() *shared {
		b := anonymous(shmabi.ControlBytes)
		block, err := shmabi.ControlAt(b)
		if err != nil {
			panic(err)
		}
		return &shared{b, block}
	})
	clear(s.bytes[:shmabi.HeaderBytes])
	for i := range s.block.Lanes {
		l := &s.block.Lanes[i]
		at := shmabi.LaneOffset(i)
		clear(s.bytes[at : at+64])
		for j := range l.Descriptors {
			l.Descriptors[j].Commit.Store(0)
			l.Completions[j].Commit.Store(0)
			l.Completions[j].Status.Store(0)
		}
	}
	return s
}
