package softnic

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/railhop/railhop/internal/iov"
)

// Memory tells apart what the CPU can touch and what it cannot, such as the memory of
// a GPU. Its methods may be called by any goroutine.
type Memory interface {
	// Find returns what copies from and to the range, or nil if the CPU does.
	Find(addr, length uint64) (Copier, error)
}

// Copier copies between host memory and memory that the CPU cannot touch, and waits for
// it. Its methods may be called by any goroutine.
type Copier interface {
	CopyIn(dst uint64, src []byte) error
	CopyOut(dst []byte, src uint64) error
}

// farBytes is how much is staged at once.
const farBytes = 1 << 20

// far is the regions of a device that the CPU cannot touch. Such addresses are no
// host addresses, so an address alone says whether it is one of them.
type far struct {
	mem Memory // nil if there is none

	mu   sync.Mutex
	runs atomic.Pointer[[]farRun]
}

type farRun struct {
	m      *mr
	copier Copier
}

func (f *far) add(m *mr) error {
	if f.mem == nil {
		return nil
	}
	c, err := f.mem.Find(m.addr, m.length)
	if err != nil || c == nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var runs []farRun
	if old := f.runs.Load(); old != nil {
		runs = *old
	}
	runs = append(slices.Clone(runs), farRun{m, c})
	f.runs.Store(&runs)
	return nil
}

func (f *far) remove(m *mr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.runs.Load()
	if old == nil {
		return
	}
	runs := slices.DeleteFunc(slices.Clone(*old), func(r farRun) bool { return r.m == m })
	if len(runs) == 0 {
		f.runs.Store(nil)
		return
	}
	f.runs.Store(&runs)
}

// find returns who copies from and to an address, or nil if the CPU does.
func (f *far) find(addr uintptr) Copier {
	runs := f.runs.Load()
	if runs == nil {
		return nil
	}
	for i := range *runs {
		r := &(*runs)[i]
		if uint64(addr) >= r.m.addr && uint64(addr)-r.m.addr < r.m.length {
			return r.copier
		}
	}
	return nil
}

// some reports whether there is any.
func (f *far) some() bool { return f.runs.Load() != nil }

// writeFar is writeRuns where some runs may have to be staged.
func (s *stream) writeFar(vs []iov.Vec) error {
	for len(vs) > 0 {
		n := 0
		var c Copier
		for n < len(vs) {
			if c = s.far.find(vs[n].Base); c != nil {
				break
			}
			n++
		}
		if err := s.writeNear(vs[:n]); err != nil {
			return err
		}
		vs = vs[n:]
		if c == nil {
			continue
		}
		if s.wfar == nil {
			s.wfar = make([]byte, farBytes)
		}
		b := s.wfar[:min(farBytes, vs[0].Len)]
		if err := c.CopyOut(b, uint64(vs[0].Base)); err != nil {
			return syscall.EFAULT
		}
		s.wone[0] = iov.Of(b)
		if err := s.writeNear(s.wone[:]); err != nil {
			return err
		}
		vs = iov.Advance(vs, len(b))
	}
	return nil
}

// finishFar is finish where some runs may have to be staged.
func (s *stream) finishFar(missing int) (int, error) {
	for _, v := range s.riov {
		for v.Len > 0 {
			c := s.far.find(v.Base)
			s.rone[0] = v
			if c != nil {
				if s.rfar == nil {
					s.rfar = make([]byte, farBytes)
				}
				s.rone[0] = iov.Of(s.rfar[:min(farBytes, v.Len)])
			}
			s.rrest = s.rone[:]
			n, err := s.readv()
			if err != nil {
				return missing, err
			}
			if c != nil {
				if err := c.CopyIn(uint64(v.Base), s.rfar[:n]); err != nil {
					return missing, syscall.EFAULT
				}
			}
			v.Base += uintptr(n)
			v.Len -= uintptr(n)
			missing -= n
		}
	}
	return 0, nil
}
