package verbs_test

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/nictest"
	"github.com/railhop/railhop/internal/nic/verbs"
)

// library opens the library, or skips the test.
func library(t testing.TB) *verbs.Provider {
	t.Helper()
	p, err := verbs.Open(verbs.Options{GIDIndex: -1, GIDRetries: 2, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// provider is the library with at least one device that can be used, or the test is
// skipped.
func provider(t testing.TB) (p *verbs.Provider, devices []string) {
	t.Helper()
	p = library(t)
	devices, err := p.Devices()
	if err != nil || len(devices) == 0 {
		t.Skipf("no RDMA device here (%v): make test-rxe plays some", err)
	}
	return p, devices
}

func TestConformance(t *testing.T) {
	_, devices := provider(t)
	run := func(name, a, b string) {
		t.Run(name, func(t *testing.T) {
			nictest.Run(t, func(t testing.TB) nictest.Setup {
				// Soft-RoCE has one key for both ends, and goes by the letter of InfiniBand.
				return nictest.Setup{
					Provider: library(t), DevA: a, DevB: b, Alloc: alloc,
					OneKey: true, QPRefusal: nic.StatusRemoteInvalid, LocalRefusal: nic.StatusLocalQPOperation, LonelyErrors: true,
					InFlight: 400 * time.Millisecond,
				}
			})
		})
	}
	if !testing.Short() {
		run("one device", devices[0], devices[0])
	}
	if n := len(devices); n > 1 {
		run("two devices", devices[0], devices[n-1])
	}
}
