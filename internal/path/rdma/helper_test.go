package rdma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/endpoint/endpointtest"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

const mib = 1 << 20

// memory is registered memory of this process: regions by address.
type memory []Region

func (m memory) Find(addr uint64) (Region, error) {
	for _, r := range m {
		if r.Addr <= addr && addr-r.Addr < r.Length {
			return r, nil
		}
	}
	return Region{}, fmt.Errorf("nothing at %#x, nearest is %#x: %w", addr, m[0].Addr, xfer.ErrAddressNotFound)
}

// remote is a scripted target: buffers that all its NICs serve.
type remote struct {
	name    string
	nics    []string // NIC paths, preferred first
	first   int      // how many are preferred; 0 means all
	buffers atomic.Pointer[[]Region]
	next    *[]Region // what a fetch finds, nil for no change
	rkey    uint32
	err     error // of a fetch
	fetches atomic.Int32
	turn    int
}

func (r *remote) Name() string { return r.name }
func (r *remote) Devices() int { return len(r.nics) }

func (r *remote) End(addr uint64) (uint64, error) {
	for _, b := range *r.buffers.Load() {
		if b.Addr <= addr && addr-b.Addr < b.Length {
			return b.Addr + b.Length, nil
		}
	}
	return 0, fmt.Errorf("nothing at %#x: %w", addr, xfer.ErrAddressNotFound)
}

func (r *remote) Select(_ string, addr, length uint64, retry int) (Choice, error) {
	i := 0
	if retry > 0 {
		i = (retry - 1) % len(r.nics)
	} else if n := r.first; n != 1 {
		if n == 0 {
			n = len(r.nics)
		}
		i = r.turn % n
		r.turn++
	}
	return Choice{NICPath: r.nics[i], RKey: r.rkey}, nil
}

func (r *remote) Refetch(context.Context) error {
	r.fetches.Add(1)
	if r.next != nil {
		r.buffers.Store(r.next)
	}
	return r.err
}

// owner records what becomes of a request.
type owner struct {
	opened, closed int
	bytes          uint64
	errs           []error
}

func (o *owner) Opened(n int) { o.opened += n }

func (o *owner) Closed(bytes uint64, err error) {
	o.closed++
	o.bytes += bytes
	if err != nil {
		o.errs = append(o.errs, err)
	}
}

// only matches one owner.
func only(o Owner) func(Owner) bool {
	return func(other Owner) bool { return other == o }
}

func (o *owner) done() bool { return o.opened > 0 && o.opened == o.closed }

// rig is one path under test, and the peers that it sends to, on cards in memory.
type rig struct {
	t      testing.TB
	fabric *endpointtest.Fabric
	net    *endpointtest.Net
	clock  atomic.Int64
	path   *Path
	sets   []*endpoint.Set
	cards  []*endpointtest.Device
	local  memory
}

func (r *rig) now() time.Duration { return time.Duration(r.clock.Load()) }

