//go:build race

package iov

const raceEnabled = true
