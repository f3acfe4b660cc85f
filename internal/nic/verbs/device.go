package verbs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/nic"
)

const (
	longestMR = 1 << 46
	mostWR    = 1 << 14
	rdAtom    = 16 // Mooncake's

	softRoCE = 0xffffff // its vendor id
)

// Device is an opened card.
type Device struct {
	p       *Provider
	name    string // as asked for, port included
	base    string
	port    int
	log     *slog.Logger
	context uintptr
	ops     ops
	attr    nic.Attr
	dest    uint8 // reads that peers may have outstanding here
	retries uint8 // the most there are
	slower  uint8 // by which power of two acknowledgements take longer than a card's
	ib      bool
	chains  chains
	way     atomic.Uint32 // GPUMemory that was last registered; see told
	events  chan nic.Event
	async   *os.File
	wg      sync.WaitGroup

	// Making an object holds it for reading, Close for writing.
	life    sync.RWMutex
	closing bool

	mu    sync.Mutex
	fatal bool
	gid   gidEntry
	net   netip.Prefix
	tried map[int]bool // entries that did not connect
	pds   map[*pd]struct{}
	cqs   map[*cq]struct{}
	qps   map[*qp]struct{}
	mrs   map[*mr]struct{}

	closed chan struct{}
	result error
}

var _ nic.Device = (*Device)(nil)

func (p *Provider) openDevice(f *frame, dev uintptr, name, base string, port int) (_ *Device, err error) {
	t := tree{p.opts.Sysfs, p.opts.Dev}
	context, errno := p.lib.pointer(f, p.lib.openDevice, dev)
	if context == 0 {
		if _, why := t.node(base); why != "" {
			return nil, fmt.Errorf("%s: %w", why, errno)
		}
		return nil, fmt.Errorf("ibv_open_device: %w", errno)
	}
	d := &Device{
		p: p, name: name, base: base, port: port, log: p.log.With("nic", name), context: context, ops: opsOf(context),
		events: make(chan nic.Event, 64), closed: make(chan struct{}), tried: make(map[int]bool),
		pds: make(map[*pd]struct{}), cqs: make(map[*cq]struct{}), qps: make(map[*qp]struct{}), mrs: make(map[*mr]struct{}),
	}
	defer func() {
		if err != nil {
			f.call(p.lib.closeDevice, context)
		}
	}()
	if e := code(f.call(p.lib.queryDevice, context, addr(&f.device))); e != 0 {
		return nil, fmt.Errorf("ibv_query_device: %w", e)
	}
	a := &f.device
	if port > int(a.ports) {
		return nil, fmt.Errorf("it has no port %d: want 1 to %d: %w", port, a.ports, nic.ErrNoDevice)
	}
	d.attr = nic.Attr{
		Name: name, NUMA: t.numa(base), MaxMR: min(a.maxMRSize, longestMR), MaxQP: int(a.maxQP), MaxWR: min(int(a.maxQPWR), mostWR),
		MaxRDAtom: max(1, min(rdAtom, int(a.maxQPInitRdAtom))), DeathCloses: true,
	}
	if p.opts.MaxMR > 0 {
		d.attr.MaxMR = min(d.attr.MaxMR, p.opts.MaxMR)
	}
	d.dest = uint8(max(1, min(rdAtom, int(a.maxQPRdAtom))))
	d.retries = mostRetries
	if a.vendorID == softRoCE {
		d.retries-- // it takes the last number for endless
		d.slower = 3
	}
	d.ib = t.infiniband(base, port)
	if d.gid, err = p.pick(t.gids(base, port), d.ib, name, nil); err != nil {
		return nil, err
	}
	d.net = subnet(d.gid)
	if d.async, err = pollable(at[int32](context, contextAsyncFD), name+" events"); err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	d.wg.Go(d.watch)
	d.log.Info("NIC opened", "gid", d.gid, "subnet", d.net, "numa", d.attr.NUMA)
	return d, nil
}

// pollable is a file of the library's that can be waited for without a thread.
func pollable(fd int32, name string) (*os.File, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(own, true); err != nil { // of the library's too: they are one
		unix.Close(own)
		return nil, err
	}
	return os.NewFile(uintptr(own), name), nil
}

// pick chooses a GID, or takes the one that was asked for, and logs why not the
// others.
func (p *Provider) pick(table []gidEntry, infiniband bool, name string, tried map[int]bool) (gidEntry, error) {
	if i := p.opts.GIDIndex; i >= 0 {
		from := p.opts.GIDIndexFrom
		if from == "" {
			from = "MC_GID_INDEX"
		}
		e, ok := fixedGID(table, i)
		if !ok {
			return e, fmt.Errorf("%s=%d: the port has no such GID", from, i)
		}
		p.log.Debug("GID given", "nic", name, "gid", e, "by", from)
		return e, nil
	}
	e, others, ok := chooseGID(table, infiniband, tried)
	for _, o := range others {
		p.log.Debug("GID not chosen", "nic", name, "gid", o.entry, "why", o.why)
	}
	if !ok {
		return e, errors.New("the port has no GID that can be used")
	}
	p.log.Debug("GID chosen", "nic", name, "gid", e, "why", e.classify(infiniband))
	return e, nil
}

// Attr implements [nic.Device].
func (d *Device) Attr() nic.Attr { return d.attr }

