package rdma

import (
	"errors"
	"fmt"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/nic"
)

// maxFails is how many local failures in a row make a NIC inactive.
const maxFails = 32

// local is an own NIC.
type local struct {
	set    *endpoint.Set
	nic    *endpoint.NIC
	pos    int // in Path.nics
	active bool
	lost   bool          // its completion queue is
	fails  int           // local ones, in a row
	backAt time.Duration // when it becomes active again, 0 for not by itself
	cause  error         // why it is inactive
}

// place is where memory lies: the NICs to use for it.
type place struct {
	preferred, others []*local
	next              *int // round robin
}

// placeNICs resolves the names of a matrix.
func placeNICs(nics []*local, matrix map[string][2][]string) map[string]place {
	resolve := func(names []string) (found []*local) {
		for _, name := range names {
			for _, n := range nics {
				if n.nic.Name == name {
					found = append(found, n)
				}
			}
		}
		return found
	}
	places := make(map[string]place, len(matrix)+1)
	for location, m := range matrix {
		places[location] = place{resolve(m[0]), resolve(m[1]), new(int)}
	}
	if _, ok := places["*"]; !ok {
		places["*"] = place{preferred: nics, next: new(int)}
	}
	return places
}

// preferred returns the NIC for a request whose memory lies at location: one of the
// preferred ones in turn, or one of the others, or any.
func (p *Path) preferred(location string) *local {
	for _, key := range [...]string{location, "*"} {
		pl, ok := p.places[key]
		if !ok {
			continue
		}
		for _, nics := range [...][]*local{pl.preferred, pl.others} {
			for range nics {
				*pl.next++
				if n := nics[*pl.next%len(nics)]; n.active {
					return n
				}
			}
		}
	}
	for _, n := range p.nics {
		if n.active {
			return n
		}
	}
	return p.nics[0]
}

// watch hands a NIC's events to the pump until the path or the device is closed.
func (p *Path) watch(n *local) {
	events := n.nic.Device.Events()
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				return
			}
			if ev.Type == nic.QPFatal {
				n.set.FailQP(ev.QPN)
				continue
			}
			p.post(letter{nic: n, event: ev})
		case <-p.quit:
			return
		}
	}
}

func (p *Path) event(n *local, ev nic.Event, now time.Duration) {
	switch ev.Type {
	case nic.PortLost:
		p.deactivate(n, errors.New("port is down"), 0)
	case nic.DeviceFatal:
		p.deactivate(n, errors.New("device failed"), 0)
	case nic.PortUp:
		if !n.active && !n.lost {
			n.backAt = now + p.opts.Quarantine
		}
	case nic.GIDChanged:
		cause := fmt.Errorf("%w: GID of %s changed", endpoint.ErrWithdrawn, n.nic.Name)
		n.set.Drop(cause)
		p.opts.Health(n.nic, n.active, cause)
	}
}

// deactivate takes a NIC out of use until backAt, or until its port comes up if
// that is 0. Slices go elsewhere when the pump comes by.
func (p *Path) deactivate(n *local, cause error, backAt time.Duration) {
	n.backAt = backAt
	if !n.active {
		return
	}
	n.active, n.cause = false, cause
	n.nic.SetActive(false)
	p.counts.deactivations.Add(1)
	p.opts.Log.Warn("NIC inactive", "nic", n.nic.Name, "cause", cause)
	n.set.Drop(fmt.Errorf("%w: NIC %s is inactive: %w", endpoint.ErrWithdrawn, n.nic.Name, cause))
	p.opts.Health(n.nic, false, cause)
}

func (p *Path) reactivate(n *local) {
	n.backAt = 0
	if n.active || n.lost || n.nic.Device.Port().State != nic.PortActive {
		return
	}
	n.active, n.cause, n.fails = true, nil, 0
	n.nic.SetActive(true)
	p.opts.Log.Info("NIC active again", "nic", n.nic.Name)
	p.opts.Health(n.nic, true, nil)
}

// lose gives a NIC up whose completion queue is lost. What was posted to it ends
// when its endpoints are destroyed.
func (p *Path) lose(n *local, err error) {
	n.lost = true
	p.deactivate(n, fmt.Errorf("completion queue: %w", err), 0)
}

// checkNIC makes a NIC inactive that has failed too often in a row.
func (p *Path) checkNIC(n *local, cause error, now time.Duration) {
	if n.fails >= maxFails {
		p.deactivate(n, fmt.Errorf("%d failures in a row: %w", n.fails, cause), now+p.opts.Quarantine)
	}
}
