package railhop_test

import (
	"strings"
	"testing"

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

// openRXE starts an engine as a user would, on some devices.
func openRXE(t *testing.T, set settings, devices ...string) *railhop.Engine {
	t.Helper()
	cfg := railhop.Config{Host: "127.0.0.1", SingleNode: true, Protocol: "rdma", Devices: devices, Settings: loadSettings(t, set)}
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
	a, b := openRXE(t, nil, devices[0]+":1"), openRXE(t, nil, devices[1])
	if nics := a.NICs(); len(nics) != 1 || nics[0].Name != devices[0] || !nics[0].Active {
		t.Errorf("on %s:1 it has NICs %+v, want %s", devices[0], nics, devices[0])
	}
	bad := railhop.Config{Host: "127.0.0.1", SingleNode: true, Protocol: "rdma", Devices: []string{devices[0] + ":2"}, Settings: loadSettings(t, nil)}
	if e, err := railhop.Open(bad); err == nil || !strings.Contains(err.Error(), "it has no port 2: its ports are [1]") {
		t.Errorf("on port 2: %v, %v, want none", e, err)
	}
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
