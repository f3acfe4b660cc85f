package railhop_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/metadata"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/wire"
)

// meeting is an engine of ours on the first Soft-RoCE device and a process of
// Mooncake's wheel on the second.
type meeting struct {
	t         *testing.T
	w         *wheel
	e         *railhop.Engine
	mem       []byte
	addr      uint64
	wheelName string // what each is known by, if a server says where it is
	ourName   string
}

func meet(t *testing.T, most int, wheelEnv []string, ours settings) *meeting {
	t.Helper()
	m := &meeting{t: t}
	m.startWheel("P2PHANDSHAKE", most, wheelEnv)
	m.startOurs(most, ours)
	return m
}

func (m *meeting) startWheel(server string, most int, env []string) {
	m.t.Helper()
	devices := needRXE(m.t, 2)
	host := "127.0.0.1"
	if m.wheelName != "" {
		host = m.wheelName
	}
	m.w = startWheel(m.t, host, server, most, append([]string{wheelRDMA, "MC_TE_FILTERS=" + devices[1],
		"MC_TCP_BIND_ADDRESS=127.0.0.1", "MC_TRANSFER_TIMEOUT=300", "PYTHONDONTWRITEBYTECODE=1"}, env...)...)
}

func (m *meeting) startOurs(most int, set settings) {
	m.t.Helper()
	m.e = openRXE(m.t, set, needRXE(m.t, 2)[0])
	m.ourName = m.e.Name()
	m.mem, m.addr = registerBytes(m.t, m.e, most)
}

// both has each side write and read some sizes.
func (m *meeting) both(sizes ...int) {
	m.t.Helper()
	for i, n := range sizes {
		seed := uint64(i + 1)
		m.ours(n, seed)
		m.theirs(n, seed+100)
	}
}

// ours has our engine write and read n bytes.
func (m *meeting) ours(n int, seed uint64) {
	m.t.Helper()
	id := openSegment(m.t, m.e, m.w.name)
	pattern.Fill(m.mem[:n], seed, 0)
	check(m.t, "our write", m.e.Write(m.t.Context(), id, m.addr, m.w.addr, uint64(n)), m.w.get(n), seed)
	clear(m.mem[:n])
	check(m.t, "our read", m.e.Read(m.t.Context(), id, m.addr, m.w.addr, uint64(n)), m.mem[:n], seed)
}

// theirs has the wheel read and write n bytes.
func (m *meeting) theirs(n int, seed uint64) {
	m.t.Helper()
	one := []uint64{uint64(n)}
	pattern.Fill(m.mem[:n], seed, 0)
	m.w.move("read", m.ourName, []uint64{0}, []uint64{m.addr}, one)
	check(m.t, "its read", nil, m.w.get(n), seed)
	clear(m.mem[:n])
	m.w.move("write", m.ourName, []uint64{0}, []uint64{m.addr}, one)
	check(m.t, "its write", nil, m.mem[:n], seed)
}

// batches has each side write and read n pieces at once.
func (m *meeting) batches(n, size int) {
	m.t.Helper()
	var offs, remotes, lengths []uint64
	reqs := make([]railhop.Request, n)
	id := openSegment(m.t, m.e, m.w.name)
	for i := range n {
		at := uint64(i * size)
		offs, remotes, lengths = append(offs, at), append(remotes, m.addr+at), append(lengths, uint64(size))
		reqs[i] = railhop.Request{Source: m.addr + at, Target: id, TargetAddr: m.w.addr + at, Length: uint64(size)}
	}
	batch := func(op railhop.Opcode) error {
		for i := range reqs {
			reqs[i].Op = op
		}
		b := m.e.NewBatch(n)
		return errors.Join(b.Submit(reqs), b.Wait(m.t.Context()))
	}
	all := m.mem[:n*size]
	pattern.Fill(all, 31, 0)
	check(m.t, "our batch of writes", batch(railhop.Write), m.w.get(n*size), 31)
	clear(all)
	check(m.t, "our batch of reads", batch(railhop.Read), all, 31)
	pattern.Fill(all, 32, 0)
	inParts := func(verb string) {
		const most = 512
		for i := 0; i < n; i += most {
			end := min(i+most, n)
			m.w.move(verb, m.ourName, offs[i:end], remotes[i:end], lengths[i:end])
		}
	}
	inParts("read")
	check(m.t, "its batch of reads", nil, m.w.get(n*size), 32)
	clear(all)
	inParts("write")
	check(m.t, "its batch of writes", nil, all, 32)
}

