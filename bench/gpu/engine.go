package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/railhop/railhop/internal/gpu"
)

// throughEngine is the whole way in four processes that share the GPU: from its memory
// into a relay's arena, over TCP by software NICs, and into the memory of a target. The
// processes are time-sliced and the wire is a CPU's copy: it shows that the bytes are
// right, and its rates are those of the wire.
func throughEngine(b *bench) error {
	for _, doorbell := range []string{"stream", "kernel"} {
		r, err := b.ranks(doorbell)
		if err != nil {
			return err
		}
		err = r.measure(doorbell)
		if e := r.close(); err == nil {
			err = e
		}
		if err != nil {
			return fmt.Errorf("%s doorbell: %w", doorbell, err)
		}
	}
	return nil
}

func (r *ranks) measure(doorbell string) error {
	if err := r.correct(doorbell); err != nil {
		return err
	}
	if err := r.rates(doorbell); err != nil {
		return err
	}
	if err := r.fence(doorbell); err != nil {
		return err
	}
	if doorbell == "kernel" {
		return nil
	}
	if err := r.capture(); err != nil {
		return err
	}
	if err := r.contexts(); err != nil {
		return err
	}
	if err := r.restarts(); err != nil {
		return err
	}
	return r.killed()
}

// correct writes spans of all sizes and alignments, and compares the target's whole
// memory.
func (r *ranks) correct(doorbell string) error {
	const seed, sourceSize = 11, 64 << 20
	if err := r.b.device.CopyIn(r.b.src, randomBytes(seed, sourceSize)); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 8))
	scattered := func(n int, length func() uint64) []gpu.Copy {
		var copies []gpu.Copy
		for at := uint64(1); len(copies) < n; {
			l := length()
			if at+l > arenaBytes {
				break
			}
			copies = append(copies, gpu.Copy{Dst: at, Src: rng.Uint64N(sourceSize-l) | 1, Length: l})
			at += l + 1 + rng.Uint64N(40)
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
	for _, c := range []struct {
		name   string
		copies []gpu.Copy
	}{
		{"1 B to 8 MiB", scattered(40, func() uint64 { return min(8<<20, 1<<rng.IntN(24)+rng.Uint64N(3)) })},
		{"one of 8 MiB", []gpu.Copy{{Dst: 3, Src: 5, Length: 8 << 20}}},
		{"4096 spans", scattered(4096, func() uint64 { return 1 + rng.Uint64N(4100) })},
		{"all alignments", aligned},
	} {
		for _, way := range []string{"relayed", "direct"} {
			target, before := r.near, r.e.Stats().Relayed
			if way == "relayed" {
				target = r.far
			}
			if _, err := target.ask(ask{Op: "poison"}); err != nil {
				return err
			}
			if err := r.write(way == "relayed", 0, false, c.copies); err != nil {
				return fmt.Errorf("%s, %s: %w", c.name, way, err)
			}
			if _, err := target.ask(ask{Op: "check", Seed: seed, Bytes: sourceSize, Copies: c.copies}); err != nil {
				return fmt.Errorf("%s, %s: %w", c.name, way, err)
			}
			went := r.e.Stats().Relayed.Bytes - before.Bytes
			if (went > 0) != (way == "relayed") {
				return fmt.Errorf("%s, %s: %d bytes were relayed", c.name, way, went)
			}
			r.b.report.add(sample{Group: "engine", Case: c.name, Way: "byte-exact, " + way + ", " + doorbell + " doorbell", Unit: "spans", Values: []float64{float64(len(c.copies))}})
		}
	}
	return nil
}

// rates are of whole writes, from Submit to the end of Wait.
func (r *ranks) rates(doorbell string) error {
	for _, c := range []struct {
		n    uint64
		size uint64
	}{{4096, 2 << 10}, {512, 16 << 10}, {128, 64 << 10}, {8, 8 << 20}} {
		copies := make([]gpu.Copy, c.n)
		for i := range copies {
			at := uint64(i) * c.size
			copies[i] = gpu.Copy{Dst: at, Src: 2 * at, Length: c.size}
		}
		for _, way := range []string{"relayed", "direct"} {
			x := sample{Group: "engine", Case: fmt.Sprintf("%d x %s", c.n, sizeText(c.size)), Way: "write and wait, " + way + ", " + doorbell + " doorbell", Unit: "GB/s"}
			for i := range 6 {
				start := time.Now()
				if err := r.write(way == "relayed", 0, false, copies); err != nil {
					return fmt.Errorf("%s, %s: %w", x.Case, way, err)
				}
				if i > 0 {
					x.Values = append(x.Values, float64(c.n*c.size)/time.Since(start).Seconds()/1e9)
				}
			}
			r.b.report.add(x)
		}
	}
	return nil
}

// restarts ends the relay and starts another, with a write over each, and looks at the
// GPU's free memory.
func (r *ranks) restarts() error {
	x := sample{Group: "engine", Case: "relay restarted 20 times", Way: "GPU memory used beyond the first", Unit: "MiB"}
	var first float64
	for i := range 21 {
		if i > 0 {
			if err := r.relay.close(); err != nil {
				return err
			}
			if err := r.startRelay(); err != nil {
				return err
			}
		}
		if err := r.untilRelayed(); err != nil {
			return fmt.Errorf("restart %d: %w", i, err)
		}
		free, total, err := r.b.raw.memory()
		if err != nil {
			return err
		}
		used := float64(total-free) / (1 << 20)
		if i == 0 {
			first = used
		}
		x.Values = append(x.Values, used-first)
	}
	r.b.report.add(x)
	return nil
}
