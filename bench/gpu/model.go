package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/dl"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/cuda"
)

// matmul multiplies large matrices with the vendor's library, as a model does. All its
// calls are made on one thread that has the device's context.
type matmul struct {
	create, setStream, gemm dl.Proc
	raw                     *raw
	handle, stream          uintptr
	mem                     []byte // alpha and beta
	a, b, c                 uint64
}

const matrix = 8192

func newMatmul(bench *bench) (*matmul, error) {
	names := []string{"libcublas.so.13", "libcublas.so.12"}
	if bench.blas != "" {
		names = []string{bench.blas}
	}
	for _, pattern := range []string{"/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib/libcublas.so.1?", "/usr/local/cuda/lib64/libcublas.so.1?"} {
		found, _ := filepath.Glob(pattern)
		names = append(names, found...)
	}
	lib, err := dl.Open(names...)
	if err != nil {
		return nil, err
	}
	raw, err := bindRaw()
	if err != nil {
		return nil, err
	}
	m := &matmul{raw: raw}
	if err := dl.Bind(lib, 0, []dl.Symbol{
		{Names: []string{"cublasCreate_v2"}, Target: &m.create},
		{Names: []string{"cublasSetStream_v2"}, Target: &m.setStream},
		{Names: []string{"cublasGemmEx"}, Target: &m.gemm},
	}); err != nil {
		return nil, err
	}
	if m.mem, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, err
	}
	const one = 0x3f800000 // as a float
	m.mem[3], m.mem[2] = one>>24, one>>16&0xff
	if m.stream, err = raw.stream(); err != nil {
		return nil, err
	}
	if err := raw.call("cublasCreate", m.create, raw.at(rawOut)); err != nil {
		return nil, err
	}
	m.handle = uintptr(wordAt(raw.mem, rawOut).Load())
	if err := raw.call("cublasSetStream", m.setStream, m.handle, m.stream); err != nil {
		return nil, err
	}
	const bytes = 2 * matrix * matrix
	for _, p := range []*uint64{&m.a, &m.b, &m.c} {
		if *p, err = bench.device.Alloc(bytes); err != nil {
			return nil, err
		}
		// Random bits, but for exponents that would be no numbers.
		data := randomBytes(uint64(len(names)), bytes)
		for i := 1; i < len(data); i += 2 {
			data[i] = data[i]&0x81 | 0x3e
		}
		if err := bench.device.CopyIn(*p, data); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *matmul) close(b *bench) error {
	return errors.Join(b.device.Free(m.a), b.device.Free(m.b), b.device.Free(m.c))
}

// products runs n of them and returns how long they took.
func (m *matmul) products(n int) (time.Duration, error) {
	const bf16, float32Compute, anyAlgorithm = 14, 68, ^uintptr(0)
	alpha, beta := uintptr(addressOf(m.mem)), uintptr(addressOf(m.mem[64:]))
	start := time.Now()
	for range n {
		err := m.raw.call("cublasGemmEx", m.gemm, m.handle, 0, 0, matrix, matrix, matrix, alpha,
			uintptr(m.a), bf16, matrix, uintptr(m.b), bf16, matrix, beta, uintptr(m.c), bf16, matrix, float32Compute, anyAlgorithm)
		if err != nil {
			return 0, err
		}
	}
	err := m.raw.sync(m.stream)
	return time.Since(start), err
}

