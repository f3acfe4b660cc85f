package rdma_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/path/rdma"
	"github.com/railhop/railhop/internal/pump"
	"github.com/railhop/railhop/internal/segment"
	"github.com/railhop/railhop/internal/testkit"
	"github.com/railhop/railhop/internal/wire"
)

const mib = 1 << 20

// process is an engine in small: NICs, real ones where there are some, a handshake
// server, memory, a pump.
type process struct {
	t        testing.TB
	name     string
	dialer   *handshake.Dialer
	server   *handshake.Server
	devices  []nic.Device
	pds      []nic.PD
	local    *segment.Local
	cache    *segment.Cache
	acceptor *endpoint.Acceptor
	path     *rdma.Path
	loop     *pump.Loop
	stop     func()
	cursor   segment.Cursor
	pieces   []segment.Piece
}

// Find implements [rdma.Local].
func (p *process) Find(addr uint64) (rdma.Region, error) {
	var err error
	if p.pieces, err = p.local.Cover(&p.cursor, p.pieces[:0], addr, 1); err != nil {
		return rdma.Region{}, err
	}
	c := p.pieces[0]
	return rdma.Region{Addr: c.Chunk.Addr, Length: c.Chunk.Length, Location: c.Buffer.Location, LKeys: c.Chunk.LKey}, nil
}

// target adapts [segment.Remote].
type target struct {
	*segment.Remote
	turn uint64
}

func (t *target) Name() string { return t.Remote.Name }
func (t *target) Devices() int { return len(t.Desc().Devices) }

func (t *target) End(addr uint64) (uint64, error) {
	c, err := t.Desc().Select(addr, 1, 0, "", 0)
	return c.BufferEnd, err
}

func (t *target) Select(_ string, addr, length uint64, retry int) (rdma.Choice, error) {
	t.turn++
	c, err := t.Desc().Select(addr, length, retry, "", t.turn)
	return rdma.Choice{NICPath: c.NICPath, RKey: c.RKey}, err
}

func (t *target) Refetch(ctx context.Context) error {
	_, err := t.Remote.Refetch(ctx, t.Desc())
	return err
}

func newProcess(t testing.TB, port uint16, nics int) *process {
	t.Helper()
	return newProcessAt(t, "127.0.1.1", port, nics)
}

// newPeer is newProcess on another host.
func newPeer(t testing.TB, port uint16, nics int) *process {
	t.Helper()
	return newProcessAt(t, "127.0.0.1", port, nics)
}

func newProcessAt(t testing.TB, host string, port uint16, nics int) *process {
	t.Helper()
	p := &process{t: t, dialer: &handshake.Dialer{}, loop: pump.New(pump.Options{})}
	ho := handshake.Options{BindAddr: "127.0.0.1", PortMin: port, PortMax: port}
	var err error
	if p.server, err = handshake.Listen(ho); err != nil {
		t.Fatal(err)
	}
	p.name = fmt.Sprintf("127.0.0.1:%d", p.server.Port())
	var text []string
	matrix := [2][]string{}
	for i := range nics {
		name := fmt.Sprintf("soft%d", i)
		text = append(text, name+"="+host)
		matrix[0] = append(matrix[0], name)
	}
	provider, err := testkit.NICs(strings.Join(text, ";"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var described []wire.Device
	var sets []*endpoint.Set
	for i, name := range matrix[0] {
		d, err := provider.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		pd, err := d.NewPD()
		if err != nil {
			t.Fatal(err)
		}
		p.devices, p.pds = append(p.devices, d), append(p.pds, pd)
		described = append(described, wire.Device{Name: name, LID: d.Port().LID, GID: d.Port().GID.String()})
		s, err := endpoint.NewSet(endpoint.Options{
			NIC:    &endpoint.NIC{Name: name, Rail: name, Index: i, Device: d, PD: pd},
			Server: p.name, Dialer: p.dialer, Now: p.loop.Now, Wake: p.loop.Wake,
		})
		if err != nil {
			t.Fatal(err)
		}
		sets = append(sets, s)
	}
	p.local, err = segment.NewLocal(segment.LocalOptions{
		Name: p.name, Protocol: "rdma", FenceVersion: 1, Devices: described,
		Matrix: map[string][2][]string{"cpu:0": matrix},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.cache = segment.NewCache(segment.CacheOptions{Source: p.dialer, Local: p.local})
	p.acceptor = endpoint.NewAcceptor(sets...)
	p.path, err = rdma.New(rdma.Options{Sets: sets, Local: p, Now: p.loop.Now, Wake: p.loop.Wake})
	if err != nil {
		t.Fatal(err)
	}
	p.server.Handle(handshake.Handlers{Connect: p.acceptor.Accept, Describe: p.local.Encoded})
	if err := func() error { go p.loop.Run(t.Context()); return p.loop.Add(p.path) }(); err != nil {
		t.Fatal(err)
	}
	p.stop = sync.OnceFunc(func() {
		if err := p.loop.Remove(p.path); err != nil && !errors.Is(err, pump.ErrStopped) {
			t.Error(err)
		}
		for _, c := range []func() error{p.path.Close, p.server.Close, p.cache.Close} {
			if err := c(); err != nil {
				t.Error(err)
			}
		}
		for _, d := range p.devices {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(p.stop)
	return p
}

// register makes memory known to all NICs and publishes it.
func (p *process) register(addr, length uint64) {
	p.t.Helper()
	b := &segment.Buffer{Addr: addr, Length: length, Location: "cpu:0", RemoteAccess: true}
	if err := p.local.Reserve(b); err != nil {
		p.t.Fatal(err)
	}
	for i := range b.Chunks {
		c := &b.Chunks[i]
		for _, pd := range p.pds {
			mr, err := pd.Register(c.Addr, c.Length, nic.LocalWrite|nic.RemoteWrite|nic.RemoteRead)
			if err != nil {
				p.t.Fatal(err)
			}
			c.LKey, c.RKey = append(c.LKey, mr.LKey()), append(c.RKey, mr.RKey())
		}
	}
	p.local.Publish(b)
}

func (p *process) memory(n int) ([]byte, uint64) {
	p.t.Helper()
	b, addr := mapped(p.t, n)
	p.register(addr, uint64(n))
	return b, addr
}

func (p *process) open(name string) *target {
	p.t.Helper()
	r, err := p.cache.Open(p.t.Context(), name)
	if err != nil {
		p.t.Fatal(err)
	}
	return &target{Remote: r}
}

// waiter is an owner that can be waited for.
type waiter struct {
	open  int
	bytes atomic.Uint64
	err   error
	done  chan struct{}
}

func (w *waiter) Opened(n int) { w.open += n }

func (w *waiter) Closed(bytes uint64, err error) {
	w.bytes.Add(bytes)
	if w.err == nil {
		w.err = err
	}
	if w.open--; w.open == 0 {
		close(w.done)
	}
}

func (p *process) submit(works ...rdma.Work) *waiter {
	p.t.Helper()
	w := &waiter{done: make(chan struct{})}
	var errs []error
	if err := p.loop.Do(func() {
		for _, x := range works {
			x.Owner = w
			errs = append(errs, p.path.Submit(&x))
		}
	}); err != nil {
		p.t.Fatal(err)
	}
	if err := errors.Join(errs...); err != nil {
		p.t.Fatal(err)
	}
	return w
}

func (w *waiter) wait(t testing.TB) error {
	t.Helper()
	select {
	case <-w.done:
		return w.err
	case <-time.After(60 * time.Second):
		t.Fatalf("not done; %d bytes are", w.bytes.Load())
		return nil
	}
}
