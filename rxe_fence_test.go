package railhop_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/faulttest"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/wire"
)

// onTheWire is how long packets of the one that is killed take.
const onTheWire = 6 * time.Second

// reuse puts something else into the wheel's memory.
func (w *wheel) reuse(size int, seed uint64) {
	w.t.Helper()
	own := make([]byte, size)
	pattern.Fill(own, seed, 0)
	path := filepath.Join(w.t.TempDir(), "own")
	if err := os.WriteFile(path, own, 0o600); err != nil {
		w.t.Fatal(err)
	}
	if rc := w.do("load", path, 0, size); rc != 0 {
		w.t.Fatalf("load: %d", rc)
	}
}

// late counts what is not that any more once everything has come that was on its way.
func (w *wheel) late(wire *faulttest.Netem, size int, seed uint64) int {
	w.t.Helper()
	wire.Drain()
	time.Sleep(onTheWire / 2)
	_, bad := pattern.Mismatch(w.get(size), seed, 0)
	w.t.Logf("%d bytes have landed late", bad)
	return bad
}

// neighbours has each device know where the other is: a queue pair is not connected
// while that is asked on a wire that is slow.
func neighbours(t *testing.T) {
	t.Helper()
	for _, a := range []string{"10.99.0.1", "10.99.0.2", "10.99.0.3"} {
		for _, b := range []string{"10.99.0.1", "10.99.0.2", "10.99.0.3"} {
			if a != b {
				exec.Command("ping", "-c1", "-W1", "-I", a, b).Run()
			}
		}
	}
}

// TestInteropRXEFence kills a process that has written to Mooncake's engine, with its
// packets still on the wire, puts something else in the place of what it wrote, and
// counts what lands on it: after nothing, and after handshakes in the NIC path of the
// one that was killed.
func TestInteropRXEFence(t *testing.T) {
	devices := needRXE(t, 2)
	no := false
	for _, tt := range []struct {
		name  string
		first bool     // the packets on the wire are the queue pairs' first
		say   bool     // a handshake
		qps   []uint32 // what it offers
		want  string   // the refusal
	}{
		{"nothing", false, false, nil, ""},
		{"nothing, first packets", true, false, nil, ""},
		{"refused", false, true, []uint32{}, endpoint.CountMismatch},
		{"refused, first packets", true, true, []uint32{}, endpoint.CountMismatch},
		{"accepted", false, true, []uint32{0x771, 0x772}, ""},
		{"accepted, first packets", true, true, []uint32{0x771, 0x772}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() && (tt.first || tt.say && tt.want == "") {
				t.Skip("not with -short")
			}
			const size = 1 << 20
			m := &meeting{t: t}
			m.startWheel("P2PHANDSHAKE", size, nil)
			set := settings{"RAILHOP_PROVIDERS": "soft", "RAILHOP_SOFT_NICS": "m0=127.0.1.1", "RAILHOP_SOFT_GPUS": "1"}
			c, name := start(t, set, t.TempDir())
			src := c.do(command{Op: "memory", Size: size}).Addr
			c.do(command{Op: "fill", Addr: src, Size: size, Seed: 1})
			var d handshake.Dialer
			desc, err := d.Describe(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			neighbours(t)
			write := command{Op: "write", Name: m.w.name, Addr: src, To: m.w.addr, Size: size}
			if !tt.first {
				c.do(write)
			}
			w := faulttest.NewNetem(t, devices[0])
			w.Delay(onTheWire)
			b, _ := json.Marshal(write)
			if _, err := c.in.Write(append(b, '\n')); err != nil {
				t.Fatal(err)
			}
			w.AwaitHeld()
			c.cmd.Process.Kill()
			if tt.say {
				reply, err := d.Connect(t.Context(), m.w.name, wire.HandShake{
					LocalNICPath: wire.NICPath(name, desc.Devices[0].Name), PeerNICPath: wire.NICPath(m.w.name, devices[1]),
					LocalGID: desc.Devices[0].GID, ReadyAck: &no, QPNum: tt.qps,
				})
				if rejected := (*handshake.RejectedError)(nil); err != nil && !errors.As(err, &rejected) {
					t.Fatal(err)
				}
				if reply.ReplyMsg != tt.want {
					t.Errorf("the handshake is answered with %q, want %q", reply.ReplyMsg, tt.want)
				}
			}
			m.w.reuse(size, 2)
			if late := m.w.late(w, size, 2); (late > 0) == tt.say {
				t.Errorf("%d bytes have landed late, want some: %v", late, !tt.say)
			}
		})
	}
}

