package endpoint

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
)

func TestRejections(t *testing.T) {
	const stale = "Received stale RDMA ready ACK with mismatched peer QP numbers"
	for _, tc := range []struct {
		name string
		prep func(*host)
		hs   wire.HandShake
		edit func(*wire.HandShake)
		want string
		left int // queue pairs afterwards
	}{
		{name: "no device in the path", hs: hello("b:1", ptr(false), 1, 2),
			edit: func(h *wire.HandShake) { h.PeerNICPath = "b:1" },
			want: "Invalid peer_nic_path in handshake: b:1"},
		{name: "empty path", hs: hello("b:1", ptr(false), 1, 2),
			edit: func(h *wire.HandShake) { h.PeerNICPath = "" },
			want: "Invalid peer_nic_path in handshake: "},
		{name: "no such device", hs: hello("b:1", ptr(false), 1, 2),
			edit: func(h *wire.HandShake) { h.PeerNICPath = "b:1@nic9" },
			want: "Local RDMA context not found for handshake NIC: nic9"},
		{name: "empty sender", hs: hello("b:1", ptr(false), 1, 2),
			edit: func(h *wire.HandShake) { h.LocalNICPath = "" },
			want: "Local RDMA endpoint unavailable for "},
		{name: "inactive device", hs: hello("b:1", ptr(false), 1, 2),
			prep: func(b *host) { b.nic.SetActive(false) },
			want: "Local RDMA endpoint unavailable for p:1@x"},
		{name: "ready ACK of nobody", hs: hello("b:1", ptr(true), 1, 2),
			want: "Received RDMA ready ACK for unconnected endpoint"},
		{name: "stale ready ACK", hs: hello("b:1", ptr(true), 1, 3), left: 2,
			prep: func(b *host) { b.acceptor.Accept(context.Background(), hello("b:1", ptr(false), 1, 2)) },
			want: stale},
		{name: "stale ready ACK once connected", hs: hello("b:1", ptr(true), 1), left: 2,
			prep: func(b *host) {
				b.acceptor.Accept(context.Background(), hello("b:1", ptr(false), 1, 2))
				b.acceptor.Accept(context.Background(), hello("b:1", ptr(true), 1, 2))
			},
			want: stale},
		{name: "other server name", hs: hello("b:1", ptr(false), 1, 2),
			edit: func(h *wire.HandShake) { h.PeerNICPath = "localhost:1@nic0" },
			want: "Invalid argument: peer nic path inconsistency, expect b:1@nic0 + p:1@x, while got localhost:1@nic0 + p:1@x"},
		{name: "no queue pairs", hs: hello("b:1", ptr(false)), want: CountMismatch},
		{name: "too many queue pairs", hs: hello("b:1", ptr(false), make([]uint32, 256)...), want: CountMismatch},
		{name: "bad GID", hs: hello("b:1", ptr(false), 1, 2),
			edit: func(h *wire.HandShake) { h.LocalGID = "fe80::1" },
			want: "Invalid peer GID: fe80::1"},
		{name: "no GID", hs: hello("b:1", ptr(false), 1, 2),
			edit: func(h *wire.HandShake) { h.LocalGID = "" },
			want: "Peer nic not found in that server: p:1@x"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			b := w.host("b:1", nil)
			if tc.prep != nil {
				tc.prep(b)
			}
			if tc.edit != nil {
				tc.edit(&tc.hs)
			}
			reply := b.acceptor.Accept(t.Context(), tc.hs)
			if reply.ReplyMsg != tc.want {
				t.Errorf("got  %q\nwant %q", reply.ReplyMsg, tc.want)
			}
			await(t, fmt.Sprintf("%d queue pairs left", tc.left), func() bool { return w.fabric.QPs() == tc.left })
			if tc.left == 0 && b.set.Stats().Endpoints != 0 {
				t.Error("the refused endpoint stays in the store")
			}
		})
	}
}

// failingPD makes queue pairs that cannot reach one state.
type failingPD struct {
	nic.PD
	at nic.QPState
}

type failingQP struct {
	nic.QP
	at nic.QPState
}

func (p failingPD) NewQP(o nic.QPOptions) (nic.QP, error) {
	qp, err := p.PD.NewQP(o)
	return failingQP{qp, p.at}, err
}

func (q failingQP) Modify(a nic.QPAttr) error {
	if a.State == q.at {
		return errors.New("Invalid argument")
	}
	return q.QP.Modify(a)
}

