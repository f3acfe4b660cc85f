package rdma

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/xfer"
)

// Whatever fails, every slice is closed once, and every count returns to its start.
func TestSoak(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { soak(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func soak(t *testing.T, rnd *rand.Rand) {
	r := newRig(t, 2, func(o *Options, eo *endpoint.Options) {
		eo.MaxWR, eo.MaxCQE, eo.MaxEndpoints, eo.FIFO = 16, 50, 4, rnd.IntN(2) == 0
	})
	var peers []*remote
	for i := range 6 {
		peers = append(peers, r.peer(fmt.Sprintf("b%d:1", i), 1+i%2))
	}
	statuses := []nic.Status{
		nic.StatusLocalProtection, nic.StatusLocalLength, nic.StatusRemoteAccess, nic.StatusRemoteOperation,
		nic.StatusRetryExceeded, nic.StatusGeneral, nic.StatusFatal,
	}
	chaos := true
	faults := rand.New(rand.NewPCG(rnd.Uint64(), 2)) // of the cards, which the dials' goroutines use too
	r.fabric.Fault = func(string, nic.WR) nic.Status {
		if chaos && faults.IntN(60) == 0 {
			return statuses[faults.IntN(len(statuses))]
		}
		return nic.StatusSuccess
	}
	type sent struct {
		*owner
		bytes   uint64
		aborted bool
	}
	var all []*sent
	aborted := errors.New("aborted")
	for range 400 {
		s := &sent{owner: new(owner), bytes: uint64(rnd.IntN(20 * 65536))}
		w := Work{Op: xfer.Opcode(rnd.IntN(2)), Local: mib, Remote: mib, Length: s.bytes, Target: peers[rnd.IntN(len(peers))], Owner: s}
		if err := r.path.Submit(&w); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
		for range rnd.IntN(4) {
			r.path.Step(r.now())
		}
		switch rnd.IntN(40) {
		case 0:
			s := all[rnd.IntN(len(all))]
			s.aborted = true
			r.path.Abort(only(s), aborted)
		case 1:
			r.sets[rnd.IntN(2)].ClosePeer(peers[rnd.IntN(len(peers))].nics[0])
		case 2:
			r.cards[rnd.IntN(2)].SetPort(nic.PortState(rnd.IntN(2)))
		case 3:
			r.clock.Add(int64(rnd.IntN(40)) * int64(time.Second))
		}
	}
	chaos = false
	for _, s := range all {
		r.finish(true, s.owner)
		var got uint64
		if got = s.owner.bytes; len(s.errs) == 0 && got != s.bytes {
			t.Errorf("%d bytes of %d without an error", got, s.bytes)
		}
		for _, err := range s.errs {
			var le *LinkError
			if !errors.As(err, &le) && !errors.Is(err, xfer.ErrContext) && !(s.aborted && errors.Is(err, aborted)) {
				t.Errorf("got %v", err)
			}
		}
	}
	r.settled()
	r.until("endpoints' counts back", false, func() bool {
		for _, s := range r.sets {
			for e := s.Reap(); e != nil; e = s.Reap() {
			}
		}
		return r.fabric.InState(nic.Err) == 0
	})
	// All of it works again.
	for _, c := range r.cards {
		c.SetPort(nic.PortActive)
	}
	r.until("NICs active", true, func() bool { return r.path.nics[0].active && r.path.nics[1].active })
	r.clock.Add(int64(2 * time.Minute))
	for _, m := range peers {
		o := r.submit(m, 5*mib)
		r.finish(true, o)
		if len(o.errs) > 0 || o.bytes != 5*mib {
			t.Errorf("afterwards: %d bytes, %v", o.bytes, errors.Join(o.errs...))
		}
	}
	r.settled()
}
