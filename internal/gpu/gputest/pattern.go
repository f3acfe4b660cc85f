package gputest

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/railhop/railhop/internal/gpu"
)

// pattern returns bytes in which no two places and no two seeds look alike: random
// blocks of an odd length, each opened by its number. It is built by copying, as
// the race detector makes a loop over bytes slow.
func pattern(length, seed uint64) []byte {
	const block = 1021
	base := make([]byte, block+7)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := 0; i < block; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(base[i:], x)
	}
	b := make([]byte, 0, length+block)
	for n := uint64(0); uint64(len(b)) < length; n++ {
		binary.LittleEndian.PutUint64(base, x^n)
		b = append(b, base[:block]...)
	}
	return b[:length]
}

func fill(d gpu.Device, addr, length, seed uint64) error {
	return d.CopyIn(addr, pattern(length, seed))
}

func check(d gpu.Device, addr, length, seed uint64) error {
	got := make([]byte, length)
	if err := d.CopyOut(got, addr); err != nil {
		return err
	}
	return compare(got, pattern(length, seed))
}

// compare says where got first differs from want.
func compare(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			return fmt.Errorf("byte %d of %d differs: got %x, want %x", i, len(want), got[i:min(i+8, len(got))], want[i:min(i+8, len(want))])
		}
	}
	return fmt.Errorf("got %d bytes, want %d", len(got), len(want))
}
