package railhop_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/testkit"
)

// needRXE skips a test that wants n real devices.
func needRXE(t *testing.T, n int) []string {
	t.Helper()
	devices := testkit.RealDevices()
	if len(devices) < n {
		t.Skipf("it wants %d RDMA devices, and there are %d: make test-rxe plays them", n, len(devices))
	}
	return devices
}

// openRXE starts an engine as a user would, on one device.
func openRXE(t *testing.T, device string, set settings) *railhop.Engine {
	t.Helper()
	cfg := railhop.Config{Host: "127.0.0.1", SingleNode: true, Protocol: "rdma", Devices: []string{device}, Settings: loadSettings(t, set)}
	e, err := railhop.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// TestRXE moves bytes between two engines, by the provider that is chosen where
// nothing is said.
func TestRXE(t *testing.T) {
	devices := needRXE(t, 2)
	a, b := openRXE(t, devices[0], nil), openRXE(t, devices[1], nil)
	most := 64 << 20
	if testing.Short() {
		most = 4 << 20
	}
	src, srcAddr := registerBytes(t, a, most)
	dst, dstAddr := registerBytes(t, b, most)
	id := openSegment(t, a, b.Name())
	for i, n := range []int{1, 7, 4096, 65537, 1 << 20, most} {
		pattern.Fill(src[:n], uint64(i), 0)
		check(t, "write", a.Write(t.Context(), id, srcAddr, dstAddr, uint64(n)), dst[:n], uint64(i))
		pattern.Fill(dst[:n], uint64(i+100), 0)
		check(t, "read", a.Read(t.Context(), id, srcAddr, dstAddr, uint64(n)), src[:n], uint64(i+100))
	}
}

// TestRXEInterop moves bytes between our engine and Mooncake's own by RDMA, both ways
// and by each of them, and restarts either.
func TestRXEInterop(t *testing.T) {
	devices := needRXE(t, 2)
	whole := t // what a subtest starts, later ones go on with
	most := 64 << 20
	if testing.Short() {
		most = 4 << 20
	}
	wheelEnv := []string{wheelRDMA, "MC_TE_FILTERS=" + devices[1], "MC_TRANSFER_TIMEOUT=300", "PYTHONDONTWRITEBYTECODE=1"}
	w := startWheel(t, "127.0.0.1", "P2PHANDSHAKE", most, wheelEnv...)
	e := openRXE(t, devices[0], nil)
	mem, addr := registerBytes(t, e, most)

	sizes := []int{1, 8, 4096, 65535, 65536, 65537, 1 << 20, most}
	both := func(t *testing.T, sizes []int) {
		t.Helper()
		w.t = t
		id := openSegment(t, e, w.name)
		for i, n := range sizes {
			seed := uint64(i + 1)
			pattern.Fill(mem[:n], seed, 0)
			check(t, "our write", e.Write(t.Context(), id, addr, w.addr, uint64(n)), w.get(n), seed)
			clear(mem[:n])
			check(t, "our read", e.Read(t.Context(), id, addr, w.addr, uint64(n)), mem[:n], seed)
			one := []uint64{uint64(n)}
			pattern.Fill(mem[:n], seed+100, 0)
			w.move("read", e.Name(), []uint64{0}, []uint64{addr}, one)
			check(t, "its read", nil, w.get(n), seed+100)
			clear(mem[:n])
			w.move("write", e.Name(), []uint64{0}, []uint64{addr}, one)
			check(t, "its write", nil, mem[:n], seed+100)
		}
	}
	if !t.Run("we dial first", func(t *testing.T) { both(t, sizes) }) {
		return
	}
	t.Run("batches", func(t *testing.T) {
		const n, size = 512, 5000
		w.t = t
		var offs, remotes, lengths []uint64
		for i := range n {
			at := uint64(i * size)
			offs, remotes, lengths = append(offs, at), append(remotes, addr+at), append(lengths, size)
		}
		pattern.Fill(mem[:n*size], 32, 0)
		w.move("read", e.Name(), offs, remotes, lengths)
		check(t, "its batch of reads", nil, w.get(n*size), 32)
		clear(mem[:n*size])
		w.move("write", e.Name(), offs, remotes, lengths)
		check(t, "its batch of writes", nil, mem[:n*size], 32)
	})
	t.Run("the wheel restarts", func(t *testing.T) {
		w.cmd.Process.Kill()
		w = startWheel(whole, "127.0.0.1", "P2PHANDSHAKE", most, wheelEnv...)
		both(t, []int{65537})
	})
	t.Run("we restart, it dials first", func(t *testing.T) {
		w = startWheel(whole, "127.0.0.1", "P2PHANDSHAKE", most, wheelEnv...)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		e = openRXE(whole, devices[0], nil)
		mem, addr = registerBytes(t, e, most)
		const n = 65537
		pattern.Fill(mem[:n], 51, 0)
		w.move("read", e.Name(), []uint64{0}, []uint64{addr}, []uint64{n})
		check(t, "its read", nil, w.get(n), 51)
		both(t, []int{65537})
	})
	for _, qps := range []string{"1", "4"} {
		t.Run(qps+" queue pairs at its end", func(t *testing.T) {
			w = startWheel(whole, "127.0.0.1", "P2PHANDSHAKE", most, append(wheelEnv, "MC_NUM_QP_PER_EP="+qps)...)
			both(t, []int{65537})
		})
	}
	t.Run("buffers longer than a memory region", func(t *testing.T) {
		w = startWheel(whole, "127.0.0.1", "P2PHANDSHAKE", most, append(wheelEnv, fmt.Sprint("MC_MAX_MR_SIZE=", most/5*3))...)
		e = openRXE(whole, devices[0], settings{"MC_MAX_MR_SIZE": fmt.Sprint(most / 2)})
		mem, addr = registerBytes(t, e, most)
		both(t, []int{most})
	})
}

// TestRXELinkPulled pulls the relay's cable in the middle of a write and plugs it in
// again.
func TestRXELinkPulled(t *testing.T) {
	devices := needRXE(t, 3)
	link := func(state string) {
		t.Helper()
		port := "port" + strings.TrimPrefix(devices[1], "rxe")
		if out, err := exec.Command("ip", "link", "set", port, state).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	target, name := start(t, targetSettings(), t.TempDir())
	patient := settings{"MC_PXN_CREDIT_TIMEOUT_MS": "3000"}
	r := newRig(t, target, name, 8<<20, patient)
	r.open(options{set: patient})
	defer r.sender.close()
	defer link("up")
	r.write()
	before := r.sender.engine.Stats().Relayed
	if before.Bytes == 0 {
		t.Fatalf("nothing was relayed: %v", r.sender.engine.Stats().Fallbacks)
	}
	r.fill()
	b := r.begin()
	for end := time.Now().Add(20 * time.Second); r.sender.engine.Stats().Relayed.Bytes == before.Bytes && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	link("down")
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	if err := b.Wait(ctx); err != nil {
		t.Fatalf("%v: %+v", err, r.sender.engine.Stats())
	}
	r.verify()
	st := r.sender.engine.Stats()
	balance(t, st)
	if st.Failed.Bytes > 0 || st.DirectCrossRail.Bytes == 0 {
		t.Errorf("failed %+v, direct %+v: want the rest to go direct", st.Failed, st.DirectCrossRail)
	}
	t.Logf("while it was pulled: relayed %d, direct %d, fallbacks %v", st.Relayed.Bytes-before.Bytes, st.DirectCrossRail.Bytes, st.Fallbacks)
	link("up")
	for end := time.Now().Add(120 * time.Second); ; {
		was := r.sender.engine.Stats().Relayed.Bytes
		r.write()
		if r.sender.engine.Stats().Relayed.Bytes > was {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("not relayed again: %v", r.sender.engine.Stats().Fallbacks)
		}
		time.Sleep(time.Second)
	}
	balance(t, r.sender.engine.Stats())
}