func TestRejectionsByVerbs(t *testing.T) {
	for _, tc := range []struct {
		at   nic.QPState
		want string
	}{
		{nic.Reset, "Failed to modify QP to RESET: Invalid argument"},
		{nic.Init, "Failed to modify QP to INIT, check local context port num: Invalid argument"},
		{nic.RTR, "Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num: Invalid argument"},
		{nic.RTS, "Failed to modify QP to RTS: Invalid argument"},
	} {
		w := newWorld(t)
		b := w.host("b:1", nil)
		b.nic.PD = failingPD{b.nic.PD, tc.at}
		reply := b.acceptor.Accept(t.Context(), hello("b:1", ptr(false), 1, 2))
		if reply.ReplyMsg != tc.want {
			t.Errorf("%v: got %q, want %q", tc.at, reply.ReplyMsg, tc.want)
		}
		if len(reply.QPNum) != 2 {
			t.Errorf("%v: the rejection does not list the queue pairs", tc.at)
		}
		await(t, "queue pairs destroyed", func() bool { return w.fabric.QPs() == 0 })
	}
}

func TestSameHandshakeRepeatsReply(t *testing.T) {
	w := newWorld(t)
	b := w.host("b:1", nil)
	first := b.acceptor.Accept(t.Context(), hello("b:1", ptr(false), 1, 2))
	if first.ReplyMsg != "" || len(first.QPNum) != 2 || first.ReadyAck == nil || *first.ReadyAck {
		t.Fatalf("reply %+v", first)
	}
	if again := b.acceptor.Accept(t.Context(), hello("b:1", ptr(false), 1, 2)); !reflect.DeepEqual(again, first) {
		t.Errorf("got  %+v\nwant %+v", again, first)
	}
	e := b.find(0, "p:1@x")
	if e.State() != WaitReadyAck {
		t.Errorf("state %v before the ready ACK", e.State())
	}
	for range 2 {
		if r := b.acceptor.Accept(t.Context(), hello("b:1", ptr(true), 1, 2)); !reflect.DeepEqual(r, wire.HandShake{}) {
			t.Errorf("reply to the ready ACK: %+v", r)
		}
	}
	if !e.Ready() {
		t.Errorf("state %v after the ready ACK", e.State())
	}
}

func TestNewQueuePairsReplaceOld(t *testing.T) {
	w := newWorld(t)
	b := w.host("b:1", nil)
	first := b.acceptor.Accept(t.Context(), hello("b:1", nil, 1, 2))
	old := b.find(0, "p:1@x")
	if !old.Ready() {
		t.Fatalf("state %v: a peer without ready_ack is connected at once", old.State())
	}
	w.fabric.Stick() // so that the old queue pairs stay to be looked at
	second := b.acceptor.Accept(t.Context(), hello("b:1", nil, 3, 4))
	if second.ReplyMsg != "" || len(second.QPNum) != 2 || slices.Equal(first.QPNum, second.QPNum) {
		t.Errorf("reply %+v", second)
	}
	for _, n := range first.QPNum {
		if q := w.fabric.Find(n); q.State() != nic.Err {
			t.Errorf("old queue pair %d is in %v when the reply is out", n, q.State())
		}
	}
	w.fabric.Release()
	<-old.Gone()
	if !errors.Is(old.Err(), ErrReplaced) {
		t.Errorf("cause %v", old.Err())
	}
	if e := b.find(0, "p:1@x"); e == old || !e.Ready() {
		t.Errorf("no fresh endpoint")
	}
}

func TestMissingReadyAck(t *testing.T) {
	w := newWorld(t)
	b := w.host("b:1", nil)
	b.acceptor.Accept(t.Context(), hello("b:1", ptr(false), 1, 2))
	e := b.find(0, "p:1@x")
	w.clock.advance(time.Minute)
	b.set.Step(w.clock.now())
	if e.State() != WaitReadyAck {
		t.Fatalf("state %v: without work it may wait", e.State())
	}
	got, err := b.set.Get("p:1@x")
	if err != nil || got != e {
		t.Fatal("another endpoint", err)
	}
	b.set.Step(w.clock.now())
	if !errors.Is(e.Err(), ErrNoReadyAck) {
		t.Errorf("state %v, %v: with work it waits 10 s at most", e.State(), e.Err())
	}
}

func TestReadyAckWithinTenSeconds(t *testing.T) {
	w := newWorld(t)
	b := w.host("b:1", nil)
	b.acceptor.Accept(t.Context(), hello("b:1", ptr(false), 1, 2))
	e, _ := b.set.Get("p:1@x")
	if limit, _ := b.set.Arm(w.clock.now()); limit != 10*time.Second {
		t.Errorf("the pump may sleep %v, want 10 s", limit)
	}
	w.clock.advance(10*time.Second - 1)
	b.set.Step(w.clock.now())
	if e.State() != WaitReadyAck {
		t.Fatalf("state %v before 10 s", e.State())
	}
	w.clock.advance(1)
	b.set.Step(w.clock.now())
	if e.State() != Dead {
		t.Errorf("state %v after 10 s", e.State())
	}
}

