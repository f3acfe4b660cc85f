package pxntest

import (
	"context"
	"time"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/relay"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// nullNIC is a card whose operations move nothing and complete at once.
type nullNIC struct{}

func (nullNIC) Attr() nic.Attr           { return nic.Attr{Name: "m1", DeathCloses: true} }
func (nullNIC) Port() nic.Port           { return nic.Port{State: nic.PortActive, GID: nic.GID{15: 1}, LID: 1} }
func (nullNIC) Events() <-chan nic.Event { return nil }
func (nullNIC) NewPD() (nic.PD, error)   { return nullPD{}, nil }
func (nullNIC) Close() error             { return nil }
func (nullNIC) NewCQ(depth int, _ func()) (nic.CQ, error) {
	return &nullCQ{}, nil
}

type nullPD struct{}

func (nullPD) Register(uint64, uint64, nic.Access) (nic.MR, error) { return nil, nic.ErrMemory }
func (nullPD) Close() error                                        { return nil }
func (nullPD) NewQP(o nic.QPOptions) (nic.QP, error) {
	cq := o.CQ.(*nullCQ)
	cq.qps++
	return &nullQP{cq: cq, num: cq.qps}, nil
}

// nullCQ belongs to the pump, but for the making of its queue pairs.
type nullCQ struct {
	done []nic.Completion
	qps  uint32
}

func (c *nullCQ) Arm() error   { return nil }
func (c *nullCQ) Close() error { return nil }
func (c *nullCQ) Poll(done []nic.Completion) (int, error) {
	n := copy(done, c.done)
	c.done = c.done[:copy(c.done, c.done[n:])]
	return n, nil
}

type nullQP struct {
	cq  *nullCQ
	num uint32
}

func (q *nullQP) Num() uint32                 { return q.num }
func (q *nullQP) State() nic.QPState          { return nic.RTS }
func (q *nullQP) Modify(nic.QPAttr) error     { return nil }
func (q *nullQP) Close(context.Context) error { return nil }
func (q *nullQP) Post(wrs []nic.WR) (int, error) {
	for i := range wrs {
		if wrs[i].Signaled {
			q.cq.done = append(q.cq.done, nic.Completion{ID: wrs[i].ID, QPN: q.num})
		}
	}
	return len(wrs), nil
}

// answers is a dialer whose peers agree to everything.
type answers struct{}

func (answers) Connect(_ context.Context, _ string, hs wire.HandShake) (wire.HandShake, error) {
	return wire.HandShake{
		LocalNICPath: hs.PeerNICPath, PeerNICPath: hs.LocalNICPath,
		LocalGID: nic.GID{15: 2}.String(), LocalLID: 2, QPNum: hs.QPNum,
	}, nil
}

// nullGPU copies nothing. Its streams do at once what they are given.
type nullGPU struct {
	gpu.Device
	lane lane.Mem
}

func (g *nullGPU) Info() gpu.Info {
	return gpu.Info{BusID: "0000:a0:00.0", StreamMemOps: true, BatchedCopy: true}
}
func (g *nullGPU) Import(gpu.Handle, uint64) (uint64, error) { return 1 << 40, nil }
func (g *nullGPU) CloseImport(uint64) error                  { return nil }
func (g *nullGPU) PeerAtomics(string) bool                   { return true }
func (g *nullGPU) NewStream() (gpu.Stream, error)            { return nullStream{g.lane}, nil }
func (g *nullGPU) NewEvent() (gpu.Event, error)              { return nullEvent{}, nil }
func (g *nullGPU) MapHost([]byte) (uint64, func() error, error) {
	return 0, func() error { return nil }, nil
}

type nullStream struct{ lane lane.Mem }

func (s nullStream) Wait(gpu.Event) error   { return nil }
func (s nullStream) Copy([]gpu.Copy) error  { return nil }
func (s nullStream) Record(gpu.Event) error { return nil }
func (s nullStream) Idle() (bool, error)    { return true, nil }
func (s nullStream) Close() error           { return nil }
func (s nullStream) Write64(_, v uint64) error {
	s.lane.Store(lane.Word{Kind: lane.Doorbell}, v)
	return nil
}

type nullEvent struct{}

func (nullEvent) Done() (bool, error) { return true, nil }
func (nullEvent) Close() error        { return nil }

// peer is either end as the other sees it: well.
type peer struct{}

func (peer) Name() string                                { return "peer" }
func (peer) Epoch() uint64                               { return 7 }
func (peer) Suspected(time.Duration) (bool, xfer.Reason) { return false, xfer.NoReason }
func (peer) Gone() bool                                  { return false }
func (peer) Watched() bool                               { return true }
func (peer) Leaving() xfer.Reason                        { return xfer.NoReason }
func (peer) Wake()                                       {}
func (peer) Fault(error)                                 {}
func (peer) Close() error                                { return nil }

type sender struct{ peer }

func (sender) Suspected(time.Duration) bool { return false }

// route leads to one buffer of a target.
type route struct{}

func (route) Pick(uint64, string) (relay.Hop, error) {
	return relay.Hop{Path: "target:1@m1", RKey: 3, Start: 1, End: 1 << 60}, nil
}
func (route) Fences() bool { return true }

// owner counts what has not come back.
type owner struct{ open int }

func (o *owner) Opened(n int)         { o.open += n }
func (o *owner) Closed(uint64, error) { o.open-- }