// TestInteropRXERelayKilled kills or stops a relay whose card has work under way toward
// Mooncake's engine: without the fence it lands on what that has put in its place, with
// the handshakes that stand for a fence nothing does.
func TestInteropRXERelayKilled(t *testing.T) {
	devices := needRXE(t, 3)
	for _, tt := range []struct {
		name      string
		signal    syscall.Signal
		heartbeat string // after what time it is suspected, in ms
		hook      func(session string, epoch uint64, ask func() error) error
		late      bool
	}{
		{"killed, without the fence", syscall.SIGKILL, "20000", func(string, uint64, func() error) error { return nil }, true},
		{"killed, with the fence", syscall.SIGKILL, "20000", nil, false},
		{"stopped, with the fence", syscall.SIGSTOP, "2500", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const size = 1 << 20
			w := startWheel(t, "127.0.0.1", "P2PHANDSHAKE", size, wheelRDMA, "MC_TE_FILTERS="+devices[2],
				"MC_TCP_BIND_ADDRESS=127.0.0.1", "MC_TRANSFER_TIMEOUT=300", "PYTHONDONTWRITEBYTECODE=1")
			patient := settings{
				"MC_PXN_RAIL_MAP":          `{"m0":"m0","m1":"m1","` + devices[2] + `":"m1"}`,
				"MC_PXN_CREDIT_TIMEOUT_MS": "20000", "MC_PXN_HEARTBEAT_TIMEOUT_MS": tt.heartbeat,
			}
			registry := t.TempDir()
			relay, _ := start(t, with(rankSettings("g", 1), maps.Clone(patient)), registry)
			var hooks *railhop.Hooks
			if tt.hook != nil {
				hooks = &railhop.Hooks{Fence: tt.hook}
			}
			log := slog.New(slog.NewTextHandler(&prefixed{t, "sender"}, &slog.HandlerOptions{Level: slog.LevelInfo}))
			s, err := openWith(options{set: with(rankSettings("g", 0), maps.Clone(patient)), registry: registry, hooks: hooks, log: log})
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			src, err := s.memory(size)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.fillAll(src, size, 1); err != nil {
				t.Fatal(err)
			}
			neighbours(t)
			id := openSegment(t, s.engine, w.name)
			write := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				return s.engine.Write(ctx, id, src, w.addr, size)
			}
			for end := time.Now().Add(time.Minute); ; {
				was := s.engine.Stats().Relayed.Bytes
				check(t, "write", write(), w.get(size), 1)
				if s.engine.Stats().Relayed.Bytes == was+size {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("the relay is not used: %+v", s.engine.Stats())
				}
			}
			net := faulttest.NewNetem(t, devices[1])
			net.Delay(onTheWire)
			done := make(chan error, 1)
			go func() { done <- write() }()
			net.AwaitHeld()
			relay.cmd.Process.Signal(tt.signal)
			began := time.Now()
			if err := <-done; err != nil {
				t.Fatalf("%v: %+v", err, s.engine.Stats())
			}
			t.Logf("the write has ended %v after the signal", time.Since(began))
			w.reuse(size, 2)
			relay.cmd.Process.Signal(syscall.SIGCONT)
			if late := w.late(net, size, 2); (late > 0) != tt.late {
				t.Errorf("%d bytes have landed late, want some: %v", late, tt.late)
			}
			balance(t, s.engine.Stats())
		})
	}
}
