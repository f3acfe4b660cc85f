package railhop_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/nic/softnic"
	"github.com/railhop/railhop/internal/pattern"
)

// openTCP starts an engine on TCP with host memory.
func openTCP(t *testing.T, change func(*railhop.Config)) *railhop.Engine {
	t.Helper()
	cfg := railhop.Defaults()
	cfg.Host, cfg.Protocol = "127.0.0.1", "tcp"
	if change != nil {
		change(&cfg)
	}
	e, err := railhop.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func registerBytes(t *testing.T, e *railhop.Engine, n int) (b []byte, addr uint64) {
	t.Helper()
	b = make([]byte, n)
	addr, err := e.RegisterBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	return b, addr
}

func openSegment(t *testing.T, e *railhop.Engine, name string) railhop.SegmentID {
	t.Helper()
	id, err := e.OpenSegment(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestTCP(t *testing.T) {
	t.Parallel()
	a, b := openTCP(t, nil), openTCP(t, nil)
	const size = 3 << 20
	src, srcAddr := registerBytes(t, a, size)
	dst, dstAddr := registerBytes(t, b, size)
	pattern.Fill(src, 1, 0)
	id := openSegment(t, a, b.Name())
	if err := a.Write(t.Context(), id, srcAddr, dstAddr, size); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(src, dst) {
		t.Fatal("the target's memory is not as written")
	}
	clear(src)
	if err := a.Read(t.Context(), id, srcAddr, dstAddr, size); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(src, dst) {
		t.Fatal("what was read is not the target's memory")
	}

	// To itself, to memory registered later, from memory that is not registered.
	if err := a.Write(t.Context(), railhop.LocalSegment, srcAddr, srcAddr+size/2, 1000); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(src[:1000], src[size/2:size/2+1000]) {
		t.Error("a write to the own segment is not in place")
	}
	later, laterAddr := registerBytes(t, b, 4096)
	if err := a.Write(t.Context(), id, srcAddr, laterAddr, 4096); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(later, src[:4096]) {
		t.Error("memory registered later is not as written")
	}
	local := railhop.Heap(64)
	if err := a.Read(t.Context(), id, railhop.AddressOf(local), dstAddr, 64); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(local, dst[:64]) {
		t.Error("a read to memory that is not registered is not in place")
	}

	// Out of bounds, and withdrawn.
	before := bytes.Clone(dst)
	if err := a.Write(t.Context(), id, srcAddr, dstAddr+1, size); !errors.Is(err, railhop.ErrAddressNotFound) {
		t.Errorf("write past the end: got %v, want %v", err, railhop.ErrAddressNotFound)
	}
	if err := b.Unregister(dstAddr); err != nil {
		t.Fatal(err)
	}
	clear(src)
	if err := a.Write(t.Context(), id, srcAddr, dstAddr, size); !errors.Is(err, railhop.ErrAddressNotFound) {
		t.Errorf("write to withdrawn memory: got %v, want %v", err, railhop.ErrAddressNotFound)
	}
	if !bytes.Equal(before, dst) {
		t.Error("something was written")
	}
	st := a.Stats()
	// Failed is the process's: tests beside this one count too.
	if st.TCP.Ops == 0 || st.Failed.Ops < 2 || b.Stats().TCPServed.Writes == 0 {
		t.Errorf("stats: %+v, served %+v", st, b.Stats().TCPServed)
	}
}

func TestTCPBatches(t *testing.T) {
	t.Parallel()
	a, b := openTCP(t, nil), openTCP(t, nil)
	const callers, pieces, size = 4, 1500, 512
	id := openSegment(t, a, b.Name())
	var wg sync.WaitGroup
	for c := range callers {
		src, from := registerBytes(t, a, pieces*size)
		dst, to := registerBytes(t, b, pieces*size)
		reqs := make([]railhop.Request, pieces)
		for i := range reqs {
			at := uint64(i * size)
			reqs[i] = railhop.Request{Op: railhop.Write, Source: from + at, Target: id, TargetAddr: to + pieces*size - size - at, Length: size}
		}
		batch := a.NewBatch(pieces)
		wg.Go(func() {
			for round := range 5 {
				pattern.Fill(src, uint64(c), uint64(round))
				if err := batch.Transfer(t.Context(), reqs); err != nil {
					t.Error(err)
					return
				}
				for i := range reqs {
					at := i * size
					if !bytes.Equal(src[at:at+size], dst[pieces*size-size-at:pieces*size-at]) {
						t.Errorf("caller %d, round %d: piece %d is not in place", c, round, i)
						return
					}
				}
				if err := batch.Transfer(t.Context(), reqs[:1]); !errors.Is(err, railhop.ErrTooManyRequests) {
					t.Errorf("a request beyond the batch's room: %v, want ErrTooManyRequests", err)
				}
				if err := batch.Reset(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestTCPGone(t *testing.T) {
	t.Parallel()
	a, b := openTCP(t, nil), openTCP(t, nil)
	_, src := registerBytes(t, a, 4096)
	_, dst := registerBytes(t, b, 4096)
	id := openSegment(t, a, b.Name())
	if err := a.Write(t.Context(), id, src, dst, 4096); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := a.Write(ctx, id, src, dst, 4096); err == nil || ctx.Err() != nil {
		t.Errorf("write to an engine that is gone: %v", err)
	}
	if _, err := a.OpenSegment(ctx, b.Name()); err != nil {
		t.Errorf("it was open: %v", err)
	}
}

func TestTCPFromAndToGPUs(t *testing.T) {
	t.Parallel()
	gpus, err := softgpu.New(softgpu.Options{Devices: must(softgpu.ParseDevices("2"))})
	if err != nil {
		t.Fatal(err)
	}
	withGPUs := func(c *railhop.Config) { c.GPUs = gpus }
	a, b := openTCP(t, withGPUs), openTCP(t, withGPUs)
	infos, err := gpus.Devices()
	if err != nil {
		t.Fatal(err)
	}
	const size = 5<<20 + 77
	var addrs [2]uint64
	for i, e := range []*railhop.Engine{a, b} {
		dev, err := gpus.Open(infos[i].BusID)
		if err != nil {
			t.Fatal(err)
		}
		if addrs[i], err = dev.Alloc(size); err != nil {
			t.Fatal(err)
		}
		if err := e.Register(addrs[i], size, ""); err != nil {
			t.Fatal(err)
		}
	}
	host, hostAddr := registerBytes(t, a, size)
	pattern.Fill(host, 7, 0)
	id, own := openSegment(t, a, b.Name()), railhop.LocalSegment
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"host to GPU", func() error { return a.Write(t.Context(), id, hostAddr, addrs[1], size) }},
		{"GPU to GPU", func() error { return a.Read(t.Context(), id, addrs[0], addrs[1], size) }},
		{"GPU to host", func() error { clear(host); return a.Write(t.Context(), own, addrs[0], hostAddr, size) }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
	}
	if first, n := pattern.Mismatch(host, 7, 0); n > 0 {
		t.Errorf("%d bytes differ, the first at %d", n, first)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestTransportChoice(t *testing.T) {
	t.Parallel()
	const nics = "mlx5_0=127.0.0.1"
	for _, tt := range []struct {
		name, protocol string
		nics           string
		set            settings
		want, warns    string
		fails          bool
	}{
		{name: "auto without NIC", want: "tcp", warns: "no NIC"},
		{name: "auto", nics: nics, want: "rdma"},
		{name: "tcp without NIC", protocol: "tcp", want: "tcp"},
		{name: "tcp beside NICs", protocol: "tcp", nics: nics, want: "tcp", warns: "not used"},
		{name: "rdma", protocol: "rdma", nics: nics, want: "rdma"},
		{name: "rdma without NIC", protocol: "rdma", want: "tcp", warns: "cannot be had"},
		{name: "forced", protocol: "rdma", nics: nics, set: settings{"MC_FORCE_TCP": "0"}, want: "tcp"},
		{name: "rdma or nothing", protocol: "rdma", set: settings{"MC_FORCE_HCA": ""}, fails: true},
		{name: "verbs by name", protocol: "rdma", set: settings{"RAILHOP_PROVIDERS": "verbs"}, fails: true},
		{name: "unknown word", protocol: "no_such_protocol", want: "tcp", warns: "not known"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log strings.Builder
			env, _ := config.Load(func(name string) (string, bool) { v, ok := tt.set[name]; return v, ok })
			cfg := railhop.Config{Host: "127.0.0.1", Protocol: tt.protocol, Settings: env, Registry: t.TempDir()}
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			if tt.nics != "" {
				cfg.NICs = must(softnic.New(softnic.Options{Devices: must(softnic.ParseDevices(tt.nics))}))
			}
			e, err := railhop.Open(cfg)
			if tt.fails {
				if !errors.Is(err, railhop.ErrNoProvider) {
					t.Fatalf("got error %v, want %v", err, railhop.ErrNoProvider)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			text := log.String()
			if strings.Count(text, "transport="+tt.want) == 0 || tt.warns == "" && strings.Contains(text, "level=WARN") || !strings.Contains(text, tt.warns) {
				t.Errorf("want transport %s and a warning with %q, logged:\n%s", tt.want, tt.warns, text)
			}
		})
	}
}
