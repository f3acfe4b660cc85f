package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/cuda"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/shmabi"
)

const rounds = 5

const allBlocks = math.MaxInt32

// contiguous has one span of 8 MiB a piece: bare copies of the same sizes and slots,
// and rings, in turn.
func contiguous(b *bench) error {
	const n = 1200
	piece := func(slot uint64) gpu.Copy {
		return gpu.Copy{Dst: b.arena + slot*slotBytes, Src: b.src + slot*slotBytes, Length: slotBytes}
	}
	var streams [2]uintptr
	for i := range streams {
		var err error
		if streams[i], err = b.raw.stream(); err != nil {
			return err
		}
	}
	bare := func(over int) (float64, error) {
		start := time.Now()
		for i := range n {
			if err := b.raw.copy(piece(uint64(i)%arenaSlots), streams[i%over]); err != nil {
				return 0, err
			}
		}
		for _, s := range streams {
			if err := b.raw.sync(s); err != nil {
				return 0, err
			}
		}
		return n * slotBytes / time.Since(start).Seconds(), nil
	}
	// The sources of pieces lie back to back, as those of a long write do, or apart.
	source := func(apart uint64) func(slot uint64) []gpu.Copy {
		var one [arenaSlots][]gpu.Copy
		for i := range one {
			c := piece(uint64(i))
			c.Src = b.src + uint64(i)*apart
			one[i] = []gpu.Copy{c}
		}
		return func(slot uint64) []gpu.Copy { return one[slot] }
	}
	type way struct {
		name string
		run  func() (float64, error)
	}
	ways := []way{
		{"bare copies, one stream", func() (float64, error) { return bare(1) }},
		{"bare copies, two streams", func() (float64, error) { return bare(2) }},
	}
	const asEngine = "ring, a doorbell for 6, as the engine"
	for _, w := range []struct {
		name     string
		opts     cuda.Options
		together uint64
		apart    uint64
	}{
		{"ring, one stream, a doorbell each", cuda.Options{Streams: 1}, 1, slotBytes},
		{"ring, one stream, a doorbell for 6", cuda.Options{Streams: 1}, 6, slotBytes},
		{"ring, a doorbell each", cuda.Options{}, 1, slotBytes},
		{"ring, a doorbell for 3", cuda.Options{}, 3, slotBytes},
		{asEngine, cuda.Options{}, 6, slotBytes},
		{"ring, sources apart, a doorbell each", cuda.Options{}, 1, 2 * slotBytes},
		{"ring, sources apart, a doorbell for 3", cuda.Options{}, 3, 2 * slotBytes},
		{asEngine + ", sources apart", cuda.Options{}, 6, 2 * slotBytes},
	} {
		s, err := b.sender(w.opts)
		if err != nil {
			return err
		}
		defer s.close()
		pieces := source(w.apart)
		ways = append(ways, way{w.name, func() (rate float64, err error) {
			err = s.echoing(func() error {
				rate, err = s.ring(n, w.together, pieces)
				return err
			})
			return rate, err
		}})
	}
	values := make([][]float64, len(ways))
	for range rounds {
		for i, w := range ways {
			rate, err := w.run()
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			values[i] = append(values[i], rate/1e9)
		}
	}
	for i, w := range ways {
		s := sample{Group: "contiguous", Case: "1 x 8 MiB", Way: w.name, Unit: "GB/s", Values: values[i]}
		if strings.HasPrefix(w.name, asEngine) {
			s.Want = fmt.Sprintf(">= %.0f, 0.9 of the better bare", 0.9*max(sample{Values: values[0]}.median(), sample{Values: values[1]}.median()))
		}
		b.report.add(s)
	}
	return nil
}

