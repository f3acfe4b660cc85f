//go:build race

package sim

// raceEnabled: the race detector shuffles goroutines on purpose, so that nothing
// replays exactly, and is slow.
const raceEnabled = true