// Port implements [nic.Device].
func (d *Device) Port() nic.Port {
	d.mu.Lock()
	port := nic.Port{GID: d.gid.gid, Subnet: d.net}
	fatal := d.fatal
	d.mu.Unlock()
	d.life.RLock()
	defer d.life.RUnlock()
	if d.closing {
		return port
	}
	f, err := d.p.frames.get()
	if err != nil {
		return port
	}
	defer d.p.frames.put(f)
	if code(f.call(d.p.lib.queryPort, d.context, uintptr(d.port), addr(&f.port))) != 0 {
		return port
	}
	port.LID, port.MTU = f.port.lid, mtuBytes(f.port.activeMTU)
	if f.port.state == portAlive && !fatal {
		port.State = nic.PortActive
	}
	return port
}

// mtuBytes is enum ibv_mtu in bytes.
func mtuBytes(e uint32) int {
	if e < 1 || e > 5 {
		return 0
	}
	return 128 << e
}

// mtuEnum is the largest enum ibv_mtu of at most n bytes.
func mtuEnum(n int) uint32 {
	e := uint32(1)
	for e < 5 && mtuBytes(e+1) <= n {
		e++
	}
	return e
}

// address is the port's GID and its index.
func (d *Device) address() gidEntry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gid
}

// refresh reads the GID table again and tells if the port's GID has changed.
func (d *Device) refresh() {
	t := tree{d.p.opts.Sysfs, d.p.opts.Dev}
	table := t.gids(d.base, d.port)
	d.mu.Lock()
	defer d.mu.Unlock()
	// An entry that is still what it was stays: better ones are for new devices.
	if now, ok := fixedGID(table, d.gid.index); ok && now == d.gid {
		return
	}
	d.take(table)
}

// take chooses anew. The caller holds mu.
func (d *Device) take(table []gidEntry) {
	e, err := d.p.pick(table, d.ib, d.name, d.tried)
	if err != nil {
		d.log.Warn("GID lost", "gid", d.gid, "err", err)
		return
	}
	if e == d.gid {
		return
	}
	d.log.Warn("GID changed", "from", d.gid, "to", e)
	d.gid, d.net = e, subnet(e)
	d.send(nic.Event{Type: nic.GIDChanged})
}

// doubt is called when the port's GID did not connect. Where the choice is ours, the
// next best is taken for what comes, a few times.
func (d *Device) doubt(used gidEntry) {
	if d.p.opts.GIDIndex >= 0 {
		return
	}
	t := tree{d.p.opts.Sysfs, d.p.opts.Dev}
	table := t.gids(d.base, d.port)
	d.mu.Lock()
	defer d.mu.Unlock()
	if used != d.gid || len(d.tried) >= d.p.opts.GIDRetries {
		return
	}
	d.tried[used.index] = true
	if _, _, ok := chooseGID(table, d.ib, d.tried); !ok {
		clear(d.tried)
		return
	}
	d.take(table)
}

// NewPD implements [nic.Device].
func (d *Device) NewPD() (nic.PD, error) {
	const what = "new protection domain"
	f, done, err := d.begin(what)
	if err != nil {
		return nil, err
	}
	defer done()
	at, errno := d.p.lib.pointer(f, d.p.lib.allocPD, d.context)
	if at == 0 {
		return nil, d.failed(what, errno)
	}
	p := &pd{d: d, at: at}
	d.mu.Lock()
	d.pds[p] = struct{}{}
	d.mu.Unlock()
	return p, nil
}

// begin keeps the device open until done is called.
func (d *Device) begin(what string) (f *frame, done func(), err error) {
	d.life.RLock()
	if d.closing {
		d.life.RUnlock()
		return nil, nil, fmt.Errorf("verbs: %s on %s: %w", what, d.name, nic.ErrClosed)
	}
	f, err = d.p.frames.get()
	if err != nil {
		d.life.RUnlock()
		return nil, nil, fmt.Errorf("verbs: %s on %s: %w", what, d.name, err)
	}
	return f, func() {
		d.p.frames.put(f)
		d.life.RUnlock()
	}, nil
}

func (d *Device) failed(what string, err error) error {
	return fmt.Errorf("verbs: %s on %s: %w", what, d.name, err)
}

// Close implements [nic.Device].
func (d *Device) Close() error {
	d.life.Lock()
	if d.closing {
		d.life.Unlock()
		<-d.closed
		return d.result
	}
	d.closing = true
	d.life.Unlock()

	// Nothing is added any more.
	d.mu.Lock()
	qps, mrs := slices.Collect(maps.Keys(d.qps)), slices.Collect(maps.Keys(d.mrs))
	cqs, pds := slices.Collect(maps.Keys(d.cqs)), slices.Collect(maps.Keys(d.pds))
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var errs []error
	for _, q := range qps {
		errs = append(errs, q.Close(ctx))
	}
	for _, m := range mrs {
		errs = append(errs, m.Close())
	}
	for _, c := range cqs {
		errs = append(errs, c.Close())
	}
	for _, p := range pds {
		errs = append(errs, p.Close())
	}
	errs = append(errs, d.async.Close())
	d.wg.Wait()
	f, err := d.p.frames.get()
	if err == nil {
		if int32(f.call(d.p.lib.closeDevice, d.context)) != 0 {
			err = errors.New("verbs: ibv_close_device failed")
		}
		d.p.frames.put(f)
	}
	d.chains.close()
	d.result = errors.Join(append(errs, err)...)
	d.mu.Lock()
	close(d.closed)
	close(d.events)
	d.mu.Unlock()
	return d.result
}