// gather has scattered pieces: filling the table, launch and doorbell, with that many
// blocks; and the driver's batch call for the same.
func gather(b *bench) error {
	cases := []struct {
		n     int
		size  uint64
		wants map[int]int
	}{
		{4096, 2 << 10, map[int]int{4: 120, 16: 330, allBlocks: 450}},
		{512, 16 << 10, map[int]int{4: 150, 16: 420, allBlocks: 550}},
		{128, 64 << 10, map[int]int{4: 150, 16: 420, allBlocks: 550}},
		{4096, 256, nil},
		{4096, 2045, nil},
	}
	for _, c := range cases {
		name := fmt.Sprintf("%d x %s", c.n, sizeText(c.size))
		piece := b.pages(c.n, c.size)
		bytes, batch := float64(c.size)*float64(c.n), 0.0
		if b.raw.batch.Found() || b.raw.batchV2.Found() {
			stream, err := b.raw.stream()
			if err != nil {
				return err
			}
			var values []float64
			for range rounds {
				const n = 4
				start := time.Now()
				for i := range uint64(n) {
					if err := b.raw.copyBatch(piece(i), stream); err != nil {
						return err
					}
				}
				if err := b.raw.sync(stream); err != nil {
					return err
				}
				values = append(values, n*bytes/time.Since(start).Seconds()/1e9)
			}
			x := sample{Group: "gather", Case: name, Way: "cuMemcpyBatchAsync", Unit: "GB/s", Values: values}
			batch = x.median()
			b.report.add(x)
		}
		for _, blocks := range []int{1, 2, 4, 8, 16, allBlocks} {
			for _, way := range []struct {
				name string
				opts cuda.Options
			}{
				{"kernel, stream doorbell", cuda.Options{}},
				{"kernel, stream doorbell, one stream", cuda.Options{Streams: 1}},
				{"kernel, stream doorbell, low priority", cuda.Options{LowPriority: true}},
				{"kernel, kernel doorbell", cuda.Options{Doorbell: cuda.KernelDoorbell}},
			} {
				if way.opts.LowPriority && blocks != 4 {
					continue
				}
				way.opts.GatherBlocks = blocks
				s := sample{Group: "gather", Case: name, Way: way.name, Blocks: blocks, Unit: "GB/s"}
				wanted := c.wants[blocks] > 0
				if wanted {
					s.Want = fmt.Sprintf(">= %d", c.wants[blocks])
				}
				if blocks == allBlocks {
					s.Blocks, s.Way = 0, way.name+", all blocks"
				}
				n := uint64(400)
				if blocks < 4 {
					n = 100
				}
				var err error
				if s.Values, err = b.rates(way.opts, n, piece); err != nil {
					return fmt.Errorf("%s, %s: %w", s.Case, s.Way, err)
				}
				if wanted && way.opts == (cuda.Options{GatherBlocks: blocks}) {
					if s.Engine, err = b.engineRates(way.opts, piece); err != nil {
						return fmt.Errorf("%s, %s, engine: %w", s.Case, s.Way, err)
					}
				}
				b.report.add(s)
				if batch > 0 && blocks == 4 && way.opts == (cuda.Options{GatherBlocks: 4}) {
					x := sample{Group: "gather", Case: name, Way: "kernel, stream doorbell, over the batch call", Blocks: 4, Unit: "times", Values: []float64{s.median() / batch}}
					if c.size == 2<<10 {
						x.Want = ">= 200"
					}
					b.report.add(x)
				}
			}
		}
	}
	return nil
}

// rates runs rings of n pieces, one to warm up.
func (b *bench) rates(opts cuda.Options, n uint64, piece func(slot uint64) []gpu.Copy) ([]float64, error) {
	s, err := b.sender(opts)
	if err != nil {
		return nil, err
	}
	defer s.close()
	var values []float64
	err = s.echoing(func() error {
		for i := range rounds + 1 {
			rate, err := s.ring(n, 1, piece)
			if err != nil {
				return err
			}
			if i > 0 {
				values = append(values, rate/1e9)
			}
		}
		return nil
	})
	return values, err
}

// layingOut is what the CPU does for a piece of 4096 spans: the stream's call, the same
// call for two spans (of which the launch is nearly all), and the lane's descriptor.
func layingOut(b *bench) error {
	s, err := b.sender(cuda.Options{})
	if err != nil {
		return err
	}
	defer s.close()
	medians := map[int]float64{}
	for _, c := range []struct {
		n    int
		size uint64
	}{{2, 2 << 10}, {128, 64 << 10}, {512, 16 << 10}, {4096, 2 << 10}} {
		piece := b.pages(c.n, c.size)(0)
		var values []float64
		for range 50 {
			for idle := false; !idle; {
				if idle, err = s.stream.Idle(); err != nil {
					return err
				}
			}
			start := time.Now()
			if err := s.stream.Copy(piece); err != nil {
				return err
			}
			values = append(values, float64(time.Since(start).Nanoseconds())/1e3)
		}
		x := sample{Group: "laying out", Case: fmt.Sprintf("%d x %s", c.n, sizeText(c.size)), Way: "one call of Copy", Unit: "us", Values: values}
		medians[c.n] = x.median()
		b.report.add(x)
	}
	block, err := controlBlock()
	if err != nil {
		return err
	}
	g := lane.Geometry{Slots: shmabi.Slots, SlotSize: slotBytes, MaxSpans: shmabi.MaxSpans}
	tx := lane.NewSender(lane.Map(block, 0), g, 1)
	plans := make([]shmabi.Plan, shmabi.MaxSpans)
	for i := range plans {
		plans[i] = shmabi.Plan{Dest: uint64(i+1) << 16, Length: slotBytes / shmabi.MaxSpans}
	}
	var values []float64
	for range 200 {
		start := time.Now()
		if err := tx.Prepare(0, []byte("node-b:12345"), plans, slotBytes); err != nil {
			return err
		}
		values = append(values, float64(time.Since(start).Nanoseconds())/1e3)
	}
	x := sample{Group: "laying out", Case: "4096 x 2 KiB", Way: "descriptor of the lane", Unit: "us", Values: values}
	b.report.add(x)
	b.report.add(sample{
		Group: "laying out", Case: "4096 x 2 KiB", Way: "table and descriptor: without the launch, which is the call for 2",
		Unit: "us", Values: []float64{medians[4096] - medians[2] + x.median()}, Want: "<= 8",
	})
	return nil
}

