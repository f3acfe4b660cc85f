//go:build race

package model

// raceEnabled: one goroutine explores, so that the race detector finds nothing
// here and takes ten times as long.
const raceEnabled = true
