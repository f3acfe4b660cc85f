package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/registry"
)

// plan is what a seed decides before the run begins.
type plan struct {
	ranks, targets int
	workers        int // a rank that sends
	batches        int // a worker
	depth          int // batches of a worker at once

	deathCloses bool // the NICs' work dies with its process, as with real cards
	spine       bool // NICs of different rails reach each other
	ownNIC      bool // a rank has the NIC of its GPU alone
	nvlink      bool
	memOps      bool
	blind       bool // no pidfd: a peer's end cannot be proven
	calm        bool // no faults

	netDelay, wireDelay, ackDelay, flushDelay, retryDelay, closeDelay time.Duration
	copyDelay, kernelDelay                                            time.Duration

	// Faults, in so many of what hits, chance and so on say.
	netLoss, wireLoss, nicErrors, copyErrors, hits int

	deadline float64 // part of the batches that have one
	faults   []time.Duration
	env      config.Env
}

// role is a place that processes take, one after the other.
type role struct {
	name    string
	rank    int // -1 for a target
	port    uint16
	noFence bool
	moves   bool // another port after each start
	proc    *proc
	starts  int
	again   time.Duration // when it is to be started anew
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func newPlan(r *rand.Rand) plan {
	ms, us := time.Millisecond, time.Microsecond
	p := plan{
		ranks: 2 + r.IntN(3), targets: 1 + r.IntN(2), workers: 1 + r.IntN(2), batches: 2 + r.IntN(5), depth: pick(r, 1, 1, 2, 4),
		deathCloses: r.IntN(2) == 0, spine: r.IntN(4) > 0, ownNIC: r.IntN(2) == 0,
		nvlink: r.IntN(4) > 0, memOps: r.IntN(4) > 0, blind: r.IntN(8) == 0,
		calm:     r.IntN(6) == 0,
		netDelay: pick(r, 200*us, 2*ms, 30*ms), wireDelay: pick(r, 20*us, 200*us, 5*ms), ackDelay: pick(r, 10*us, 200*us, 3*ms),
		flushDelay: pick(r, 100*us, 2*ms, 50*ms), retryDelay: pick(r, 2*ms, 50*ms, 500*ms), closeDelay: pick(r, 50*us, ms, 20*ms),
		copyDelay: pick(r, 50*us, 200*us, 5*ms, 60*ms), kernelDelay: pick(r, 100*us, 5*ms, 200*ms),
		deadline: pick(r, 0, 0.2, 0.6),
	}
	if !p.calm {
		p.netLoss, p.wireLoss, p.nicErrors = pick(r, 0, 0, 5, 100), pick(r, 0, 0, 10, 60), pick(r, 0, 0, 10, 60)
		p.copyErrors, p.hits = pick(r, 0, 0, 0, 30), pick(r, 0, 0, 0, 1, 3)
		at := time.Duration(0)
		for range r.IntN(7) {
			at += time.Duration(r.Int64N(int64(pick(r, 3*ms, 40*ms, 400*ms))))
			p.faults = append(p.faults, at)
		}
	}
	env := railhop.Defaults().Settings
	x := &env.PXN
	x.Enable, x.GroupID, x.SlotSize = true, "sim", 256<<10
	x.Depth = pick(r, 1, 2, 4, 4)
	x.CreditTimeout = pick(r, 20*ms, 100*ms, 1000*ms)
	x.HeartbeatTimeout = pick(r, 60*ms, 200*ms, 1000*ms)
	x.Doorbell = pick(r, "auto", "auto", "auto", "cpu")
	d := &env.RDMA
	d.QPsPerEndpoint = pick(r, 1, 2, 2)
	d.MaxWR = pick(r, 4, 32, 256)
	d.MaxEndpoints = pick(r, 65536, 65536, 65536, 2)
	d.RailPause = pick(r, 20*ms, 200*ms)
	d.RetryCount = pick(r, 2, 5, 9)
	p.env = env
	return p
}

// newProc makes a process for a role.
func (w *world) newProc(r *role) *proc {
	p := &proc{
		w: w, name: fmt.Sprintf("%s.%d", r.name, r.starts), role: r, life: r.starts, number: len(w.procs), gpu: r.rank,
		pid: int32(100 + len(w.procs)), targets: make(map[string]*region), making: make(map[string]bool), counts: make(map[string]int), hits: make(map[string]int),
	}
	p.host = "10.0.0.1"
	if r.rank < 0 {
		p.host = "10.0.1." + r.name[len(r.name)-1:]
	}
	if old := r.proc; old != nil && r.rank < 0 {
		// What lies where the last one's memory was is nothing that it ever offered.
		w.mu.Lock()
		for _, g := range old.space.regions {
			w.memory(p, "guard of "+g.name, gpu.DeviceMemory, "0000:01:00.0")
		}
		w.mu.Unlock()
	}
	r.proc = p
	r.starts++
	cfg := railhop.Defaults()
	cfg.Host, cfg.Settings = p.host, w.plan.env
	cfg.CloseWait = 2 * time.Second
	if w.opts.Trace != nil {
		cfg.Logger = w.logger(p)
	}
	p.nics = &nics{p: p}
	p.gpus = &gpus{p: p, callers: make(map[uint64]*stream)}
	for i := range 2 {
		if r.rank >= 0 && w.plan.ownNIC && i != r.rank%2 {
			continue
		}
		d := &device{p: p, name: fmt.Sprintf("mlx5_%d", i), rail: i}
		d.gid[0], d.gid[13], d.gid[14], d.gid[15] = 0xfe, byte(p.number), byte(i), 1
		p.nics.devs = append(p.nics.devs, d)
	}
	count := 2
	if r.rank >= 0 {
		count = w.plan.ranks
	}
	cfg.Topology = make(map[string][2][]string)
	var all []string
	for _, d := range p.nics.devs {
		all = append(all, d.name)
	}
	cfg.Topology["cpu:0"] = [2][]string{all, {}}
	for i := range count {
		bus := fmt.Sprintf("0000:%02x:00.0", i+1)
		p.gpus.infos = append(p.gpus.infos, gpu.Info{Index: i, HostIndex: i, BusID: bus, NUMA: -1, StreamMemOps: w.plan.memOps, BatchedCopy: i%2 == 0})
		var near, far []string
		for _, d := range p.nics.devs {
			if d.rail == i%2 {
				near = append(near, d.name)
			} else {
				far = append(far, d.name)
			}
		}
		cfg.Topology[fmt.Sprintf("cuda:%d", i)] = [2][]string{near, far}
		if i == r.rank {
			p.gpus.own = bus
		}
	}
	if r.rank < 0 {
		cfg.Settings.PXN.Enable = false
	}
	cfg.NICs, cfg.GPUs, cfg.Hooks = p.nics, p.gpus, w.hooks(p)
	p.cfg = cfg
	return p
}

func (w *world) hooks(p *proc) *railhop.Hooks {
	return &railhop.Hooks{
		Turn: p.turnHook,
		Net: func(handshake.Options) (handshake.Answerer, handshake.Asker, error) {
			return w.net.listen(p), asker{p}, nil
		},
		Group:  func(o registry.Options) (registry.Group, error) { return w.openGroup(p, o) },
		Random: func() uint64 { return w.rng.Uint64() },
		Fence: func(_ string, _ uint64, ask func() error) error {
			if p.zombie() || w.opts.Bug == NoFence {
				return nil
			}
			return ask()
		},
		Lane: func(end railhop.End, m lane.Mem) lane.Mem { return &laneMem{p: p, end: end, Mem: m} },
	}
}
