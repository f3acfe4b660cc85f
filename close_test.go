package railhop_test

import (
	"errors"
	"testing"

	"github.com/railhop/railhop"
)

// Who waits without a deadline is told too, when an engine is closed whose ways cannot
// be.
func TestCloseEndsWaiters(t *testing.T) {
	t.Parallel()
	target, name := start(t, targetSettings(), t.TempDir())
	r := newRig(t, target, name, small, settings{})
	var b blindfold
	h := b.hooks()
	h.Fence = func(string, uint64, func() error) error { return errInjected }
	r.open(options{hooks: h})
	r.write()
	b.on.Store(true)
	r.fill()
	batch := r.begin()
	waited := make(chan error, 1)
	go func() { waited <- batch.Wait(t.Context()) }()
	until(t, "the bytes are there", func() bool {
		return target.do(command{Op: "verify", Addr: r.dst, Size: r.size, Seed: r.seed}).Bad == 0
	})
	closed := r.sender.close()
	for _, tc := range []struct {
		what string
		err  error
	}{{"Close", closed}, {"Wait", <-waited}} {
		var late *railhop.MayLandError
		if !errors.As(tc.err, &late) || !errors.Is(tc.err, railhop.ErrClosed) {
			t.Errorf("%s: got %v, want what may still land", tc.what, tc.err)
			continue
		}
		if len(late.Ranges) != 1 || late.Ranges[0].Addr != r.dst || late.Ranges[0].Length != r.size {
			t.Errorf("%s: may still land: %v", tc.what, late.Ranges)
		}
	}
}
