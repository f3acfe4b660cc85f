// Package nictest is the suite that every provider of network cards passes,
// software and real alike.
//
// It owns what a provider must do, and no provider: differences that cards are
// entitled to are fields of [Setup]. Tests use memory that the Setup allocates and
// connect queue pairs by what [nic.Device.Port] tells.
package nictest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

// patience bounds every wait. It is long, since only a broken provider uses it up.
const patience = 30 * time.Second

// Setup is what the suite runs on.
type Setup struct {
	Provider nic.Provider
	// DevA and DevB name the devices that talk to each other. They may be one.
	DevA, DevB string
	// Alloc returns n bytes of memory that stays in place and alive until the
	// test ends, and its address.
	Alloc func(t testing.TB, n int) (addr uint64, mem []byte)

	// OneKey says that local and remote key of a region may be equal.
	OneKey bool
	// Permissive says that the card may register remotely writable memory that
	// is not locally writable.
	Permissive bool
	// QPRefusal is how a request ends that the target's queue pair does not allow; 0
	// means [nic.StatusRemoteAccess]. InfiniBand has it an invalid request, and some
	// cards an access error.
	QPRefusal nic.Status
	// LocalRefusal is how a request ends whose local memory may not be used; 0 means
	// [nic.StatusLocalProtection].
	LocalRefusal nic.Status
	// LonelyErrors says that a request with a local error can keep the card from
	// reporting those before it, so none may be outstanding.
	LonelyErrors bool
	// InFlight is how long packets that have left a card may take to the other: bytes
	// of a request that was flushed may land until then.
	InFlight time.Duration
}

// Run runs the suite. setup is called once for each test.
func Run(t *testing.T, setup func(t testing.TB) Setup) {
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, s Setup)
	}{
		{"Devices", testDevices},
		{"Attributes", testAttributes},
		{"States", testStates},
		{"Register", testRegister},
		{"Keys", testKeys},
		{"BusyObjects", testBusyObjects},
		{"Write", testWrite},
		{"Read", testRead},
		{"Order", testOrder},
		{"BothWays", testBothWays},
		{"Selective", testSelective},
		{"PollShort", testPollShort},
		{"Wake", testWake},
		{"QueueFull", testQueueFull},
		{"ManySmall", testManySmall},
		{"TwoPairs", testTwoPairs},
		{"Mixed", testMixed},
		{"Self", testSelf},
		{"RemoteErrors", testRemoteErrors},
		{"LocalErrors", testLocalErrors},
		{"PostBeforeRTS", testPostBeforeRTS},
		{"PostAfterErr", testPostAfterErr},
		{"FlushOnce", testFlushOnce},
		{"PeerGone", testPeerGone},
		{"Reconnect", testReconnect},
		{"ResetAndReuse", testResetAndReuse},
		{"NoByteAfterClose", testNoByteAfterClose},
		{"NoByteAfterErr", testNoByteAfterErr},
		{"NoByteAfterMRClose", testNoByteAfterMRClose},
		{"CloseMRAfterCompletion", testCloseMRAfterCompletion},
		{"CloseTwice", testCloseTwice},
		{"DeviceClose", testDeviceClose},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, setup(t)) })
	}
}

// host is one end: a device with a domain and a completion queue.
type host struct {
	t    testing.TB
	s    Setup
	dev  nic.Device
	pd   nic.PD
	cq   nic.CQ
	wake chan struct{}
}

