package softnic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

const (
	portMTU = 4096
	// closeWait bounds how long closing a device waits for peers that do not answer.
	closeWait = 2 * time.Second
)

// Device is an opened software NIC.
type Device struct {
	cfg  DeviceConfig
	log  *slog.Logger
	pace *pacer
	gid  nic.GID
	lid  uint16
	lis  *net.TCPListener
	keys *keys
	far  far
	tally

	ctx    context.Context // ends when the device gives up on its peers
	cancel context.CancelFunc
	wg     sync.WaitGroup // all goroutines of the device

	mu      sync.Mutex
	state   nic.PortState
	closing bool
	closed  chan struct{}
	result  error // of Close, once closed
	events  chan nic.Event
	pds     map[*pd]struct{}
	cqs     map[*cq]struct{}
	qps     map[uint32]*qp
	nextQPN uint32
	held    map[*holder]struct{}
	half    []net.Conn // accepted, and said nothing yet; oldest first
}

func openDevice(cfg DeviceConfig, pace *pacer, mem Memory, log *slog.Logger) (*Device, error) {
	at := netip.AddrPortFrom(cfg.Addr, cfg.Port)
	lis, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("softnic: open %s at %v: %w", cfg.Name, at, err)
	}
	d := &Device{
		cfg:     cfg,
		pace:    pace,
		gid:     nic.GID(cfg.Addr.As16()),
		lid:     lis.Addr().(*net.TCPAddr).AddrPort().Port(),
		lis:     lis,
		far:     far{mem: mem},
		keys:    &keys{secret: rand.Uint32(), local: map[uint32]*mr{}, remote: map[uint32]*mr{}},
		tally:   tally{peers: map[tallyKey]*tallyCount{}},
		state:   nic.PortActive,
		closed:  make(chan struct{}),
		events:  make(chan nic.Event, 64),
		pds:     map[*pd]struct{}{},
		cqs:     map[*cq]struct{}{},
		qps:     map[uint32]*qp{},
		nextQPN: rand.Uint32N(1 << 24),
		held:    map[*holder]struct{}{},
	}
	d.log = log.With("device", cfg.Name, "port", d.lid)
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.wg.Go(d.accept)
	return d, nil
}

// Attr implements [nic.Device].
func (d *Device) Attr() nic.Attr {
	return nic.Attr{
		Name:      d.cfg.Name,
		NUMA:      d.cfg.NUMA,
		MaxMR:     d.cfg.MaxMR,
		MaxQP:     maxQP,
		MaxWR:     maxWR,
		MaxRDAtom: 16,
	}
}

// Port implements [nic.Device].
func (d *Device) Port() nic.Port {
	d.mu.Lock()
	defer d.mu.Unlock()
	return nic.Port{State: d.state, LID: d.lid, GID: d.gid, MTU: portMTU, Subnet: d.cfg.Subnet}
}

// Rail is the name of the plane that the device hangs on.
func (d *Device) Rail() string { return d.cfg.Rail }

// SetPort pulls the cable or plugs it in again. Connections do not survive the
// first: outgoing operations fail once they are closed, and only new queue pairs
// work after the second.
func (d *Device) SetPort(s nic.PortState) {
	d.mu.Lock()
	if d.closing || d.state == s {
		d.mu.Unlock()
		return
	}
	d.state = s
	d.mu.Unlock()
	if s == nic.PortActive {
		d.event(nic.Event{Type: nic.PortUp})
		return
	}
	d.event(nic.Event{Type: nic.PortLost})
	for _, q := range d.allQPs() {
		q.cut()
	}
}

// Events implements [nic.Device].
func (d *Device) Events() <-chan nic.Event { return d.events }

func (d *Device) event(e nic.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.closed:
		return
	default:
	}
	select {
	case d.events <- e:
	default:
	}
}

// NewPD implements [nic.Device].
func (d *Device) NewPD() (nic.PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return nil, fmt.Errorf("softnic: new protection domain on %s: %w", d.cfg.Name, nic.ErrClosed)
	}
	p := &pd{d: d}
	d.pds[p] = struct{}{}
	return p, nil
}

