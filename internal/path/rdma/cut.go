package rdma

import (
	"fmt"

	"github.com/railhop/railhop/internal/xfer"
)

// cut is one slice of a request to be.
type cut struct {
	local, remote, length uint64
	lkeys                 []uint32
}

// targetError says that the target's descriptor does not know an address.
type targetError struct{ err error }

func (e *targetError) Error() string { return e.err.Error() }
func (e *targetError) Unwrap() error { return e.err }

func isTargetError(err error) bool {
	_, ok := err.(*targetError)
	return ok
}

// cut fills p.cuts: as long as more than a slice and a fragment is left, a slice,
// else all of it; never across the end of a buffer at either side. It returns
// the location of the first byte.
func (p *Path) cut(t Target, local, remote, length uint64) (location string, err error) {
	p.cuts = p.cuts[:0]
	var region Region
	var localEnd, remoteEnd uint64
	for first := true; length > 0; first = false {
		if local >= localEnd {
			if region, err = p.opts.Local.Find(local); err != nil {
				return "", fmt.Errorf("rdma: local address: %w", err)
			}
			localEnd = region.Addr + region.Length
			if localEnd <= local {
				return "", fmt.Errorf("rdma: region at %#x, %d bytes, does not hold %#x: %w", region.Addr, region.Length, local, xfer.ErrAddressNotFound)
			}
			if first {
				location = region.Location
			}
		}
		if remote >= remoteEnd {
			if remoteEnd, err = t.End(remote); err != nil {
				return "", &targetError{fmt.Errorf("rdma: target %s: %w", t.Name(), err)}
			}
			if remoteEnd <= remote {
				return "", &targetError{fmt.Errorf("rdma: target %s: no buffer holds %#x: %w", t.Name(), remote, xfer.ErrAddressNotFound)}
			}
		}
		n := length
		if n > p.opts.SliceSize+p.opts.Fragment {
			n = p.opts.SliceSize
		}
		n = min(n, localEnd-local, remoteEnd-remote)
		p.cuts = append(p.cuts, cut{local, remote, n, region.LKeys})
		local, remote, length = local+n, remote+n, length-n
	}
	return location, nil
}