func TestFence(t *testing.T) {
	w := newWorld(t)
	b := w.host("b:1", nil)
	mark := func(epoch uint64, hs wire.HandShake) wire.HandShake {
		hs.RelayEpoch = epoch
		return hs
	}
	ctx := t.Context()
	b.acceptor.Accept(ctx, mark(7, hello("b:1", ptr(false), 1, 2)))
	b.acceptor.Accept(ctx, mark(7, hello("b:1", ptr(true), 1, 2)))
	waiting := mark(7, hello("b:1", ptr(false), 3))
	waiting.LocalNICPath = "p:1@y"
	b.acceptor.Accept(ctx, waiting)
	other := b.acceptor.Accept(ctx, mark(8, hello("b:1", nil, 5, 6)))
	plain := b.acceptor.Accept(ctx, hello("b:1", nil, 7, 8))
	if n := w.fabric.QPs(); n != 7 {
		t.Fatalf("%d queue pairs, want 7", n)
	}
	if st := b.find(7, "p:1@y").State(); st != WaitReadyAck {
		t.Fatalf("state %v", st)
	}
	closed, err := b.acceptor.Fence(ctx, 7)
	if closed != 3 || err != nil {
		t.Errorf("closed %d, %v, want 3", closed, err)
	}
	if n := w.fabric.QPs(); n != 4 {
		t.Errorf("%d queue pairs when the fence has returned, want 4", n)
	}
	for _, n := range slices.Concat(other.QPNum, plain.QPNum) {
		if q := w.fabric.Find(n); q == nil || q.State() != nic.RTS {
			t.Errorf("queue pair %d of others was closed", n)
		}
	}
	if closed, err := b.acceptor.Fence(ctx, 7); closed != 0 || err != nil {
		t.Errorf("second fence closed %d, %v", closed, err)
	}
	if r := b.acceptor.Accept(ctx, mark(7, hello("b:1", nil, 9, 10))); r.ReplyMsg != "" {
		t.Errorf("a handshake after the fence is refused: %s", r.ReplyMsg)
	}
	if _, err := b.acceptor.Fence(ctx, 0); err == nil {
		t.Error("a fence of epoch 0 closed the plain endpoints' keys")
	}
}

func TestFenceWaitsForClose(t *testing.T) {
	w := newWorld(t)
	b := w.host("b:1", nil)
	hs := hello("b:1", nil, 1)
	hs.RelayEpoch = 7
	b.acceptor.Accept(t.Context(), hs)
	w.fabric.Stick()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.acceptor.Fence(ctx, 7); err == nil {
		t.Error("a fence succeeded although its queue pair is not closed")
	}
	// The next one waits for the same queue pair, although it is dead already.
	done := make(chan error, 1)
	go func() {
		_, err := b.acceptor.Fence(t.Context(), 7)
		done <- err
	}()
	w.fabric.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := w.fabric.QPs(); n != 0 {
		t.Errorf("%d queue pairs are left", n)
	}
}

// A handshake beside a fence is closed by it or comes after it.
func TestFenceBesideHandshakes(t *testing.T) {
	w := newWorld(t)
	b := w.host("b:1", nil)
	for round := range 300 {
		before := hello("b:1", nil, uint32(2*round+1))
		before.RelayEpoch = 7
		old := b.acceptor.Accept(t.Context(), before)
		var reply wire.HandShake
		var wg sync.WaitGroup
		wg.Go(func() {
			hs := hello("b:1", ptr(false), uint32(2*round+2))
			hs.RelayEpoch = 7
			reply = b.acceptor.Accept(t.Context(), hs)
		})
		if _, err := b.acceptor.Fence(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		if q := w.fabric.Find(old.QPNum[0]); q != nil {
			t.Fatalf("round %d: a queue pair from before the fence is left", round)
		}
		wg.Wait()
		if reply.ReplyMsg != "" {
			t.Fatalf("round %d: %s", round, reply.ReplyMsg)
		}
		e := b.find(7, "p:1@x")
		if q := w.fabric.Find(reply.QPNum[0]); (q != nil && q.State() == nic.RTS) != (e != nil) {
			t.Fatalf("round %d: queue pair %v, endpoint %v", round, q, e)
		}
		if _, err := b.acceptor.Fence(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		if n := w.fabric.QPs(); n != 0 {
			t.Fatalf("round %d: %d queue pairs are left", round, n)
		}
	}
}

func TestAcceptorMakesRoom(t *testing.T) {
	w := newWorld(t)
	b := w.host("b:1", func(o *Options) { o.MaxEndpoints = 2 })
	for i := range 5 {
		hs := hello("b:1", nil, 1, 2)
		hs.LocalNICPath = fmt.Sprintf("p:%d@x", i)
		if r := b.acceptor.Accept(t.Context(), hs); r.ReplyMsg != "" {
			t.Fatal(r.ReplyMsg)
		}
	}
	if st := b.set.Stats(); st.Endpoints != 2 || st.Evictions != 3 {
		t.Errorf("stats %+v", st)
	}
	w.fabric.Hold()
	for _, e := range b.set.store.all() {
		if n, err := e.Post(signalled(1)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	r := b.acceptor.Accept(t.Context(), hello("b:1", nil, 1, 2))
	if !strings.Contains(r.ReplyMsg, "store full") {
		t.Errorf("an endpoint in use was evicted: %+v", r)
	}
}
