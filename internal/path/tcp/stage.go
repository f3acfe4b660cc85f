package tcp

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/xfer"
)

const (
	minStage   = 4 << 10
	maxStage   = 64 << 20
	stageBytes = 32 << 20 // of host memory in use at most, or one piece
)

// stages is host memory that stands in for GPU memory, in powers of two.
type stages struct {
	free [32][][]byte
	used int
}

func stageClass(n uint64) int { return bits.Len64(max(n, minStage) - 1) }

// stageFor returns n bytes, or nil if too many are in use.
func (p *Path) stageFor(n uint64) []byte {
	s := &p.stages
	k := stageClass(n)
	if s.used > 0 && s.used+1<<k > stageBytes {
		return nil
	}
	s.used += 1 << k
	if free := s.free[k]; len(free) > 0 {
		b := free[len(free)-1]
		s.free[k] = free[:len(free)-1]
		return b[:n]
	}
	return make([]byte, 1<<k)[:n]
}

// unstage takes back what stageFor gave.
func (p *Path) unstage(b []byte) {
	if b == nil {
		return
	}
	k := stageClass(uint64(cap(b)))
	p.stages.used -= 1 << k
	p.stages.free[k] = append(p.stages.free[k], b[:cap(b)])
}

// startCopies gives pieces from or to GPU memory the host memory they need. Those that
// write are copied first.
func (p *Path) startCopies() (busy bool) {
	for p.toStage.n > 0 {
		s := &p.pieces[p.toStage.head]
		b := p.stageFor(s.length)
		if b == nil {
			return busy
		}
		busy = true
		i := p.pop(&p.toStage)
		s.stage = b
		if s.op == xfer.Read {
			p.enqueue(i)
			continue
		}
		s.where = copying
		p.copies.add(copyJob{i, s.dev, s.local, b, false})
	}
	return busy
}

// copyIn copies what was read to GPU memory.
func (p *Path) copyIn(i int32) {
	s := &p.pieces[i]
	s.where = copying
	p.copies.add(copyJob{i, s.dev, s.local, s.stage, true})
}

// copied takes a copy's result.
func (p *Path) copied(i int32, err error) {
	s := &p.pieces[i]
	if err != nil {
		err = fmt.Errorf("tcp: GPU memory at %#x: %w: %w", s.local, xfer.ErrMemory, err)
	}
	switch {
	case err != nil || s.op == xfer.Read:
		p.end(i, err)
	case s.cause != nil:
		p.end(i, s.cause)
	default:
		p.enqueue(i)
	}
}

type copyJob struct {
	piece int32
	dev   gpu.Device
	addr  uint64
	host  []byte
	in    bool // to the GPU
}

// copier is the goroutine that copies from and to GPU memory. It starts with the
// first job.
type copier struct {
	path *Path

	mu      sync.Mutex
	cond    sync.Cond
	jobs    []copyJob
	running bool
	closed  bool
}

func (c *copier) init(p *Path) {
	c.path = p
	c.cond.L = &c.mu
}

func (c *copier) add(j copyJob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = append(c.jobs, j)
	if !c.running {
		c.running = true
		c.path.wg.Go(c.run)
	}
	c.cond.Signal()
}

// close has the goroutine end once its jobs are done.
func (c *copier) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.cond.Signal()
}

func (c *copier) run() {
	var jobs []copyJob
	for {
		c.mu.Lock()
		for len(c.jobs) == 0 && !c.closed {
			c.cond.Wait()
		}
		jobs, c.jobs = c.jobs, jobs[:0]
		c.mu.Unlock()
		if len(jobs) == 0 {
			return
		}
		for i := range jobs {
			j := &jobs[i]
			var err error
			if j.in {
				err = j.dev.CopyIn(j.addr, j.host)
			} else {
				err = j.dev.CopyOut(j.host, j.addr)
			}
			c.path.post(letter{copied: true, piece: j.piece, err: err})
		}
		clear(jobs)
	}
}
