package railhop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/ledger"
	"github.com/railhop/railhop/internal/path/pxn"
	"github.com/railhop/railhop/internal/path/rdma"
	"github.com/railhop/railhop/internal/plan"
	"github.com/railhop/railhop/internal/relay"
	"github.com/railhop/railhop/internal/segment"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

type gpuInfo = gpu.Info

// gpuInfos lists the visible GPUs; none if there is no provider.
func (h *host) gpuInfos() ([]gpu.Info, error) {
	if h.gpus == nil {
		return nil, nil
	}
	infos, err := h.gpus.Devices()
	if err != nil {
		return nil, fmt.Errorf("railhop: list GPUs: %w", err)
	}
	return infos, nil
}

// location is how a GPU's memory is called in descriptors.
func location(ordinal int) string { return "cuda:" + strconv.Itoa(ordinal) }

// remoteDialer asks peers.
type remoteDialer struct{ handshake.Asker }

// fenceTime is how long a fence may take. Who asks has given up by then, and asks again.
const fenceTime = time.Minute

// fenceAsked answers a peer's fence.
func (e *Engine) fenceAsked(ctx context.Context, q wire.FenceRequest) wire.FenceReply {
	ctx, cancel := context.WithTimeout(ctx, fenceTime)
	defer cancel()
	closed, err := e.acceptor.Fence(ctx, q.Epoch)
	reply := wire.FenceReply{Epoch: q.Epoch, Nonce: q.Nonce, Closed: closed}
	if err != nil {
		reply.Error = err.Error()
	}
	e.log.Info("fenced a relay", "epoch", fmt.Sprintf("%016x", q.Epoch), "queue_pairs", closed, "err", err)
	return reply
}

// localMemory is what the direct way knows of our memory. It belongs to the pump.
type localMemory struct {
	local  *segment.Local
	cursor segment.Cursor
	pieces []segment.Piece
}

// Find implements [rdma.Local].
func (m *localMemory) Find(addr uint64) (rdma.Region, error) {
	var err error
	m.pieces, err = m.local.Cover(&m.cursor, m.pieces[:0], addr, 1)
	if err != nil {
		return rdma.Region{}, err
	}
	p := m.pieces[0]
	return rdma.Region{Addr: p.Chunk.Addr, Length: p.Chunk.Length, Location: p.Buffer.Location, LKeys: p.Chunk.LKey}, nil
}

// target is an opened segment as the pump uses it.
type target struct {
	engine *Engine
	remote *segment.Remote
	relay  *pxn.Target
	named  railNames
	turn   uint64 // choices so far

	waiting  []waiting     // tasks whose address the descriptor did not know
	fetching bool          // it is fetched anew for them
	fetched  time.Duration // when that was done last
}

// waiting is a task that waits for its target's descriptor.
type waiting struct {
	task  *ledger.Task
	fence *pxn.Fence
	wait  bool
}

// fetchEvery is the least time between two fetches of a descriptor for addresses
// that it does not know.
const fetchEvery = 100 * time.Millisecond

// outdated reports whether a task that may be relayed must wait for its target's
// descriptor, which does not know the address and is then fetched anew: the
// target may have registered the memory since.
func (t *target) outdated(now time.Duration, task *ledger.Task) bool {
	e := t.engine
	if e.rank.Load() == nil || task.Req.Op != Write || task.Req.Length == 0 {
		return false
	}
	d := t.remote.Desc()
	if _, _, err := d.Candidates(task.Req.TargetAddr, 1); !errors.Is(err, xfer.ErrAddressNotFound) {
		return false
	}
	if t.fetching {
		return true
	}
	if t.fetched != 0 && now-t.fetched < fetchEvery {
		return false
	}
	t.fetching = true
	e.wg.Go(func() {
		_, err := t.remote.Refetch(e.ctx, d)
		if err != nil {
			e.log.Debug("descriptor not fetched", "segment", t.Name(), "err", err)
		}
		e.host.loop.Do(t.renewed)
	})
	return true
}

// renewed sends what waited for the descriptor on its way.
func (t *target) renewed() {
	now := t.engine.host.loop.Now()
	t.fetching, t.fetched = false, now
	all := t.waiting
	t.waiting = nil
	for _, w := range all {
		s := submission{fence: w.fence, wait: w.wait}
		t.engine.choose(now, w.task, t, &s)
		w.fence.Drop()
	}
}

// abort ends the tasks of a batch that wait for the descriptor.
func (t *target) abort(b *ledger.Batch, cause error) {
	var ended []waiting
	t.waiting = slices.DeleteFunc(t.waiting, func(w waiting) bool {
		if w.task.Batch() != b {
			return false
		}
		ended = append(ended, w)
		return true
	})
	for _, w := range ended {
		w.fence.Drop()
		w.task.Closed(0, cause)
	}
}

// railNames are the rails of a descriptor's devices.
type railNames struct {
	desc  *segment.Desc
	rails []string
	rule  plan.Rule
	log   *slog.Logger // told of a rule that is new; nil is none
}

