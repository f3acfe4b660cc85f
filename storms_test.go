package railhop_test

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/wire"
)

// freePort returns a port that nobody listens on, and that the kernel gives to
// nobody.
func freePort(t *testing.T) string {
	t.Helper()
	for port := 19001; port < 32768; port++ {
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
		if err == nil {
			l.Close()
			return fmt.Sprint(port)
		}
	}
	t.Fatal("no port is free")
	return ""
}

// endpoints are the counters of a sender's only NIC.
func endpoints(r *rig) (dials, connects, endpoints int) {
	e := r.sender.engine.Stats().Direct.NICs[0].Endpoints
	return int(e.Dials), int(e.Connects), e.Endpoints
}

// TestPeerRestarts is of case D20: a target that comes again under its name, with
// its memory elsewhere, costs one descriptor and one handshake.
func TestPeerRestarts(t *testing.T) {
	port := freePort(t)
	set := with(targetSettings(), settings{"MC_MIN_PRC_PORT": port, "MC_MAX_PRC_PORT": port})
	for _, way := range []struct {
		name  string
		relay settings
	}{{"direct", nil}, {"relayed", settings{}}} {
		t.Run(way.name, func(t *testing.T) {
			target, name := start(t, set, t.TempDir())
			r := newRig(t, target, name, small, way.relay)
			defer r.log.end()
			enable := "0"
			if way.relay != nil {
				enable = "1"
			}
			r.open(options{set: settings{"MC_PXN_ENABLE": enable}})
			r.twice()
			was := r.sender.engine.Stats()
			dials, connects, _ := endpoints(r)

			target.cmd.Process.Kill()
			target.cmd.Wait()
			again, sameName := start(t, set, t.TempDir())
			if sameName != name {
				t.Fatalf("the target comes again as %s, want %s", sameName, name)
			}
			r.target = again
			again.do(command{Op: "alloc", Size: 3 * small}) // so that its memory lies elsewhere
			r.dst = again.do(command{Op: "memory", Size: r.size}).Addr
			r.twice()

			s := r.sender.engine.Stats()
			if way.relay != nil {
				r.relaysAgain()
			} else {
				d, c, n := endpoints(r)
				if d != dials+1 || c != connects+1 || n != 1 {
					t.Errorf("%d dials, %d of them went well, and %d endpoints: want one more, and one", d-dials, c-connects, n)
				}
				if got := s.Direct.Fetches - was.Direct.Fetches; got != 1 {
					t.Errorf("the descriptor was fetched %d times, want once", got)
				}
			}
			balance(t, r.sender.engine.Stats())
			if err := r.sender.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBadRequests is of case D20: a thousand slices that the target refuses.
func TestBadRequests(t *testing.T) {
	target, name := start(t, targetSettings(), t.TempDir())
	const parts = 1000
	r := newRig(t, target, name, parts*4096, nil)
	defer r.log.end()
	r.log.min = slog.LevelWarn
	r.open(options{set: settings{"MC_PXN_ENABLE": "0", "MC_SLICE_SIZE": "4096"}})
	r.write()
	good := r.id
	r.find(r.alias(func(d *wire.SegmentDesc) {
		for i := range d.Buffers {
			for j := range d.Buffers[i].RKey {
				d.Buffers[i].RKey[j] ^= 1 << 20
			}
		}
	}))
	_, connects, _ := endpoints(r)
	begin := time.Now()
	err := r.tryWrite(20 * time.Second)
	if err == nil || !strings.Contains(err.Error(), "remote access error") {
		t.Fatalf("got %v, want what the target said first", err)
	}
	seconds := int(time.Since(begin)/time.Second) + 1
	if _, c, _ := endpoints(r); c-connects > seconds {
		t.Errorf("%d connections in %d s", c-connects, seconds)
	}
	if lines := r.log.ofPeers(); len(lines) > seconds {
		t.Errorf("%d log lines about the peer in %d s:\n%s", len(lines), seconds, strings.Join(lines, "\n"))
	}
	r.id = good
	r.write() // usable again
	s := r.sender.engine.Stats()
	if s.Failed.Bytes == 0 || s.Failed.Ops != 1 {
		t.Errorf("failed: %+v, want the one write", s.Failed)
	}
	balance(t, s)
	if err := r.sender.close(); err != nil { // counts what is left of queue pairs and memory
		t.Error(err)
	}
}

// TestStormOfHandshakes is of case D20: 240 peers shake hands at once with an engine
// that is at work. All get queue pairs, and none is in the way of its writes.
func TestStormOfHandshakes(t *testing.T) {
	const peers = 240
	target, name := start(t, targetSettings(), t.TempDir())
	r := newRig(t, target, name, small, nil)
	defer r.log.end()
	r.open(options{set: settings{"MC_PXN_ENABLE": "0"}})
	r.twice()
	var d handshake.Dialer
	desc, err := d.Describe(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	nic := desc.Devices[0]
	paths := make([][]uint32, peers)
	var wg sync.WaitGroup
	for i := range peers {
		wg.Go(func() {
			ready := false
			reply, err := d.Connect(t.Context(), name, wire.HandShake{
				LocalNICPath: fmt.Sprintf("127.0.0.1:%d@%s", i+1, nic.Name), PeerNICPath: name + "@" + nic.Name,
				LocalLID: nic.LID, LocalGID: nic.GID, QPNum: []uint32{uint32(2*i + 1), uint32(2*i + 2)}, ReadyAck: &ready,
			})
			if err != nil {
				t.Errorf("peer %d: %v", i, err)
			}
			paths[i] = reply.QPNum
		})
	}
	for range 20 {
		r.write()
	}
	wg.Wait()
	seen := make(map[uint32]int)
	for i, nums := range paths {
		if len(nums) != 2 {
			t.Fatalf("peer %d got queue pairs %v, want two", i, nums)
		}
		for _, num := range nums {
			if other, ok := seen[num]; ok {
				t.Errorf("peers %d and %d got queue pair %d", other, i, num)
			}
			seen[num] = i
		}
	}
	r.twice()
	balance(t, r.sender.engine.Stats())
	if err := r.sender.close(); err != nil {
		t.Error(err)
	}
}