func controlBlock() (*shmabi.ControlBlock, error) {
	mem, err := unix.Mmap(-1, 0, controlBytes(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	return shmabi.ControlAt(mem)
}

// latency is one small piece at a time, from the call to the relay's eyes and back.
func latency(b *bench) error {
	stream, err := b.raw.stream()
	if err != nil {
		return err
	}
	s, err := b.sender(cuda.Options{})
	if err != nil {
		return err
	}
	k, err := b.sender(cuda.Options{Doorbell: cuda.KernelDoorbell})
	if err != nil {
		return errors.Join(err, s.close())
	}
	defer s.close()
	defer k.close()
	one := []gpu.Copy{{Dst: b.arena, Src: b.src, Length: 4 << 10}}
	two := []gpu.Copy{{Dst: b.arena, Src: b.src, Length: 2 << 10}, {Dst: b.arena + 2<<10, Src: b.src + 8<<10, Length: 2 << 10}}
	var bare float64
	for _, w := range []struct {
		what, name string
		on         *sender
		run        func(seq uint64) error
	}{
		{"1 x 4 KiB", "bare copy and stream write", s, func(seq uint64) error {
			return errors.Join(b.raw.copy(one[0], stream), b.raw.write(s.bell, seq, stream))
		}},
		{"1 x 4 KiB", "one call, stream doorbell", s, func(seq uint64) error { return s.stream.CopyWrite64(one, s.bell, seq) }},
		{"1 x 4 KiB", "Copy, then Write64", s, func(seq uint64) error {
			return errors.Join(s.stream.Copy(one), s.stream.Write64(s.bell, seq))
		}},
		{"2 x 2 KiB", "kernel, stream doorbell", s, func(seq uint64) error { return s.stream.CopyWrite64(two, s.bell, seq) }},
		{"2 x 2 KiB", "kernel, kernel doorbell", k, func(seq uint64) error { return k.stream.CopyWrite64(two, k.bell, seq) }},
	} {
		var values []float64
		err := w.on.echoing(func() error {
			for seq := uint64(1); seq <= 3000; seq++ {
				start := time.Now()
				if err := w.run(seq); err != nil {
					return err
				}
				if err := w.on.reach(seq); err != nil {
					return err
				}
				values = append(values, float64(time.Since(start).Nanoseconds())/1e3)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		x := sample{Group: "latency", Case: w.what, Way: w.name, Unit: "us", Values: percentiles(values)}
		if bare == 0 {
			bare = x.median()
		} else if w.what == "1 x 4 KiB" {
			x.Want = fmt.Sprintf("<= %.2f, 1.2 of the bare", 1.2*bare)
		}
		b.report.add(x)
	}
	return nil
}

// percentiles keeps 1, 25, 50, 75 and 99 % of many values.
func percentiles(v []float64) []float64 {
	slices.Sort(v)
	var p []float64
	for _, at := range []int{1, 25, 50, 75, 99} {
		p = append(p, v[len(v)*at/100])
	}
	return p
}

// crossover has pieces of 8 MiB in ever longer spans, by copy engines and by the kernel.
func crossover(b *bench) error {
	for _, size := range []uint64{128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20} {
		piece := b.pages(int(slotBytes/size), size)
		for _, way := range []struct {
			name   string
			blocks int
			opts   cuda.Options
		}{
			{"copy engines", 0, cuda.Options{EngineBytes: 1}},
			{"kernel", 4, cuda.Options{GatherBlocks: 4, EngineBytes: 1 << 40}},
			{"kernel", 16, cuda.Options{GatherBlocks: 16, EngineBytes: 1 << 40}},
		} {
			values, err := b.rates(way.opts, 150, piece)
			if err != nil {
				return err
			}
			b.report.add(sample{Group: "crossover", Case: fmt.Sprintf("%d x %s", slotBytes/size, sizeText(size)), Way: way.name, Blocks: way.blocks, Unit: "GB/s", Values: values})
		}
	}
	return nil
}
