//go:build !race

package railhop_test

const raceEnabled = false