// of returns the rails of d's devices, worked out once for each descriptor.
func (n *railNames) of(rails *plan.Rails, d *segment.Desc) []string {
	if n.desc == d {
		return n.rails
	}
	first, before := n.desc == nil, n.rule
	n.desc = d
	n.rails, n.rule = rails.Target(targetNICs(d))
	if n.log != nil && (first || n.rule != before) {
		n.log.Info("rails of a target", "segment", d.Name, "by", n.rule.String(), "rails", n.rails)
	}
	return n.rails
}

func targetNICs(d *segment.Desc) []plan.NIC {
	nics := make([]plan.NIC, len(d.Devices))
	for i, dev := range d.Devices {
		nics[i] = plan.NIC{Device: dev.Name, GID: netip.AddrFrom16(d.GID(i))}
	}
	return nics
}

// target returns the pump's view of a segment, or nil.
func (e *Engine) target(id xfer.SegmentID) *target {
	i := int(id)
	if uint64(id) < uint64(len(e.targets)) && e.targets[i] != nil {
		return e.targets[i]
	}
	r := e.cache.Get(id)
	if r == nil {
		return nil
	}
	t := &target{engine: e, remote: r, named: railNames{log: e.log}}
	d := r.Desc()
	t.relay = &pxn.Target{Session: []byte(d.Name), Fences: d.FenceVersion >= 1, Handshakes: fencedByHandshake(d.SegmentDesc), Ref: t}
	for len(e.targets) <= i {
		e.targets = append(e.targets, nil)
	}
	e.targets[i] = t
	return t
}

// Name implements [rdma.Target].
func (t *target) Name() string { return t.remote.Name }

// End implements [rdma.Target].
func (t *target) End(addr uint64) (uint64, error) {
	d := t.remote.Desc()
	c, err := d.Select(addr, 1, 0, "", 0)
	if err != nil {
		return 0, err
	}
	return c.BufferEnd, nil
}

// Select implements [rdma.Target]. At first, of the preferred devices one on the rail of
// the local NIC is taken, or what the settings pair it with.
func (t *target) Select(from string, addr, length uint64, retry int) (rdma.Choice, error) {
	d, s := t.remote.Desc(), &t.engine.cfg.Settings.Transport
	rnd := t.turn
	if t.turn++; !s.RoundRobin {
		rnd = t.engine.cfg.Hooks.random()
	}
	var c segment.Choice
	var err error
	if s.HCAPeerAffinity {
		c, err = d.SelectAmong(addr, length, retry, s.NICPeerAffinity[from], rnd)
	} else {
		hint := ""
		if retry == 0 {
			if hint, err = t.hint(d, from, addr, length); err != nil {
				return rdma.Choice{}, err
			}
		}
		c, err = d.Select(addr, length, retry, hint, rnd)
	}
	if err != nil {
		return rdma.Choice{}, err
	}
	return rdma.Choice{NICPath: c.NICPath, RKey: c.RKey}, nil
}

// hint is the device that suits a local NIC best, or "".
func (t *target) hint(d *segment.Desc, from string, addr, length uint64) (string, error) {
	if t.engine.cfg.Settings.Transport.DestDeviceAffinity {
		return from, nil
	}
	devices, preferred, err := d.Candidates(addr, length)
	if err != nil {
		return "", err
	}
	if preferred == 0 {
		preferred = len(devices)
	}
	rails, own := t.named.of(t.engine.rails, d), t.engine.rails.Local(from)
	for _, n := range devices[:preferred] {
		if rails[n] == own {
			return d.Devices[n].Name, nil
		}
	}
	return "", nil
}

// Devices implements [rdma.Target].
func (t *target) Devices() int { return len(t.remote.Desc().Devices) }

// Refetch implements [rdma.Target].
func (t *target) Refetch(ctx context.Context) error {
	err := t.remote.Renew(ctx)
	if dir := t.engine.dir; dir != nil && err == nil {
		_, err = dir.Daemon(ctx, t.remote.Desc().Name, true)
	}
	return err
}

// routes finds the targets of other ranks' pieces.
type routes struct {
	source segment.Source
	rails  *plan.Rails
}

// find implements [relay.Options].FindRoute.
func (r *routes) find(ctx context.Context, session string) (relay.Route, error) {
	w, err := r.source.Describe(ctx, session)
	if err != nil {
		return nil, err
	}
	rt := &route{desc: segment.NewDesc(w), rails: r.rails}
	rt.onRail = func(device int) bool { return rt.names[device] == rt.want }
	return rt, nil
}

// route is one such target. It belongs to the pump, once found.
type route struct {
	desc   *segment.Desc
	rails  *plan.Rails
	named  railNames
	names  []string
	want   string
	onRail func(device int) bool
}

// Pick implements [relay.Route].
func (r *route) Pick(addr uint64, rail string) (relay.Hop, error) {
	d := r.desc
	r.names, r.want = r.named.of(r.rails, d), rail
	c, err := d.SelectOnRail(addr, 1, r.onRail)
	if err != nil {
		return relay.Hop{}, err
	}
	return relay.Hop{Path: c.NICPath, RKey: c.RKey, Start: d.Buffers[c.Buffer].Addr, End: c.BufferEnd}, nil
}

// Fences implements [relay.Route].
func (r *route) Fences() bool { return r.desc.FenceVersion >= 1 }
