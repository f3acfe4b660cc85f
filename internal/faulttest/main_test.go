package faulttest

import (
	"flag"
	"os"
	"strconv"
	"testing"
)

func TestMain(m *testing.M) {
	if Serve() {
		return
	}
	// The tests wait more than they work, whatever the number of processors.
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(atOnce)); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// beyond is how long the destination is watched after the process that could
// still write to it has been reaped, or has been let go on.
const beyond = 2

// atOnce is how many nodes there are at once: each is three processes.
const atOnce = 8
