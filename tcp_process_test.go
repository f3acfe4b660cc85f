package railhop_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/testkit"
)

// A target that is stopped costs the deadline and little more, and does not take the
// write once it goes on. A target that is killed costs nothing.
func TestTCPTargetStops(t *testing.T) {
	const size = 1 << 20
	set := settings{"RAILHOP_PROVIDERS": "soft", "RAILHOP_SOFT_GPUS": "1", "RAILHOP_SOFT_NICS": "m0=127.0.0.1", "MC_FORCE_TCP": "1"}
	target, name := start(t, set, t.TempDir())
	far := target.do(command{Op: "memory", Size: size}).Addr
	e := openTCP(t, nil)
	src, addr := registerBytes(t, e, size)
	id := openSegment(t, e, name)
	pattern.Fill(src, 1, 0)
	if err := e.Write(t.Context(), id, addr, far, size); err != nil {
		t.Fatal(err)
	}
	if bad := target.do(command{Op: "verify", Addr: far, Size: size, Seed: 1, Part: size, Stride: size}).Bad; bad != 0 {
		t.Fatalf("%d bytes differ", bad)
	}

	for _, n := range []uint64{4096, size} {
		if err := testkit.Stop(target.cmd.Process); err != nil {
			t.Fatal(err)
		}
		pattern.Fill(src, 2, 0)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := e.Write(ctx, id, addr, far, n)
		cancel()
		late, ok := errors.AsType[*railhop.MayLandError](err)
		if !ok || !errors.Is(err, context.DeadlineExceeded) || len(late.Ranges) == 0 || late.Ranges[0].Addr != far {
			t.Errorf("write of %d bytes to a target that is stopped: got %v, want what may still land", n, err)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		if err := target.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		// What comes next lands; what had ended does not, before or after.
		pattern.Fill(src, 1, 0)
		if err := e.Write(t.Context(), id, addr, far, 1); err != nil {
			t.Fatal(err)
		}
		if bad := target.do(command{Op: "verify", Addr: far, Size: size, Seed: 1, Part: size, Stride: size}).Bad; bad != 0 {
			t.Errorf("%d bytes have landed after the write of %d bytes had ended", bad, n)
		}
	}

	if err := target.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	target.cmd.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := e.Write(ctx, id, addr, far, size); !errors.Is(err, railhop.ErrSocket) || ctx.Err() != nil {
		t.Errorf("write to a target that was killed: %v", err)
	}
}