func (d *Device) dropCQ(c *cq) {
	d.mu.Lock()
	delete(d.cqs, c)
	d.mu.Unlock()
}

func (d *Device) dropPD(p *pd) {
	d.mu.Lock()
	delete(d.pds, p)
	d.mu.Unlock()
}

// NewCQ implements [nic.Device].
func (d *Device) NewCQ(depth int, wake func()) (nic.CQ, error) {
	const most = 1 << 20
	if depth < 1 || depth > most {
		return nil, fmt.Errorf("softnic: new completion queue on %s: depth %d: want 1..%d", d.cfg.Name, depth, most)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return nil, fmt.Errorf("softnic: new completion queue on %s: %w", d.cfg.Name, nic.ErrClosed)
	}
	c := newCQ(d, depth, wake)
	d.cqs[c] = struct{}{}
	return c, nil
}

// addQP gives q its number. Numbers count up from a random one, so that one
// comes again only after 16 million others.
func (d *Device) addQP(q *qp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return fmt.Errorf("softnic: new queue pair on %s: %w", d.cfg.Name, nic.ErrClosed)
	}
	if len(d.qps) >= maxQP {
		return fmt.Errorf("softnic: new queue pair on %s: there are %d already", d.cfg.Name, maxQP)
	}
	if err := q.cq.use(1); err != nil {
		return fmt.Errorf("softnic: new queue pair on %s: completion queue: %w", d.cfg.Name, err)
	}
	const first = 2 // 0 and 1 are special on a card
	for {
		d.nextQPN = (d.nextQPN + 1) & (1<<24 - 1)
		if d.nextQPN >= first && d.qps[d.nextQPN] == nil {
			break
		}
	}
	q.num = d.nextQPN
	d.qps[q.num] = q
	return nil
}

func (d *Device) dropQP(q *qp) {
	d.mu.Lock()
	delete(d.qps, q.num)
	d.mu.Unlock()
}

func (d *Device) qp(num uint32) *qp {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.qps[num]
}

func (d *Device) allQPs() []*qp {
	d.mu.Lock()
	defer d.mu.Unlock()
	qps := make([]*qp, 0, len(d.qps))
	for _, q := range d.qps {
		qps = append(qps, q)
	}
	return qps
}

// hold returns a new holder, in use until dropped.
func (d *Device) hold(interrupt func(), done func() uint64) *holder {
	h := newHolder(d.keys, interrupt, done)
	d.mu.Lock()
	d.held[h] = struct{}{}
	d.mu.Unlock()
	return h
}

func (d *Device) drop(h *holder) {
	d.mu.Lock()
	delete(d.held, h)
	d.mu.Unlock()
}

func (d *Device) holders() []*holder {
	d.mu.Lock()
	defer d.mu.Unlock()
	hs := make([]*holder, 0, len(d.held))
	for h := range d.held {
		hs = append(hs, h)
	}
	return hs
}

// Close implements [nic.Device]. The listener goes last: as long as it is there,
// peers can ask whether a queue pair is closed, and once it is gone they know. For
// peers that do not answer it waits two seconds; the error then says that what was
// posted to them may still land.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closing {
		d.mu.Unlock()
		<-d.closed
		return d.result
	}
	d.closing = true
	d.mu.Unlock()

	qps := d.allQPs()
	for _, q := range qps {
		q.abandon()
	}
	ctx, cancel := context.WithTimeout(d.ctx, closeWait)
	defer cancel()
	var errs []error
	for _, q := range qps {
		if err := q.Close(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	d.cancel()
	d.lis.Close()
	d.mu.Lock()
	for _, c := range d.half {
		c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
	for _, m := range d.keys.all() {
		m.Close()
	}

	d.mu.Lock()
	pds, cqs := slices.Collect(maps.Keys(d.pds)), slices.Collect(maps.Keys(d.cqs))
	d.mu.Unlock()
	for _, p := range pds {
		p.shut()
	}
	for _, c := range cqs {
		c.shut()
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.pds)
	clear(d.cqs)
	d.state = nic.PortDown
	d.result = errors.Join(errs...)
	close(d.closed)
	close(d.events)
	return d.result
}
