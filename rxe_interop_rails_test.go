package railhop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/pattern"
)

// TestInteropRXERails has engines with two NICs: which of them Mooncake's engine takes to
// reach our memory, and what becomes of a cable that is pulled, at its end and at ours.
func TestInteropRXERails(t *testing.T) {
	devices := needRXE(t, 3)
	const n = 1 << 20

	t.Run("the preferred NIC", func(t *testing.T) {
		m := &meeting{t: t}
		m.startWheel("P2PHANDSHAKE", n, nil)
		// Of ours each node prefers one, and the second node is the one whose entry readers
		// come by first (mooncake-wire.md 3.6).
		near := map[string]string{"cpu:0": devices[0], "cpu:1": devices[2]}
		e, err := railhop.Open(railhop.Config{
			Host: "127.0.0.1", SingleNode: true, Protocol: "rdma", Devices: []string{devices[0], devices[2]}, Settings: loadSettings(t, nil),
			Topology: map[string][2][]string{"cpu:0": {{devices[0]}, {devices[2]}}, "cpu:1": {{devices[2]}, {devices[0]}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		for _, location := range []string{"cpu:0", "cpu:1"} {
			mem, addr := registerBytes(t, e, n)
			if err := errors.Join(e.Unregister(addr), e.Register(addr, n, location)); err != nil {
				t.Fatal(err)
			}
			var before []int
			for _, d := range devices {
				before = append(before, queuePairs(t, d))
			}
			pattern.Fill(mem, 1, 0)
			m.w.move("read", e.Name(), []uint64{0}, []uint64{addr}, []uint64{n})
			check(t, "its read", nil, m.w.get(n), 1)
			for i, d := range devices {
				if i == 1 {
					continue // its own
				}
				if more := queuePairs(t, d) > before[i]; more != (d == near[location]) {
					t.Errorf("memory on %s, near %s: it connects to %s: %v", location, near[location], d, more)
				}
			}
		}
	})

	for _, tc := range []struct {
		name        string
		its, ours   []string
		republishes func(m *meeting) string // the segment whose matrix changes
	}{
		{"a cable at its end", devices[1:3], devices[:1], func(m *meeting) string { return m.w.name }},
		{"a cable at our end", devices[:1], devices[1:3], func(m *meeting) string { return m.e.Name() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pulled := devices[1]
			m := &meeting{t: t}
			m.w = startWheel(t, "127.0.0.1", "P2PHANDSHAKE", n, wheelRDMA, "MC_TE_FILTERS="+strings.Join(tc.its, ","), "MC_TRANSFER_TIMEOUT=300")
			m.e = openRXE(t, nil, tc.ours...)
			m.ourName = m.e.Name()
			m.mem, m.addr = registerBytes(t, m.e, n)
			defer cable(t, pulled, "up")
			named := func() bool {
				t.Helper()
				var d handshake.Dialer
				desc, err := d.Describe(t.Context(), tc.republishes(m))
				if err != nil {
					t.Fatal(err)
				}
				for _, lists := range desc.PriorityMatrix {
					if slices.Contains(lists[0], pulled) || slices.Contains(lists[1], pulled) {
						return true
					}
				}
				return false
			}
			for range 4 { // so that both are used
				m.both(65537)
			}
			if !named() {
				t.Fatalf("%s is not in the matrix", pulled)
			}

			id := openSegment(t, m.e, m.w.name)
			done := make(chan error, 1)
			stop, cancel := context.WithCancel(t.Context())
			go func() { // in the middle of which it happens
				var err error
				for stop.Err() == nil && err == nil {
					err = m.e.Write(t.Context(), id, m.addr, m.w.addr, n)
				}
				done <- err
			}()
			cable(t, pulled, "down")
			at := time.Now()
			until(t, "the matrix without "+pulled, func() bool { return !named() })
			cancel()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			for range 4 {
				m.both(65537)
			}
			t.Logf("all goes by the other %v after %s was pulled", time.Since(at).Round(time.Millisecond), pulled)

			cable(t, pulled, "up")
			at = time.Now()
			for !named() {
				if time.Since(at) > 90*time.Second {
					t.Fatalf("%s is not in the matrix again", pulled)
				}
				time.Sleep(time.Second)
			}
			t.Logf("%s is in the matrix again %v after it was plugged in", pulled, time.Since(at).Round(time.Second))
			for range 4 {
				m.both(65537)
			}
			if err := m.e.Close(); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}
