package rdma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/softnic"
	"github.com/railhop/railhop/internal/path/rdma"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/pump"
	"github.com/railhop/railhop/internal/segment"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

const mib = 1 << 20

// process is an engine in small: software NICs, a handshake server, memory, a pump.
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

func (t *target) Select(addr, length uint64, retry int) (rdma.Choice, error) {
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
	p := &process{t: t, dialer: &handshake.Dialer{}, loop: pump.New(pump.Options{})}
	ho := handshake.Options{BindAddr: "127.0.0.1", PortMin: port, PortMax: port}
	var err error
	if p.server, err = handshake.Listen(ho); err != nil {
		t.Fatal(err)
	}
	p.name = fmt.Sprintf("127.0.0.1:%d", p.server.Port())
	var configs []softnic.DeviceConfig
	matrix := [2][]string{}
	for i := range nics {
		name := fmt.Sprintf("soft%d", i)
		configs = append(configs, softnic.DeviceConfig{Name: name, Addr: netip.MustParseAddr("127.0.0.1"), NUMA: -1})
		matrix[0] = append(matrix[0], name)
	}
	provider, err := softnic.New(softnic.Options{Devices: configs})
	if err != nil {
		t.Fatal(err)
	}
	var described []wire.Device
	var sets []*endpoint.Set
	for i, c := range configs {
		d, err := provider.Open(c.Name)
		if err != nil {
			t.Fatal(err)
		}
		pd, err := d.NewPD()
		if err != nil {
			t.Fatal(err)
		}
		p.devices, p.pds = append(p.devices, d), append(p.pds, pd)
		described = append(described, wire.Device{Name: c.Name, LID: d.Port().LID, GID: d.Port().GID.String()})
		s, err := endpoint.NewSet(endpoint.Options{
			NIC:    &endpoint.NIC{Name: c.Name, Rail: c.Name, Index: i, Device: d, PD: pd},
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

func TestBytesOverSoftNIC(t *testing.T) {
	a, b := newProcess(t, 0, 2), newProcess(t, 0, 2)
	src, from := a.memory(64 * mib)
	dst, to := b.memory(64 * mib)
	peer := a.open(b.name)
	for seed, n := range []int{1, 2, 4095, 65536, 65537, 81920, 150000, mib + 1, 64 * mib} {
		for _, op := range []xfer.Opcode{xfer.Write, xfer.Read} {
			t.Run(fmt.Sprint(op, n), func(t *testing.T) {
				in, out := src, dst
				if op == xfer.Read {
					in, out = dst, src
				}
				pattern.Fill(in[:n], uint64(seed), 0)
				clear(out)
				if err := a.submit(rdma.Work{Op: op, Local: from, Remote: to, Length: uint64(n), Target: peer}).wait(t); err != nil {
					t.Fatal(err)
				}
				if at, bad := pattern.Mismatch(out[:n], uint64(seed), 0); bad != 0 {
					t.Errorf("%d bytes differ, the first at %d", bad, at)
				}
				if i := bytes.IndexFunc(out[n:min(len(out), n+4096)], func(r rune) bool { return r != 0 }); i >= 0 {
					t.Errorf("a byte beyond the end was written: %d", n+i)
				}
			})
		}
	}
	if st := a.path.Stats(); st.Retries != 0 || st.Flushed != 0 {
		t.Errorf("%+v", st)
	}
}

// Both ends' ranges span buffers that touch, with keys of their own.
func TestBytesAcrossBuffers(t *testing.T) {
	a, b := newProcess(t, 0, 1), newProcess(t, 0, 2)
	src, from := mapped(t, mib)
	a.register(from, 300*1024)
	a.register(from+300*1024, mib-300*1024)
	dst, to := mapped(t, mib)
	b.register(to, 500*1024+1)
	b.register(to+500*1024+1, mib-500*1024-1)
	pattern.Fill(src, 9, 0)
	if err := a.submit(rdma.Work{Op: xfer.Write, Local: from, Remote: to, Length: mib, Target: a.open(b.name)}).wait(t); err != nil {
		t.Fatal(err)
	}
	if at, n := pattern.Mismatch(dst, 9, 0); n != 0 {
		t.Errorf("%d bytes differ, the first at %d", n, at)
	}
}

func TestBatchesBothWays(t *testing.T) {
	a, b := newProcess(t, 0, 2), newProcess(t, 0, 2)
	const pieces, size = 2000, 4096
	srcA, fromA := a.memory(pieces * size)
	dstA, toA := a.memory(pieces * size)
	srcB, fromB := b.memory(pieces * size)
	dstB, toB := b.memory(pieces * size)
	pattern.Fill(srcA, 1, 0)
	pattern.Fill(srcB, 2, 0)
	batch := func(local, remote uint64, peer *target) (works []rdma.Work) {
		for i := range uint64(pieces) {
			// Scattered: the order of sources is not that of destinations.
			at := i * 777 % pieces * size
			works = append(works, rdma.Work{Op: xfer.Write, Local: local + at, Remote: remote + at, Length: size, Target: peer})
		}
		return works
	}
	// Both dial each other at once.
	wa := a.submit(batch(fromA, toB, a.open(b.name))...)
	wb := b.submit(batch(fromB, toA, b.open(a.name))...)
	if err := errors.Join(wa.wait(t), wb.wait(t)); err != nil {
		t.Fatal(err)
	}
	if _, n := pattern.Mismatch(dstB, 1, 0); n != 0 {
		t.Errorf("%d bytes differ at B", n)
	}
	if _, n := pattern.Mismatch(dstA, 2, 0); n != 0 {
		t.Errorf("%d bytes differ at A", n)
	}
}

func TestSelfOverSoftNIC(t *testing.T) {
	a := newProcess(t, 0, 2)
	src, from := a.memory(mib)
	dst, to := a.memory(mib)
	pattern.Fill(src, 3, 0)
	if err := a.submit(rdma.Work{Op: xfer.Write, Local: from, Remote: to, Length: mib, Target: a.open(a.name)}).wait(t); err != nil {
		t.Fatal(err)
	}
	if _, n := pattern.Mismatch(dst, 3, 0); n != 0 {
		t.Errorf("%d bytes differ", n)
	}
}

func TestSoftPeerRestarts(t *testing.T) {
	a, b := newProcess(t, 0, 1), newProcess(t, 0, 1)
	src, from := a.memory(mib)
	dst, to := b.memory(mib)
	pattern.Fill(src, 4, 0)
	w := rdma.Work{Op: xfer.Write, Local: from, Remote: to, Length: mib, Target: a.open(b.name)}
	if err := a.submit(w).wait(t); err != nil {
		t.Fatal(err)
	}
	port := b.server.Port()
	b.stop()
	again := newProcess(t, port, 1)
	again.register(to, mib) // the same addresses with other keys
	clear(dst)
	if err := a.submit(w).wait(t); err != nil {
		t.Fatal(err)
	}
	if _, n := pattern.Mismatch(dst, 4, 0); n != 0 {
		t.Errorf("%d bytes differ", n)
	}
}

func TestAbortOverSoftNIC(t *testing.T) {
	a, b := newProcess(t, 0, 1), newProcess(t, 0, 1)
	src, from := a.memory(64 * mib)
	dst, to := b.memory(64 * mib)
	peer := a.open(b.name)
	pattern.Fill(src, 5, 0)
	bad := a.submit(rdma.Work{Op: xfer.Write, Local: from, Remote: to, Length: 32 * mib, Target: peer})
	good := a.submit(rdma.Work{Op: xfer.Write, Local: from + 32*mib, Remote: to + 32*mib, Length: 32 * mib, Target: peer})
	for bad.bytes.Load() == 0 {
		time.Sleep(100 * time.Microsecond)
	}
	cause := errors.New("cancelled")
	if err := a.loop.Do(func() { a.path.Abort(bad, cause) }); err != nil {
		t.Fatal(err)
	}
	err := bad.wait(t)
	if err != nil && !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	// Nothing of it lands any more.
	half := dst[:32*mib]
	before := bytes.Clone(half)
	if err := good.wait(t); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(before, half) {
		t.Error("bytes landed after the abort was over")
	}
	if !bytes.Equal(dst[32*mib:], src[32*mib:]) {
		t.Error("the other request's bytes differ")
	}
}

// A relay's endpoint is bound: a fence ends its work, and nothing lands after it.
func TestFenceOverSoftNIC(t *testing.T) {
	a, b := newProcess(t, 0, 1), newProcess(t, 0, 1)
	src, from := a.memory(16 * mib)
	dst, to := b.memory(16 * mib)
	pattern.Fill(src, 6, 0)
	const epoch = 0xfeed
	set, err := endpoint.NewSet(endpoint.Options{
		NIC:    &endpoint.NIC{Name: "soft0", Device: a.devices[0], PD: a.pds[0]},
		Server: a.name, Dialer: a.dialer, RelayEpoch: epoch,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	e, err := set.Get(b.name + "@soft0")
	if err != nil {
		t.Fatal(err)
	}
	for !e.Ready() {
		if err := e.Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Microsecond)
	}
	lkey, rkey := a.local.Buffers()[0].Chunks[0].LKey[0], b.local.Buffers()[0].Chunks[0].RKey[0]
	wrs := make([]nic.WR, 256)
	for i := range wrs {
		off := uint64(i) * 65536
		wrs[i] = nic.WR{ID: uint64(i), Op: nic.OpWrite, Signaled: true, LKey: lkey, RKey: rkey, Length: 65536, LocalAddr: from + off, RemoteAddr: to + off}
	}
	if n, err := e.Post(wrs); n != len(wrs) || err != nil {
		t.Fatal(n, err)
	}
	closed, err := b.acceptor.Fence(t.Context(), epoch)
	if closed != 2 || err != nil {
		t.Fatalf("closed %d, %v", closed, err)
	}
	after := bytes.Clone(dst)
	var done [64]nic.Completion
	for left := len(wrs); left > 0; {
		n, err := set.CQ().Poll(done[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range done[:n] {
			e.Completed(c.QPN, 1)
			if c.Status != nic.StatusSuccess {
				e.Fail(errors.New("fenced"))
			}
		}
		left -= n
		time.Sleep(50 * time.Microsecond)
	}
	if !bytes.Equal(after, dst) {
		t.Error("bytes landed after the fence")
	}
	// Plain traffic is not touched, and a new handshake is welcome.
	if err := a.submit(rdma.Work{Op: xfer.Write, Local: from, Remote: to, Length: 16 * mib, Target: a.open(b.name)}).wait(t); err != nil {
		t.Error(err)
	}
	<-e.Gone()
	e, err = set.Get(b.name + "@soft0")
	if err != nil {
		t.Fatal(err)
	}
	for !e.Ready() {
		if err := e.Err(); err != nil {
			t.Fatal(err)
		}
		set.Step(time.Hour)
		time.Sleep(100 * time.Microsecond)
	}
}
