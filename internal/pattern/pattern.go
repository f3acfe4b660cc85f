// Package pattern makes and checks test bytes that are a function of a seed and
// an offset, so that a receiver can compare what it got with what it should have
// got without seeing the source.
//
// A stream of bytes belongs to each seed: the byte at an offset is the same
// however the stream is cut. It is made eight bytes at a time by the finaliser of
// splitmix64, so a byte at a wrong offset, from a wrong seed or never written
// matches by chance alone.
//
// The functions keep nothing and may be called from any goroutine.
package pattern

import (
	"encoding/binary"
	"math/bits"
)

// gamma is the step from the state of a word to that of the next.
const gamma uint64 = 0x9e3779b97f4a7c15

// word is the eight bytes, little-endian, that belong to a state.
func word(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// state is that of the word that holds offset off. The seed is mixed first:
// callers use small neighbouring numbers, whose streams must have nothing in
// common.
func state(seed, off uint64) uint64 { return word(seed+gamma) + off/8*gamma }

// Fill sets dst to the bytes of seed's stream from offset off.
func Fill(dst []byte, seed, off uint64) {
	x := state(seed, off)
	if r := off % 8; r != 0 {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], word(x))
		dst = dst[copy(dst, b[r:]):]
		x += gamma
	}
	for len(dst) >= 8 {
		binary.LittleEndian.PutUint64(dst, word(x))
		dst = dst[8:]
		x += gamma
	}
	if len(dst) > 0 {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], word(x))
		copy(dst, b[:])
	}
}

// Mismatch compares got with the bytes of seed's stream from offset off. It
// returns the index of the first byte that differs, -1 if none does, and how many
// do.
func Mismatch(got []byte, seed, off uint64) (first, n int) {
	first = -1
	note := func(at int, diff uint64) {
		if diff == 0 {
			return
		}
		if first < 0 {
			first = at + bits.TrailingZeros64(diff)/8
		}
		n += differing(diff)
	}
	x := state(seed, off)
	at := 0
	if r := int(off % 8); r != 0 {
		at = min(8-r, len(got))
		note(0, word(x)>>(8*r)&mask(at)^tail(got[:at]))
		x += gamma
	}
	for ; len(got)-at >= 8; at += 8 {
		if diff := binary.LittleEndian.Uint64(got[at:]) ^ word(x); diff != 0 {
			note(at, diff)
		}
		x += gamma
	}
	if rest := got[at:]; len(rest) > 0 {
		note(at, word(x)&mask(len(rest))^tail(rest))
	}
	return first, n
}

// tail reads up to eight bytes as a little-endian number.
func tail(b []byte) uint64 {
	var w [8]byte
	copy(w[:], b)
	return binary.LittleEndian.Uint64(w[:])
}

// mask covers the low n bytes of a word, n being 0 to 8.
func mask(n int) uint64 { return 1<<(8*n) - 1 }

// differing counts the bytes of diff that are not zero.
func differing(diff uint64) int {
	diff |= diff >> 4
	diff |= diff >> 2
	diff |= diff >> 1
	return bits.OnesCount64(diff & 0x0101010101010101)
}