// besideModel has a ring in the process and context of back-to-back matrix products:
// what the products lose, and how long a piece takes.
func besideModel(b *bench) error {
	m, err := newMatmul(b)
	if err != nil {
		b.report.add(sample{Group: "beside a model", Case: "no cuBLAS", Way: err.Error(), Unit: ""})
		return nil
	}
	defer m.close(b)
	const n = 120
	if _, err := m.products(50); err != nil {
		return err
	}
	alone := func() (float64, error) {
		took, err := m.products(n)
		return took.Seconds() / n * 1e3, err
	}
	var base []float64
	for range 3 {
		ms, err := alone()
		if err != nil {
			return err
		}
		base = append(base, ms)
	}
	b.report.add(sample{Group: "beside a model", Case: "8192^3 bf16 product", Way: "alone", Unit: "ms", Values: base})
	type load struct {
		blocks int
		opts   cuda.Options
		paced  float64 // bytes a second, 0 for as fast as it goes
		n      int
		size   uint64
		want   string
	}
	var loads []load
	for _, paced := range []float64{50e9, 0} {
		want := "<= 3 %"
		if paced == 0 {
			want = "<= 6 %"
		}
		for _, blocks := range []int{1, 2, 4, 8, 16} {
			x := load{blocks: blocks, paced: paced, n: 4096, size: 2 << 10}
			if blocks == 4 {
				x.want = want
			}
			loads = append(loads, x)
		}
		for _, streams := range []int{1, 2, 4} {
			loads = append(loads, load{4, cuda.Options{Streams: streams}, paced, 4096, 2 << 10, ""})
		}
		for _, blocks := range []int{4, 16} {
			loads = append(loads, load{blocks, cuda.Options{LowPriority: true}, paced, 4096, 2 << 10, ""})
		}
		loads = append(loads,
			load{4, cuda.Options{Doorbell: cuda.KernelDoorbell}, paced, 4096, 2 << 10, ""},
			load{0, cuda.Options{}, paced, 1, 8 << 20, want},
			load{0, cuda.Options{LowPriority: true}, paced, 1, 8 << 20, ""})
	}
	for _, c := range loads {
		c.opts.GatherBlocks = c.blocks
		s, err := b.sender(c.opts)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("%d x %s, ", c.n, sizeText(c.size))
		if c.paced > 0 {
			what += fmt.Sprintf("%.0f GB/s", c.paced/1e9)
		} else {
			what += "unpaced"
		}
		way := "high priority"
		if c.opts.LowPriority {
			way = "low priority"
		}
		if c.opts.Streams > 0 {
			way += fmt.Sprintf(", streams: %d", c.opts.Streams)
		}
		if c.opts.Doorbell == cuda.KernelDoorbell {
			way = "kernel doorbell"
		}
		var slow, pieces []float64
		var rate float64
		err = s.echoing(func() error {
			times := 3
			if c.want != "" {
				times = 5
			}
			for range times {
				again, err := alone() // the machine drifts: compare with its neighbour
				if err != nil {
					return err
				}
				done := make(chan products, 1)
				go func() {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					detach, err := b.device.(*cuda.Device).Attach()
					if err != nil {
						done <- products{err: err}
						return
					}
					ms, err := alone()
					done <- products{ms, errors.Join(err, detach())}
				}()
				took, err := s.beside(done, c.paced, b.pages(c.n, c.size))
				if err != nil {
					return err
				}
				slow = append(slow, 100*(took.ms/again-1))
				pieces = append(pieces, took.latencies...)
				rate = took.rate
			}
			return nil
		})
		if err := errors.Join(err, s.close()); err != nil {
			return err
		}
		b.report.add(sample{Group: "beside a model", Case: what, Way: "loss of the products, " + way, Blocks: c.blocks, Unit: "%", Values: slow, Want: c.want})
		if len(pieces) == 0 {
			return fmt.Errorf("%s: no piece came through beside the products", what)
		}
		slices.Sort(pieces)
		b.report.add(sample{Group: "beside a model", Case: what, Way: fmt.Sprintf("p50 and p99 of a piece, %s, %.0f GB/s", way, rate/1e9), Blocks: c.blocks, Unit: "us", Values: []float64{pieces[len(pieces)/2], pieces[len(pieces)*99/100]}})
	}
	return nil
}

// products is what they took, each.
type products struct {
	ms  float64
	err error
}

// besideResult is what both have done meanwhile.
type besideResult struct {
	ms        float64   // a product
	latencies []float64 // of pieces, in microseconds: from the call to the relay's eyes
	rate      float64
}

// beside publishes pieces, paced to so many bytes a second or as fast as the ring goes,
// until the products are done.
func (s *sender) beside(done <-chan products, paced float64, piece func(uint64) []gpu.Copy) (r besideResult, err error) {
	bytes := uint64(0)
	for _, c := range piece(0) {
		bytes += c.Length
	}
	var given [arenaSlots]time.Time
	echo := s.word(echoWord)
	seen := s.seq
	reap := func() {
		for now := echo.Load(); seen < now; seen++ {
			r.latencies = append(r.latencies, float64(time.Since(given[seen%arenaSlots]).Nanoseconds())/1e3)
		}
	}
	start, first := time.Now(), s.seq
	for {
		select {
		case p := <-done:
			r.ms, r.rate = p.ms, float64(bytes)*float64(s.seq-first)/time.Since(start).Seconds()
			if err := s.reach(s.seq); err != nil {
				return r, err
			}
			return r, p.err
		default:
		}
		reap()
		due := paced == 0 || float64(s.seq-first)*float64(bytes) < time.Since(start).Seconds()*paced
		if !due || s.seq-seen >= arenaSlots {
			continue
		}
		s.seq++
		given[(s.seq-1)%arenaSlots] = time.Now()
		if err := s.stream.CopyWrite64(piece((s.seq-1)%arenaSlots), s.bell, s.seq); err != nil {
			return r, err
		}
	}
}
