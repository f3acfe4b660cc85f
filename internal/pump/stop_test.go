package pump_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/pump"
)

// A context that ends while the loop is about to say that it sleeps ends the loop: its
// ring comes too early to be heard.
func TestStopBeforeSleep(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var l *pump.Loop
	l = pump.New(pump.Options{
		SpinFor: -1,
		Now: func() time.Duration {
			if l != nil && ctx.Err() == nil {
				cancel()
				l.Wake() // and what the end of the context does in the background
				time.Sleep(20 * time.Millisecond)
			}
			return 0
		},
		Park:   func(*atomic.Uint32, time.Duration) { t.Error("the loop parks though its context has ended") },
		Unpark: func() {},
	})
	l.Run(ctx)
}
