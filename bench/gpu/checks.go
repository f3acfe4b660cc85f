package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/cuda"
)

// correct copies spans of all sizes and alignments into a poisoned arena of the relay's,
// which compares every byte of it.
func correct(b *bench) error {
	const seed = 7
	const sourceSize = 64 << 20
	if err := b.device.CopyIn(b.src, randomBytes(seed, sourceSize)); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 8))
	// scattered is n spans with lengths drawn by length, at odd places.
	scattered := func(n int, length func() uint64) []gpu.Copy {
		var copies []gpu.Copy
		at := uint64(rng.IntN(64))
		for range n {
			l := length()
			if at+l > arenaBytes {
				break
			}
			copies = append(copies, gpu.Copy{Dst: at, Src: rng.Uint64N(sourceSize - l), Length: l})
			at += l + uint64(rng.IntN(40))
		}
		return copies
	}
	var aligned []gpu.Copy
	for _, l := range []uint64{1, 15, 16, 17, 47, 100, 513, 4099} {
		for from := range uint64(16) {
			for to := range uint64(16) {
				aligned = append(aligned, gpu.Copy{Dst: uint64(len(aligned))*8192 + to, Src: uint64(len(aligned))*8192 + from, Length: l})
			}
		}
	}
	cases := []struct {
		name   string
		copies []gpu.Copy
	}{
		{"all alignments", aligned},
		{"4096 spans of 1..4096 B", scattered(4096, func() uint64 { return 1 + rng.Uint64N(4096) })},
		{"4096 spans of 1 B", scattered(4096, func() uint64 { return 1 })},
		{"spans of 1 B..8 MiB", scattered(60, func() uint64 { return 1 + rng.Uint64N(1<<rng.IntN(23)) + rng.Uint64N(2)*(4<<20) })},
		{"one span of 8 MiB, odd", []gpu.Copy{{Dst: 12345, Src: 6789, Length: 8 << 20}}},
	}
	for _, opts := range []cuda.Options{
		{}, {GatherBlocks: 1}, {GatherBlocks: allBlocks, EngineBytes: 1 << 40}, {GatherBlocks: 16, Doorbell: cuda.KernelDoorbell}, {NoKernel: true},
	} {
		s, err := b.sender(opts)
		if err != nil {
			return err
		}
		for _, c := range cases {
			if _, err := b.relay.ask(ask{Op: "poison"}); err != nil {
				return err
			}
			real := make([]gpu.Copy, len(c.copies))
			for i, x := range c.copies {
				real[i] = gpu.Copy{Dst: b.arena + x.Dst, Src: b.src + x.Src, Length: x.Length}
			}
			err := s.echoing(func() error {
				if err := s.stream.CopyWrite64(real, s.bell, 1); err != nil {
					return err
				}
				return s.reach(1)
			})
			if err == nil {
				_, err = b.relay.ask(ask{Op: "check", Seed: seed, Bytes: sourceSize, Copies: c.copies})
			}
			if err != nil {
				return fmt.Errorf("%s with %+v: %w", c.name, opts, err)
			}
		}
		b.report.add(sample{Group: "correct", Case: fmt.Sprintf("%d cases, every byte", len(cases)), Way: way(opts), Unit: "errors", Values: []float64{0}, Want: "0"})
		if err := s.close(); err != nil {
			return err
		}
	}
	return nil
}

func way(o cuda.Options) string {
	switch {
	case o.NoKernel:
		return "copy engines only"
	case o.GatherBlocks == allBlocks:
		return "kernel only, all blocks"
	case o.Doorbell == cuda.KernelDoorbell:
		return "kernel doorbell, 16 blocks"
	case o.GatherBlocks == 0:
		return "defaults"
	}
	return fmt.Sprintf("%d block", o.GatherBlocks)
}

// fence has a stream of the caller's overwrite the source, slowly, and a piece copied
// behind it: with the caller's stream recorded not one stale byte may arrive; without
// it, some must, or the test shows nothing.
func fence(b *bench) error {
	const (
		tries = 10_000
		size  = 64 << 10
		scrap = 16 << 20
	)
	s, err := b.sender(cuda.Options{})
	if err != nil {
		return err
	}
	defer s.close()
	e, err := s.device.NewEvent()
	if err != nil {
		return err
	}
	defer e.Close()
	own, err := b.raw.stream()
	if err != nil {
		return err
	}
	const perThread = 2
	// Two runs, so that the kernel copies.
	copies := []gpu.Copy{
		{Dst: b.arena, Src: b.src, Length: size / 2},
		{Dst: b.arena + size/2, Src: b.src + size, Length: size / 2},
	}
	got := make([]byte, size)
	for _, c := range []struct {
		name   string
		stream uintptr
		handle uint64
		fence  bool
		tries  int
	}{
		{"given stream", own, uint64(own), true, tries},
		{"per-thread default stream", perThread, 0, true, tries},
		{"no fence", own, uint64(own), false, 200},
	} {
		stale, seq := 0, uint64(0)
		err := s.echoing(func() error {
			for i := range c.tries {
				value := byte(i%250 + 1)
				// The model: something slow, and then the cache.
				for range 8 {
					if err := b.raw.copy(gpu.Copy{Dst: b.src + 2*scrap, Src: b.src + scrap, Length: scrap}, c.stream); err != nil {
						return err
					}
				}
				if err := b.raw.fill(b.src, value, 2*size, c.stream); err != nil {
					return err
				}
				if c.fence {
					if err := s.device.RecordCaller(c.handle, e); err != nil {
						return err
					}
					if err := s.stream.Wait(e); err != nil {
						return err
					}
				}
				seq++
				if err := s.stream.CopyWrite64(copies, s.bell, seq); err != nil {
					return err
				}
				if err := s.reach(seq); err != nil {
					return err
				}
				if err := s.device.CopyOut(got, b.arena); err != nil {
					return err
				}
				if bytes.Count(got, []byte{value}) != len(got) {
					stale++
				}
				if err := b.raw.sync(c.stream); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		x := sample{Group: "fence", Case: fmt.Sprintf("%d tries", c.tries), Way: c.name, Unit: "stale", Values: []float64{float64(stale)}, Want: "0"}
		if !c.fence {
			x.Want = "some"
		}
		b.report.add(x)
		if c.fence == (stale > 0) {
			return fmt.Errorf("%s: %d of %d stale, want %s", c.name, stale, c.tries, x.Want)
		}
	}
	return nil
}
