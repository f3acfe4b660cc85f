package relay

import "github.com/railhop/railhop/internal/endpoint"

// slice is one work request on its way. Its generation tells a late report from
// a fresh one.
type slice struct {
	job   *job
	ep    *endpoint.Endpoint
	index uint32
	gen   uint32
}

func (s *slice) id() uint64 { return uint64(s.gen)<<32 | uint64(s.index) }

// pool is the work slices of a relay, allocated once.
type pool struct {
	all  []slice
	free []uint32
}

func (p *pool) init(n int) {
	p.all = make([]slice, n)
	p.free = make([]uint32, n)
	for i := range p.all {
		p.all[i].index = uint32(i)
		p.free[i] = uint32(n - 1 - i)
	}
}

// take returns a slice, or nil if none is left.
func (p *pool) take(j *job, ep *endpoint.Endpoint) *slice {
	n := len(p.free)
	if n == 0 {
		return nil
	}
	s := &p.all[p.free[n-1]]
	p.free = p.free[:n-1]
	s.job, s.ep = j, ep
	s.gen++
	return s
}

// get returns the slice of an id, or nil if it is not under way.
func (p *pool) get(id uint64) *slice {
	i := uint32(id)
	if uint64(i) >= uint64(len(p.all)) {
		return nil
	}
	if s := &p.all[i]; s.job != nil && s.gen == uint32(id>>32) {
		return s
	}
	return nil
}

func (p *pool) put(s *slice) {
	s.job, s.ep = nil, nil
	p.free = append(p.free, s.index)
}

// each calls f for the slices under way.
func (p *pool) each(f func(*slice)) {
	for i := range p.all {
		if p.all[i].job != nil {
			f(&p.all[i])
		}
	}
}
