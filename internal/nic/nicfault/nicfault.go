// Package nicfault wraps a provider of network cards so that operations fail,
// or wait, as a test wants: by kind, device and count.
//
// It owns the wrapping and no policy: a [Hook] decides. It is for tests and for
// binaries built for tests. A hook runs on the goroutine of the call that it meddles with, and
// may block, which is how a process is stopped at a chosen point; calls
// that nobody hooks go straight through. The wrapper's objects may be mixed only with
// each other.
package nicfault

import (
	"context"
	"sync"

	"github.com/railhop/railhop/internal/nic"
)

// Op names a kind of call.
type Op string

// The kinds. Post is counted by call, Complete by completion.
const (
	Open     Op = "open"
	NewPD    Op = "new pd"
	NewCQ    Op = "new cq"
	Register Op = "register"
	NewQP    Op = "new qp"
	Modify   Op = "modify"
	Post     Op = "post"
	Poll     Op = "poll"
	Complete Op = "complete"
	CloseQP  Op = "close qp"
	CloseMR  Op = "close mr"
	Port     Op = "port" // an error makes it look down
)

// Call is one call, about to be made.
type Call struct {
	Op     Op
	Device string
	N      int // of this kind on this device, from 1

	Attr       nic.QPAttr      // of Modify
	WRs        []nic.WR        // of Post; the hook may change them, or shorten the list
	Completion *nic.Completion // of Complete; the hook may change it
}

// Hook is called before each call, by any goroutine. An error is returned in the
// call's place, but for Complete, where it is ignored, and Port.
type Hook func(c *Call) error

// Wrap returns p with hook before all its calls.
func Wrap(p nic.Provider, hook Hook) nic.Provider {
	return &provider{p, &counter{hook: hook, n: map[key]int{}}}
}

// Nth returns a hook that does f at the nth call of kind op on any device that
// is called device, or on all if device is "". It does nothing else.
func Nth(op Op, device string, n int, f Hook) Hook {
	return func(c *Call) error {
		if c.Op == op && c.N == n && (device == "" || device == c.Device) {
			return f(c)
		}
		return nil
	}
}

// Fail returns a hook that fails with err.
func Fail(err error) Hook { return func(*Call) error { return err } }

// Hold returns a hook that tells reached, unless nobody listens, and then waits
// until release is closed.
func Hold(reached chan<- struct{}, release <-chan struct{}) Hook {
	return func(*Call) error {
		select {
		case reached <- struct{}{}:
		default:
		}
		<-release
		return nil
	}
}

// As returns a hook for Complete that gives a completion another status.
func As(s nic.Status) Hook {
	return func(c *Call) error {
		if c.Completion != nil {
			c.Completion.Status = s
		}
		return nil
	}
}

// All returns a hook that asks all of hooks, up to the first error.
func All(hooks ...Hook) Hook {
	return func(c *Call) error {
		for _, h := range hooks {
			if err := h(c); err != nil {
				return err
			}
		}
		return nil
	}
}

type key struct {
	op  Op
	dev string
}

type counter struct {
	hook Hook

	mu sync.Mutex
	n  map[key]int
}

func (k *counter) call(c Call, dev string) (Call, error) {
	c.Device = dev
	k.mu.Lock()
	k.n[key{c.Op, dev}]++
	c.N = k.n[key{c.Op, dev}]
	k.mu.Unlock()
	err := k.hook(&c)
	return c, err
}

// at is call for kinds without an argument.
func (k *counter) at(op Op, dev string) error {
	_, err := k.call(Call{Op: op}, dev)
	return err
}

type provider struct {
	nic.Provider
	k *counter
}

func (p *provider) Open(name string) (nic.Device, error) {
	if err := p.k.at(Open, name); err != nil {
		return nil, err
	}
	d, err := p.Provider.Open(name)
	if err != nil {
		return nil, err
	}
	return &device{d, p.k, name}, nil
}

type device struct {
	nic.Device
	k    *counter
	name string
}

// Unwrap returns the device under the wrapper, if d has one, or d.
func Unwrap(d nic.Device) nic.Device {
	if w, ok := d.(*device); ok {
		return w.Device
	}
	return d
}

func (d *device) NewPD() (nic.PD, error) {
	if err := d.k.at(NewPD, d.name); err != nil {
		return nil, err
	}
	p, err := d.Device.NewPD()
	if err != nil {
		return nil, err
	}
	return &pd{p, d}, nil
}

func (d *device) NewCQ(depth int, wake func()) (nic.CQ, error) {
	if err := d.k.at(NewCQ, d.name); err != nil {
		return nil, err
	}
	c, err := d.Device.NewCQ(depth, wake)
	if err != nil {
		return nil, err
	}
	return &cq{c, d}, nil
}

func (d *device) Port() nic.Port {
	p := d.Device.Port()
	if d.k.at(Port, d.name) != nil {
		p.State = nic.PortDown
	}
	return p
}

type pd struct {
	nic.PD
	d *device
}

func (p *pd) Register(addr, length uint64, access nic.Access) (nic.MR, error) {
	if err := p.d.k.at(Register, p.d.name); err != nil {
		return nil, err
	}
	m, err := p.PD.Register(addr, length, access)
	if err != nil {
		return nil, err
	}
	return &mr{m, p.d}, nil
}

func (p *pd) NewQP(opts nic.QPOptions) (nic.QP, error) {
	if err := p.d.k.at(NewQP, p.d.name); err != nil {
		return nil, err
	}
	if c, ok := opts.CQ.(*cq); ok {
		opts.CQ = c.CQ
	}
	q, err := p.PD.NewQP(opts)
	if err != nil {
		return nil, err
	}
	return &qp{q, p.d}, nil
}

type mr struct {
	nic.MR
	d *device
}

func (m *mr) Close() error {
	if err := m.d.k.at(CloseMR, m.d.name); err != nil {
		return err
	}
	return m.MR.Close()
}

type cq struct {
	nic.CQ
	d *device
}

func (c *cq) Poll(done []nic.Completion) (int, error) {
	if err := c.d.k.at(Poll, c.d.name); err != nil {
		return 0, err
	}
	n, err := c.CQ.Poll(done)
	for i := range done[:n] {
		c.d.k.call(Call{Op: Complete, Completion: &done[i]}, c.d.name)
	}
	return n, err
}

type qp struct {
	nic.QP
	d *device
}

func (q *qp) Modify(attr nic.QPAttr) error {
	c, err := q.d.k.call(Call{Op: Modify, Attr: attr}, q.d.name)
	if err != nil {
		return err
	}
	return q.QP.Modify(c.Attr)
}

func (q *qp) Post(wrs []nic.WR) (int, error) {
	c, err := q.d.k.call(Call{Op: Post, WRs: wrs}, q.d.name)
	if err != nil {
		return 0, err
	}
	return q.QP.Post(c.WRs)
}

func (q *qp) Close(ctx context.Context) error {
	if err := q.d.k.at(CloseQP, q.d.name); err != nil {
		return err
	}
	return q.QP.Close(ctx)
}
