package rdma

import (
	"errors"
	"fmt"

	"github.com/railhop/railhop/internal/xfer"
)

// Open returns how many slices are not closed.
func (p *Path) Open() int {
	n := 0
	for _, r := range p.requests {
		n += r.open
	}
	return n
}

// Close closes everything that is left with [ErrClosed], and the sets. It waits
// until nothing moves any more, and must not run beside Step. An error names
// queue pairs that could not be closed in time: what was posted to them may
// still land, and the slices on that NIC are closed with an error that says so.
func (p *Path) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	close(p.quit)
	for _, r := range p.requests {
		if r.cause == nil {
			r.cause = ErrClosed
		}
	}
	var errs []error
	for _, n := range p.nics {
		if err := n.set.Close(); err != nil {
			n.cause = err
			errs = append(errs, fmt.Errorf("rdma: close %s: %w", n.nic.Name, err))
		} else {
			n.cause = nil
		}
	}
	p.wg.Wait()
	for _, t := range p.targets {
		t.waiting = list{}
	}
	for _, l := range p.active {
		l.take()
	}
	for i := range p.slices {
		s := &p.slices[i]
		if s.req == nil {
			continue
		}
		cause := s.req.cause
		if s.ep != nil && s.link.nic.cause != nil {
			cause = fmt.Errorf("rdma: %d bytes at %#x of %s may still land: %w: %w",
				s.length, s.remote, s.req.target.Name(), s.link.nic.cause, xfer.ErrEndpoint)
		}
		s.ep = nil
		p.end(int32(i), 0, cause)
	}
	return errors.Join(errs...)
}
