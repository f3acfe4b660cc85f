package railhop_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu/cuda"
	"github.com/railhop/railhop/internal/nic/softnic"
)

// TestNoGPU has a host without a CUDA driver, where PXN was asked for: that it is off,
// and why, is said once for all engines of the process, and host memory moves all the
// same.
func TestNoGPU(t *testing.T) {
	if _, err := cuda.Open(cuda.Options{}); err == nil {
		t.Skip("this machine has a CUDA driver and a GPU")
	}
	var log strings.Builder
	set := settings{"MC_PXN_ENABLE": "1", "MC_PXN_GROUP_ID": "test"}
	env, warnings := config.Load(func(name string) (string, bool) { v, ok := set[name]; return v, ok })
	if len(warnings) > 0 {
		t.Fatal(warnings)
	}
	cfg := railhop.Config{
		Host: "127.0.0.1", Settings: env, Registry: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil)),
		NICs: must(softnic.New(softnic.Options{Devices: must(softnic.ParseDevices("m0=127.0.1.1;m1=127.0.1.2"))})),
	}
	a, b := must(railhop.Open(cfg)), must(railhop.Open(cfg))
	src, from := registerBytes(t, a, 4096)
	dst, to := registerBytes(t, b, 4096)
	copy(src, "railhop")
	if err := a.Write(t.Context(), openSegment(t, a, b.Name()), from, to, 4096); err != nil {
		t.Fatal(err)
	}
	if got := string(dst[:7]); got != "railhop" {
		t.Errorf("wrote %q", got)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	text := log.String()
	if n := strings.Count(text, "PXN is off"); n != 1 {
		t.Errorf("that PXN is off is said %d times, want once:\n%s", n, text)
	}
	if !strings.Contains(text, "libcuda.so.1") {
		t.Errorf("the cause is not named:\n%s", text)
	}
}
