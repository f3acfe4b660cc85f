package relay

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/endpoint/endpointtest"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/tally"
	"github.com/railhop/railhop/internal/xfer"
)

// card is a NIC whose queue pairs take less than they have room for, if short says so.
type card struct {
	nic.Device
	short *atomic.Bool
}

type domain struct {
	nic.PD
	short *atomic.Bool
}

type pair struct {
	nic.QP
	short *atomic.Bool
}

func (c card) NewPD() (nic.PD, error) {
	pd, err := c.Device.NewPD()
	return domain{pd, c.short}, err
}

func (d domain) NewQP(o nic.QPOptions) (nic.QP, error) {
	qp, err := d.PD.NewQP(o)
	return pair{qp, d.short}, err
}

func (p pair) Post(wrs []nic.WR) (int, error) {
	if !p.short.Load() {
		return p.QP.Post(wrs)
	}
	n, _ := p.QP.Post(wrs[:len(wrs)-1])
	return n, errors.New("out of memory")
}

type liveSender struct{ Sender }

func (liveSender) Suspected(time.Duration) bool { return false }
func (liveSender) Gone() bool                   { return false }
func (liveSender) Wake()                        {}
func (liveSender) Close() error                 { return nil }

type key uint32

func (k key) Pick(uint64, string) (Hop, error) {
	return Hop{Path: "peer:1@nic0", RKey: uint32(k), Start: 1, End: 1 << 60}, nil
}

func (key) Fences() bool { return true }

// rig is a relay with one lane, whose sender the test plays, and a target.
type rig struct {
	t      *testing.T
	fabric *endpointtest.Fabric
	short  atomic.Bool
	now    time.Duration
	relay  *Relay
	tx     *lane.Sender
}

const rigSlot = 1 << 20

func newRig(t *testing.T, find func() Route) *rig {
	t.Helper()
	r := &rig{t: t, fabric: endpointtest.NewFabric(), now: time.Second}
	net := &endpointtest.Net{}
	set := func(server string) *endpoint.Set {
		d := card{r.fabric.NewDevice("nic0", 256), &r.short}
		pd, err := d.NewPD()
		if err != nil {
			t.Fatal(err)
		}
		s, err := endpoint.NewSet(endpoint.Options{
			NIC: &endpoint.NIC{Name: "nic0", Device: d, PD: pd}, Server: server, Dialer: net, QPs: 1, Pause: time.Nanosecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	net.Serve("peer:1", endpoint.NewAcceptor(set("peer:1")).Accept)
	block, err := shmabi.ControlAt(make([]byte, shmabi.ControlBytes))
	if err != nil {
		t.Fatal(err)
	}
	mem, g := lane.Map(block, 0), lane.Geometry{Slots: shmabi.Slots, SlotSize: rigSlot, MaxSpans: shmabi.MaxSpans}
	mem.Store(lane.Word{Kind: lane.SenderEpoch}, 3)
	mem.Store(lane.Word{Kind: lane.State}, uint64(shmabi.LaneReady))
	r.tx = lane.NewSender(mem, g, 3)
	r.relay = New(Options{
		Lanes: []lane.Mem{mem}, Geometry: g, Arena: 1 << 40, Rails: []Rail{{Name: "nic0", Set: set("me:1")}},
		Depth: 4, SliceSize: 4096, Credit: time.Hour, Tally: tally.New(nil), Wake: func() {},
		FindSender: func(context.Context, int) (Sender, error) { return liveSender{}, nil },
		FindRoute:  func(context.Context, string) (Route, error) { return find(), nil },
	})
	t.Cleanup(r.relay.Close)
	return r
}

// send has the relay send a slot, and returns what it answers.
func (r *rig) send() xfer.Code {
	r.t.Helper()
	if err := r.tx.Prepare(0, []byte("peer:1"), []shmabi.Plan{{Dest: 1 << 20, Length: rigSlot}}, rigSlot); err != nil {
		r.t.Fatal(err)
	}
	r.tx.Ring(r.tx.Commit())
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		r.now += time.Millisecond
		r.relay.Step(r.now)
		if _, status, ok := r.tx.Reap(); ok {
			return status
		}
	}
	r.t.Fatal("the piece is not completed")
	return 0
}

// TestShortPost has a queue pair take all but the request that would report the others.
func TestShortPost(t *testing.T) {
	r := newRig(t, func() Route { return key(1) })
	free := r.relay.pool.free
	r.short.Store(true)
	if got := r.send(); got != xfer.ErrEndpoint {
		t.Errorf("a piece of which not all was taken: %v, want %v", got, xfer.ErrEndpoint)
	}
	r.short.Store(false)
	if got := r.send(); got != xfer.OK {
		t.Errorf("the next piece: %v, want %v", got, xfer.OK)
	}
	if r.relay.pool.free != free {
		t.Errorf("%d slices are free, want %d", r.relay.pool.free, free)
	}
}

// TestRefusedRoute has a target that has registered its memory anew, at the same address
// with another key.
func TestRefusedRoute(t *testing.T) {
	var asked atomic.Int32
	r := newRig(t, func() Route { return key(asked.Add(1)) })
	r.fabric.Fault = func(_ string, wr nic.WR) nic.Status {
		if wr.RKey == 1 {
			return nic.StatusRemoteAccess
		}
		return nic.StatusSuccess
	}
	for i, want := range []xfer.Code{xfer.ErrEndpoint, xfer.OK, xfer.OK} {
		if got := r.send(); got != want {
			t.Errorf("piece %d: %v, want %v", i, got, want)
		}
	}
	if asked.Load() != 2 {
		t.Errorf("the route was looked up %d times, want 2", asked.Load())
	}
}

// TestRoutesAreForgotten has many targets, each of which goes away again.
func TestRoutesAreForgotten(t *testing.T) {
	r := newRig(t, func() Route { return key(1) })
	for i := range 3 * maxRoutes {
		r.relay.resolve(r.now, fmt.Appendf(nil, "peer:%d", i))
		if n := len(r.relay.routes); n > maxRoutes {
			t.Fatalf("%d routes are remembered, want %d at most", n, maxRoutes)
		}
		if i%100 == 0 {
			r.relay.wg.Wait()
			r.relay.Step(r.now)
		}
	}
	if got := r.send(); got != xfer.OK {
		t.Errorf("a piece after all these: %v, want %v", got, xfer.OK)
	}
}