func newHost(t testing.TB, s Setup, dev nic.Device) *host {
	t.Helper()
	h := &host{t: t, s: s, dev: dev, wake: make(chan struct{}, 1)}
	var err error
	if h.pd, err = dev.NewPD(); err != nil {
		t.Fatal(err)
	}
	h.cq, err = dev.NewCQ(1024, func() {
		select {
		case h.wake <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func open(t testing.TB, s Setup, name string) nic.Device {
	t.Helper()
	dev, err := s.Provider.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close %s: %v", name, err)
		}
	})
	return dev
}

// hosts opens both ends.
func hosts(t testing.TB, s Setup) (a, b *host) {
	t.Helper()
	devA := open(t, s, s.DevA)
	devB := devA
	if s.DevB != s.DevA {
		devB = open(t, s, s.DevB)
	}
	return newHost(t, s, devA), newHost(t, s, devB)
}

// in is the host in a subtest, which leaves nothing outstanding. What is made there
// stays until the end of the test around it.
func (h *host) in(t testing.TB) *host {
	sub, outer, alloc := *h, h.t, h.s.Alloc
	sub.t = t
	sub.s.Alloc = func(_ testing.TB, n int) (uint64, []byte) { return alloc(outer, n) }
	return &sub
}

// region is registered memory.
type region struct {
	nic.MR
	addr uint64
	mem  []byte
}

const allAccess = nic.LocalWrite | nic.RemoteWrite | nic.RemoteRead

func (h *host) region(n int, access nic.Access) *region {
	h.t.Helper()
	addr, mem := h.s.Alloc(h.t, n)
	mr, err := h.pd.Register(addr, uint64(n), access)
	if err != nil {
		h.t.Fatal(err)
	}
	return &region{mr, addr, mem}
}

// fill writes bytes that depend on seed, and returns a copy.
func (r *region) fill(seed uint64) []byte {
	rnd := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	rnd.Read(r.mem)
	return bytes.Clone(r.mem)
}

func (h *host) qp(maxWR int) nic.QP {
	h.t.Helper()
	q, err := h.pd.NewQP(nic.QPOptions{CQ: h.cq, MaxWR: maxWR})
	if err != nil {
		h.t.Fatal(err)
	}
	return q
}

// connect brings q up to RTS towards number qpn on dev.
func connect(t testing.TB, q nic.QP, dev nic.Device, qpn uint32, access nic.Access) {
	t.Helper()
	p := dev.Port()
	for _, attr := range []nic.QPAttr{
		{State: nic.Init, Access: access},
		{State: nic.RTR, RemoteQPN: qpn, RemoteGID: p.GID, RemoteLID: p.LID},
		{State: nic.RTS, Timeout: 500 * time.Millisecond, Retries: 7},
	} {
		if err := q.Modify(attr); err != nil {
			t.Fatal(err)
		}
	}
}

// pair returns two connected queue pairs.
func pair(t testing.TB, a, b *host) (qa, qb nic.QP) {
	t.Helper()
	qa, qb = a.qp(0), b.qp(0)
	connect(t, qa, b.dev, qb.Num(), allAccess)
	connect(t, qb, a.dev, qa.Num(), allAccess)
	return qa, qb
}

func write(id uint64, from *region, fromOff int, to *region, toOff, n int) nic.WR {
	return nic.WR{
		ID: id, Op: nic.OpWrite, Signaled: true, LKey: from.LKey(), RKey: to.RKey(), Length: uint32(n),
		LocalAddr: from.addr + uint64(fromOff), RemoteAddr: to.addr + uint64(toOff),
	}
}

func read(id uint64, into *region, intoOff int, from *region, fromOff, n int) nic.WR {
	w := write(id, into, intoOff, from, fromOff, n)
	w.Op = nic.OpRead
	return w
}

// post posts all of wrs, which must fit.
func post(t testing.TB, q nic.QP, wrs ...nic.WR) {
	t.Helper()
	if n, err := q.Post(wrs); n != len(wrs) || err != nil {
		t.Fatalf("Post took %d of %d: %v", n, len(wrs), err)
	}
}

// wait polls until there are n completions.
func (h *host) wait(n int) []nic.Completion {
	h.t.Helper()
	got := make([]nic.Completion, n)
	deadline := time.Now().Add(patience)
	for k := 0; k < n; {
		m, err := h.cq.Poll(got[k:])
		if err != nil {
			h.t.Fatalf("Poll: %v", err)
		}
		k += m
		if k < n && m == 0 {
			if time.Now().After(deadline) {
				h.t.Fatalf("%d of %d completions after %v: %v", k, n, patience, got[:k])
			}
			time.Sleep(20 * time.Microsecond)
		}
	}
	return got
}

// want waits for one completion and checks it.
func (h *host) want(id uint64, status nic.Status) {
	h.t.Helper()
	if c := h.wait(1)[0]; c.ID != id || c.Status != status {
		h.t.Fatalf("completion of %d: %v; want %d: %v", c.ID, c.Status, id, status)
	}
}

// none checks that there is no further completion.
func (h *host) none() {
	h.t.Helper()
	var c [4]nic.Completion
	if n, err := h.cq.Poll(c[:]); n != 0 || err != nil {
		h.t.Fatalf("Poll: %v, %v; want none", c[:n], err)
	}
}

// do posts one request and waits for its success.
func (h *host) do(q nic.QP, w nic.WR) {
	h.t.Helper()
	post(h.t, q, w)
	h.want(w.ID, nic.StatusSuccess)
}

func closeQP(t testing.TB, q nic.QP) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := q.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: error %v, want %v", what, err, target)
	}
}

func same(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
		}
	}
	t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
}

func size(n int) string { return fmt.Sprintf("%d bytes", n) }
