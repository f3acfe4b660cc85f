package faulttest

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if Serve() {
		return
	}
	os.Exit(m.Run())
}

// beyond is how long the destination is watched after the process that could
// still write to it has been reaped, or has been let go on.
const beyond = 2

// slots limits how many nodes there are at once: each is three processes.
var slots = make(chan struct{}, 6)

// parallel runs a test beside others, but not beside too many.
func parallel(t *testing.T) {
	t.Parallel()
	slots <- struct{}{}
	t.Cleanup(func() { <-slots })
}