func newRig(t testing.TB, nics int, edit func(*Options, *endpoint.Options)) *rig {
	t.Helper()
	r := &rig{t: t, fabric: endpointtest.NewFabric(), net: &endpointtest.Net{}}
	r.clock.Store(int64(time.Hour))
	keys := make([]uint32, nics)
	for i := range keys {
		keys[i] = uint32(100 + i)
	}
	r.local = memory{{Addr: mib, Length: 1 << 40, Location: "cuda:0", LKeys: keys}}
	opts := Options{Local: r.local, Now: r.now}
	eo := endpoint.Options{Server: "me:1", Dialer: r.net, Now: r.now, Gate: endpoint.NewGate(32)}
	if edit != nil {
		edit(&opts, &eo)
	}
	for i := range nics {
		r.sets = append(r.sets, r.set(eo, i, fmt.Sprintf("nic%d", i)))
	}
	opts.Sets = r.sets
	var err error
	if r.path, err = New(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.path.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) set(eo endpoint.Options, i int, name string) *endpoint.Set {
	r.t.Helper()
	d := r.fabric.NewDevice(name, 256)
	pd, err := d.NewPD()
	if err != nil {
		r.t.Fatal(err)
	}
	r.cards = append(r.cards, d)
	eo.NIC = &endpoint.NIC{Name: name, Rail: "rail" + name[3:], Index: i, Device: d, PD: pd}
	s, err := endpoint.NewSet(eo)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// peer starts a process with as many NICs, and returns its memory.
func (r *rig) peer(server string, nics int) *remote {
	r.t.Helper()
	m := &remote{name: server, rkey: 7}
	m.buffers.Store(&[]Region{{Addr: mib, Length: 1 << 40}})
	for i := range nics {
		m.nics = append(m.nics, fmt.Sprintf("%s@nic%d", server, i))
	}
	r.start(server, nics)
	return m
}

// start starts the process alone, and returns what stops it.
func (r *rig) start(server string, nics int) (stop func()) {
	r.t.Helper()
	var sets []*endpoint.Set
	cards := len(r.cards)
	for i := range nics {
		sets = append(sets, r.set(endpoint.Options{Server: server, Dialer: r.net, Now: r.now}, i, fmt.Sprintf("nic%d", i)))
	}
	r.cards = r.cards[:cards]
	r.net.Serve(server, endpoint.NewAcceptor(sets...).Accept)
	stop = func() {
		r.net.Serve(server, nil)
		for _, s := range sets {
			if err := s.Close(); err != nil {
				r.t.Error(err)
			}
		}
	}
	r.t.Cleanup(func() {
		for _, s := range sets {
			s.Close()
		}
	})
	return stop
}

func (r *rig) submit(m *remote, length uint64) *owner {
	r.t.Helper()
	o := new(owner)
	if err := r.path.Submit(&Work{Op: xfer.Write, Local: mib, Remote: mib, Length: length, Target: m, Owner: o}); err != nil {
		r.t.Fatal(err)
	}
	return o
}

// until steps until cond holds. Where nothing has happened for a while, the clock
// jumps to when something is due, if jump says so.
func (r *rig) until(what string, jump bool, cond func() bool) {
	r.t.Helper()
	idle := 0
	for deadline := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			r.t.Fatalf("still not so: %s; %+v", what, r.path.Stats())
		}
		if r.path.Step(r.now()) {
			idle = 0
			continue
		}
		if idle++; jump && idle >= 20 {
			if limit := r.path.Arm(r.now()); limit > 0 {
				r.clock.Add(int64(max(limit, 20*time.Millisecond)))
			}
			idle = 0
		}
		time.Sleep(50 * time.Microsecond)
	}
}

func (r *rig) finish(jump bool, owners ...*owner) {
	r.t.Helper()
	r.until("all done", jump, func() bool {
		return !slices.ContainsFunc(owners, func(o *owner) bool { return !o.done() })
	})
}

// settled checks that every count is back where it began.
func (r *rig) settled() {
	r.t.Helper()
	r.until("endpoints drained", false, func() bool {
		for _, s := range r.path.slices {
			if s.ep != nil {
				return false
			}
		}
		return true
	})
	free := 0
	for i := r.path.free; i != none; i = r.path.slices[i].next {
		free++
	}
	if free != len(r.path.slices) {
		r.t.Errorf("%d slices of %d are free", free, len(r.path.slices))
	}
	if n := r.path.Open(); n != 0 || len(r.path.requests) != 0 {
		r.t.Errorf("%d slices of %d requests are open", n, len(r.path.requests))
	}
}

func wantErr(t testing.TB, o *owner, want error) {
	t.Helper()
	if len(o.errs) == 0 {
		t.Errorf("no error, want %v", want)
	}
	for _, err := range o.errs {
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

func peerNIC(path string) string { _, d := wire.SplitNICPath(path); return d }

var _ nic.Device = (*endpointtest.Device)(nil)
