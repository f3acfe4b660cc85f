package sim

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// TestMain gives the runs one processor: goroutines that are ready at the same time
// then run in the order in which they became so, and a seed replays exactly.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