// TestInteropRXE moves bytes between our engine and Mooncake's own by RDMA, both ways
// and by each of them.
func TestInteropRXE(t *testing.T) {
	devices := needRXE(t, 2)
	const small = 1 << 20

	t.Run("sizes", func(t *testing.T) {
		m := meet(t, 64<<20, nil, nil)
		m.both(1, 8, 4096, 65535, 65536, 65537, 1<<20, 64<<20)
		m.batches(512, 5000)
	})
	t.Run("the wheel restarts", func(t *testing.T) {
		m := meet(t, small, nil, nil)
		m.both(4096)
		m.w.cmd.Process.Kill()
		m.startWheel("P2PHANDSHAKE", small, nil)
		m.both(65537)
	})
	t.Run("we restart, it dials first", func(t *testing.T) {
		m := meet(t, small, nil, nil)
		m.both(4096)
		if err := m.e.Close(); err != nil {
			t.Error(err)
		}
		m.startOurs(small, nil)
		m.theirs(65537, 51)
		m.both(65537)
	})
	t.Run("both restart under their names", func(t *testing.T) {
		s := httptest.NewServer(metadata.NewServer())
		t.Cleanup(s.Close)
		server := s.URL + "/metadata"
		m := &meeting{t: t, wheelName: "wheel:1", ourName: "ours:1"}
		open := func() {
			var err error
			m.e, err = railhop.Open(railhop.Config{Host: m.ourName, Metadata: server, Protocol: "rdma", Devices: devices[:1],
				Settings: loadSettings(t, settings{"MC_TCP_BIND_ADDRESS": "127.0.0.1", "MC_MIN_RPC_PORT": "15999", "MC_MAX_RPC_PORT": "15999"})})
			if err != nil {
				t.Fatal(err)
			}
			e := m.e
			t.Cleanup(func() { e.Close() })
			m.mem, m.addr = registerBytes(t, m.e, small)
		}
		m.startWheel(server, small, nil)
		open()
		m.both(4096)
		m.w.cmd.Process.Kill()
		m.w.cmd.Wait()
		// Nobody may write over the address of a daemon, and the wheel does not remove its own.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, server+"?key=mooncake%2Frpc_meta%2Fwheel%3A1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := http.DefaultClient.Do(req); err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("remove the address of the wheel that is gone: %v, %v", resp, err)
		}
		m.startWheel(server, small, nil)
		if err := m.e.RefreshSegment(t.Context(), openSegment(t, m.e, m.w.name)); err != nil {
			t.Error(err)
		}
		m.both(65537)
		if err := m.e.Close(); err != nil {
			t.Error(err)
		}
		open()
		m.both(65537)
	})
	for _, tt := range []struct {
		name  string
		wheel []string
		ours  settings
	}{
		{"one queue pair at its end", []string{"MC_NUM_QP_PER_EP=1", "MC_IB_PCI_RELAXED_ORDERING=0"}, nil},
		{"four queue pairs at our end", nil, settings{"MC_NUM_QP_PER_EP": "4", "MC_IB_PCI_RELAXED_ORDERING": "0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := meet(t, small, tt.wheel, tt.ours)
			m.both(65537) // we dial
			if err := m.e.Close(); err != nil {
				t.Error(err)
			}
			m.startOurs(small, tt.ours)
			if tt.ours == nil { // a count that is not the wheel's own is not for it to dial
				m.theirs(65537, 61)
			}
			m.both(65537)
		})
	}
	t.Run("buffers longer than a memory region", func(t *testing.T) {
		const n = 4 << 20
		m := meet(t, n, []string{fmt.Sprint("MC_MAX_MR_SIZE=", n/5*3)}, settings{"MC_MAX_MR_SIZE": fmt.Sprint(n / 2)})
		m.both(n)
	})
	t.Run("one endpoint for two peers", func(t *testing.T) {
		a := meet(t, small, []string{"MC_MAX_EP_PER_CTX=1"}, settings{"MC_MAX_EP_PER_CTX": "1"})
		b := *a
		b.startWheel("P2PHANDSHAKE", small, []string{"MC_MAX_EP_PER_CTX=1", "MC_ENDPOINT_STORE_TYPE=FIFO"})
		for range 2 {
			a.both(4096)
			b.both(4096)
		}
	})
	t.Run("two packet lengths", func(t *testing.T) {
		net := "net" + strings.TrimPrefix(devices[1], "rxe")
		setMTU := func(n string) {
			if out, err := exec.Command("ip", "link", "set", net, "mtu", n).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		setMTU("1500")
		defer setMTU("9000")
		m := meet(t, small, []string{"MC_MTU=1024"}, settings{"MC_MTU": "1024"})
		m.both(65537)
	})
	t.Run("both dial at once", func(t *testing.T) {
		m := meet(t, small, nil, nil)
		const n = 65537
		rounds := 300
		if testing.Short() {
			rounds = 20
		}
		other := make([]byte, n)
		for i := range rounds {
			if err := m.e.Close(); err != nil {
				t.Fatal(err)
			}
			m.startOurs(2*n, nil)
			id := openSegment(t, m.e, m.w.name)
			pattern.Fill(m.mem, uint64(i), 0)
			done := make(chan error, 1)
			go func() {
				time.Sleep(time.Duration(i%10) * time.Millisecond)
				done <- m.e.Write(t.Context(), id, m.addr, m.w.addr+n, n)
			}()
			m.w.move("read", m.ourName, []uint64{0}, []uint64{m.addr}, []uint64{n})
			check(t, "our write", <-done, m.w.get(2 * n)[n:], uint64(i))
			clear(other)
			check(t, "its read", nil, m.w.get(n), uint64(i))
		}
	})
	t.Run("a GiB", func(t *testing.T) {
		if testing.Short() {
			t.Skip("it takes minutes: make test-rxe-full has them")
		}
		m := meet(t, 1<<30, nil, nil)
		m.ours(1<<30, 1) // the wheel runs out of retries in a machine that slow
	})
	t.Run("many buffers", func(t *testing.T) {
		const n, size = 2048, 4096
		m := meet(t, n*size, nil, nil)
		if err := m.e.Unregister(m.addr); err != nil {
			t.Fatal(err)
		}
		regions := make([]railhop.Region, n)
		for i := range regions {
			regions[i] = railhop.Region{Addr: m.addr + uint64(i*size), Length: size}
		}
		if err := m.e.RegisterBatch(regions); err != nil {
			t.Fatal(err)
		}
		if rc := m.w.do("split", size); rc != 0 {
			t.Fatalf("the wheel registers %d buffers: %d", n, rc)
		}
		var d handshake.Dialer
		for _, name := range []string{m.w.name, m.e.Name()} {
			if desc, err := d.Describe(t.Context(), name); err != nil || len(desc.Buffers) != n {
				t.Fatalf("%s: %d buffers, %v, want %d", name, len(desc.Buffers), err, n)
			}
		}
		m.batches(n, size)
	})
}

