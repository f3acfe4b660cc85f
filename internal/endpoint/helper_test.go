package endpoint

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/endpoint/endpointtest"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
)

// clock is a clock that a test sets.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Duration      { return time.Duration(c.at.Load()) }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }

// host is one process with one NIC, "nic0".
type host struct {
	server   string
	device   *endpointtest.Device
	nic      *NIC
	set      *Set
	acceptor *Acceptor
}

type world struct {
	t      testing.TB
	fabric *endpointtest.Fabric
	net    *endpointtest.Net
	clock  clock
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, fabric: endpointtest.NewFabric(), net: &endpointtest.Net{}}
	w.clock.advance(time.Hour)
	return w
}

func (w *world) host(server string, edit func(*Options)) *host {
	w.t.Helper()
	h := &host{server: server, device: w.fabric.NewDevice("nic0", 64)}
	pd, err := h.device.NewPD()
	if err != nil {
		w.t.Fatal(err)
	}
	h.nic = &NIC{Name: "nic0", Rail: "rail0", Device: h.device, PD: pd}
	opts := Options{NIC: h.nic, Server: server, Dialer: w.net, Now: w.clock.now}
	if edit != nil {
		edit(&opts)
	}
	if h.set, err = NewSet(opts); err != nil {
		w.t.Fatal(err)
	}
	h.acceptor = NewAcceptor(h.set)
	w.net.Serve(server, h.acceptor.Accept)
	w.t.Cleanup(func() {
		if err := h.set.Close(); err != nil {
			w.t.Errorf("close %s: %v", server, err)
		}
	})
	return h
}

// await turns until cond holds.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("still not so: %s", what)
		}
		runtime.Gosched()
		time.Sleep(10 * time.Microsecond)
	}
}

func (w *world) connect(h *host, path string) *Endpoint {
	w.t.Helper()
	e, err := h.set.Get(path)
	if err != nil {
		w.t.Fatal(err)
	}
	await(w.t, path+" connected or dead", func() bool { return e.Ready() || e.State() == Dead })
	if err := e.Err(); err != nil {
		w.t.Fatal(err)
	}
	return e
}

// find returns the endpoint in h's store, without asking for it.
func (h *host) find(epoch uint64, path string) *Endpoint {
	h.set.mu.Lock()
	defer h.set.mu.Unlock()
	return h.set.store.byKey[key{epoch, path}]
}

func ptr(b bool) *bool { return &b }

// hello is a handshake of a scripted peer "p:1@x" for host server.
func hello(server string, ack *bool, qps ...uint32) wire.HandShake {
	return wire.HandShake{
		LocalNICPath: "p:1@x",
		PeerNICPath:  server + "@nic0",
		LocalGID:     nic.GID{15: 99}.String(),
		LocalLID:     5,
		QPNum:        qps,
		ReadyAck:     ack,
	}
}