// TestInteropRXEHandshakes has a scripted peer say the same to Mooncake's engine and to
// ours, and compares what they answer.
func TestInteropRXEHandshakes(t *testing.T) {
	devices := needRXE(t, 2)
	m := meet(t, 1<<20, nil, nil)
	yes, no := true, false
	for _, who := range []struct{ kind, name, device string }{{"the wheel", m.w.name, devices[1]}, {"ours", m.e.Name(), devices[0]}} {
		t.Run(who.kind, func(t *testing.T) {
			var d handshake.Dialer
			desc, err := d.Describe(t.Context(), who.name)
			if err != nil {
				t.Fatal(err)
			}
			path := who.name + "@" + who.device
			peer := 0
			hello := func() wire.HandShake { // of a peer that was not seen before
				peer++
				return wire.HandShake{LocalNICPath: fmt.Sprintf("127.0.0.1:%d@x", peer), PeerNICPath: path, LocalGID: desc.Devices[0].GID,
					QPNum: []uint32{0x1001, 0x1002}, ReadyAck: &no}
			}
			say := func(h wire.HandShake, want string) wire.HandShake {
				t.Helper()
				reply, err := d.Connect(t.Context(), who.name, h)
				if rejected := (*handshake.RejectedError)(nil); err != nil && !errors.As(err, &rejected) {
					t.Fatal(err)
				}
				// Ours says more about some of them.
				if reply.ReplyMsg != want && (want == "" || !strings.HasPrefix(reply.ReplyMsg, want+":")) {
					t.Errorf("%+v: got %q, want %q", h, reply.ReplyMsg, want)
				}
				return reply
			}
			before := queuePairs(t, who.device)

			h := hello()
			first := say(h, "")
			if len(first.QPNum) != 2 || first.ReadyAck == nil || *first.ReadyAck || first.LocalNICPath != path || first.PeerNICPath != h.LocalNICPath {
				t.Errorf("first phase: %+v", first)
			}
			if again := say(h, ""); !reflect.DeepEqual(again, first) {
				t.Errorf("first phase again: got %+v, want %+v", again, first)
			}
			h.ReadyAck, h.QPNum = &yes, []uint32{0x1001, 0x1003}
			say(h, "Received stale RDMA ready ACK with mismatched peer QP numbers")
			h.QPNum = []uint32{0x1001, 0x1002}
			if ack := say(h, ""); ack.ReadyAck != nil || len(ack.QPNum) > 0 {
				t.Errorf("second phase: %+v", ack)
			}
			h.ReadyAck, h.QPNum = &no, []uint32{0x2001, 0x2002}
			if fresh := say(h, ""); len(fresh.QPNum) != 2 || slices.Equal(fresh.QPNum, first.QPNum) {
				t.Errorf("a peer that has restarted: got %v again, want other queue pairs than %v", fresh.QPNum, first.QPNum)
			}

			h = hello()
			h.ReadyAck = nil
			if one := say(h, ""); len(one.QPNum) != 2 {
				t.Errorf("one phase: %+v", one)
			}
			h = hello()
			h.ReadyAck = &yes
			say(h, "Received RDMA ready ACK for unconnected endpoint")
			h = hello()
			h.PeerNICPath = who.name
			say(h, "Invalid peer_nic_path in handshake: "+who.name)
			h.PeerNICPath = who.name + "@none"
			say(h, "Local RDMA context not found for handshake NIC: none")
			h = hello()
			h.LocalGID = "fe80::1"
			say(h, "Invalid peer GID: fe80::1")
			h = hello()
			h.LocalGID = ""
			say(h, "Peer nic not found in that server: "+h.LocalNICPath)
			h.LocalNICPath = publish(t, peerDescriptor(t, desc.Devices[0].GID)) + "@x"
			if old := say(h, ""); len(old.QPNum) != 2 {
				t.Errorf("a peer that sends no GID, and has one: %+v", old)
			}
			h = hello()
			h.QPNum = []uint32{0x1001}
			if who.kind == "ours" { // makes as many as it is sent
				if one := say(h, ""); len(one.QPNum) != 1 {
					t.Errorf("one queue pair: %+v", one)
				}
			} else if one := say(h, "QP count mismatch in peer and local endpoints, check MC_MAX_EP_PER_CTX"); len(one.QPNum) != 2 {
				t.Errorf("one queue pair: the rejection lists %v, want 2", one.QPNum)
			}

			// A burst that is refused leaves nothing behind.
			kept := queuePairs(t, who.device)
			if who.kind == "ours" {
				for range 500 {
					h := hello()
					h.LocalGID = "rubbish"
					say(h, "Invalid peer GID: rubbish")
				}
				for deadline := time.Now().Add(20 * time.Second); queuePairs(t, who.device) > kept; time.Sleep(100 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("%d queue pairs after 500 refused handshakes, %d before", queuePairs(t, who.device), kept)
					}
				}
			}
			t.Logf("queue pairs: %d before, %d kept for 4 connections", before, kept)
		})
	}
	m.both(65537)
}

// peerDescriptor is that of a peer with one device, x.
func peerDescriptor(t *testing.T, gid string) []byte {
	t.Helper()
	d := members{
		"name": "peer", "protocol": "rdma", "devices": []any{members{"name": "x", "gid": gid, "lid": 0}},
		"buffers": []any{}, "priority_matrix": members{"cpu:0": [][]string{{"x"}, {}}},
	}
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// queuePairs counts those that the kernel holds for a device.
func queuePairs(t *testing.T, device string) int {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show", "qp", "link", device).CombinedOutput()
	if err != nil {
		t.Fatalf("rdma: %v: %s", err, out)
	}
	return strings.Count(string(out), "lqpn")
}
