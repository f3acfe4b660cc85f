package railhop_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/pattern"
)

// counted counts the descriptors that a sender commits.
type counted struct {
	lane.Mem
	commits *atomic.Int64
}

func (m counted) Store(w lane.Word, v uint64) {
	if w.Kind == lane.Commit {
		m.commits.Add(1)
	}
	m.Mem.Store(w, v)
}

// slotsOf returns hooks that count, with pieces that fill their slots.
func slotsOf(n *atomic.Int64) *railhop.Hooks {
	return &railhop.Hooks{NoCut: true, Lane: func(end railhop.End, m lane.Mem) lane.Mem {
		if end == railhop.SenderEnd {
			return counted{m, n}
		}
		return m
	}}
}

const slot = 8 << 20

// TestSizes is case D17: sizes, and the slots of 8 MiB that they take.
func TestSizes(t *testing.T) {
	target, name := start(t, targetSettings(), t.TempDir())
	const arena = 126 * slot
	r := newRig(t, target, name, arena+1, settings{"MC_PXN_SLOT_SIZE": "8MiB"})
	defer r.log.end()
	r.log.min = slog.LevelWarn
	var slots atomic.Int64
	r.open(options{hooks: slotsOf(&slots), set: settings{"MC_PXN_SLOT_SIZE": "8MiB", "MC_PXN_CREDIT_TIMEOUT_MS": "60000"}})
	r.seed = 17
	if err := r.sender.fillAll(r.src, r.size, r.seed); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		size  uint64
		slots int64
	}{
		{"nothing", 0, 0},
		{"a byte", 1, 1},
		{"a slot", slot, 1},
		{"a slot and a byte", slot + 1, 2},
		{"a lane", 18 * slot, 18},
		{"a lane and a byte", 18*slot + 1, 19},
		{"the arena and a byte", arena + 1, 127},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.size > 18*slot+1 {
				t.Skip("2 GiB of memory are moved")
			}
			// The last byte before and the first behind must not change.
			edge := min(c.size+1, r.size)
			target.do(command{Op: "poison", Addr: r.dst, Size: edge, Byte: 0xa5})
			before, was := slots.Load(), r.sender.engine.Stats()
			if err := r.sender.engine.Write(t.Context(), r.id, r.src, r.dst, c.size); err != nil {
				t.Fatal(err)
			}
			if n := slots.Load() - before; n != c.slots {
				t.Errorf("%d slots were used, want %d", n, c.slots)
			}
			if c.size > 0 {
				if bad := target.do(command{Op: "verify", Addr: r.dst, Size: c.size, Seed: r.seed}).Bad; bad > 0 {
					t.Errorf("%d bytes differ", bad)
				}
			}
			s := r.sender.engine.Stats()
			if got := s.Relayed.Bytes - was.Relayed.Bytes; got != c.size {
				t.Errorf("%d bytes were relayed, want %d; fallbacks %v", got, c.size, s.Fallbacks)
			}
			balance(t, s)
		})
	}
	if err := r.sender.close(); err != nil {
		t.Error(err)
	}
}

// TestLayouts is the rest of case D17: where source and destination lie.
func TestLayouts(t *testing.T) {
	target, name := start(t, targetSettings(), t.TempDir())
	const size = 64 << 20
	r := newRig(t, target, name, size, settings{"MC_PXN_SLOT_SIZE": "8MiB"})
	defer r.log.end()
	r.log.min = slog.LevelWarn
	var slots atomic.Int64
	r.open(options{hooks: slotsOf(&slots), set: settings{"MC_PXN_SLOT_SIZE": "8MiB", "MC_PXN_CREDIT_TIMEOUT_MS": "60000"}})

	t.Run("a source in two registrations", func(t *testing.T) {
		src, err := r.sender.dev.Alloc(2 * small)
		if err != nil {
			t.Fatal(err)
		}
		r.sender.mem = append(r.sender.mem, src)
		if err := r.sender.registerParts(src, 2*small, small); err != nil {
			t.Fatal(err)
		}
		writeAndCompare(t, r, src, r.dst, 2*small)
	})
	t.Run("a destination in two buffers", func(t *testing.T) {
		dst := target.do(command{Op: "alloc", Size: 2 * small}).Addr
		target.do(command{Op: "register", Addr: dst, Size: 2 * small, Part: small})
		was, before := r.sender.engine.Stats().Relayed.Bytes, slots.Load()
		writeAndCompare(t, r, r.src, dst, 2*small)
		if got, n := r.sender.engine.Stats().Relayed.Bytes-was, slots.Load()-before; got != 2*small || n != 1 {
			t.Errorf("%d bytes were relayed by %d slots, want %d by 1", got, n, 2*small)
		}
	})
	t.Run("a destination outside", func(t *testing.T) {
		const far = 0xb7869c1cb5cae9f3
		err := r.sender.engine.Write(t.Context(), r.id, r.src, far, 4096)
		want := []string{fmt.Sprintf("%#x", uint64(far)), fmt.Sprintf("%#x", r.dst), fmt.Sprintf("%#x", r.dst+size)}
		if !errors.Is(err, railhop.ErrAddressNotFound) {
			t.Fatalf("got %v, want that the address is not found", err)
		}
		for _, w := range want[:1] {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("error %q does not name %s", err, w)
			}
		}
		if !strings.Contains(err.Error(), "nearest") {
			t.Errorf("error %q does not name the nearest buffer", err)
		}
	})
	t.Run("a source in host memory", func(t *testing.T) {
		buf := make([]byte, small)
		src, err := r.sender.engine.RegisterBytes(buf)
		if err != nil {
			t.Fatal(err)
		}
		was := r.sender.engine.Stats().DirectCrossRail.Bytes
		if err := r.sender.engine.Write(t.Context(), r.id, src, r.dst, small); err != nil {
			t.Fatal(err)
		}
		if got := r.sender.engine.Stats().DirectCrossRail.Bytes - was; got != small {
			t.Errorf("%d bytes went direct, want %d", got, small)
		}
	})
	t.Run("pages to adjacent destinations", func(t *testing.T) { pages(t, r, &slots, page) })
	t.Run("pages to scattered destinations", func(t *testing.T) { pages(t, r, &slots, 2*page) })
	balance(t, r.sender.engine.Stats())
	if err := r.sender.close(); err != nil {
		t.Error(err)
	}
}

// writeAndCompare writes fresh bytes from one address to another.
func writeAndCompare(t *testing.T, r *rig, src, dst, size uint64) {
	t.Helper()
	r.seed++
	if err := r.sender.fillAll(src, size, r.seed); err != nil {
		t.Fatal(err)
	}
	if err := r.sender.engine.Write(t.Context(), r.id, src, dst, size); err != nil {
		t.Fatal(err)
	}
	if bad := r.target.do(command{Op: "verify", Addr: dst, Size: size, Seed: r.seed}).Bad; bad > 0 {
		t.Errorf("%d bytes differ", bad)
	}
}

const page = 4096

// pages writes 160,000 pages, scattered in the source, to destinations a stride
// apart, round and round a region.
func pages(t *testing.T, r *rig, slots *atomic.Int64, stride uint64) {
	const requests = 160_000
	n := r.size / stride // places
	r.seed++
	from := func(i uint64) uint64 { return r.src + i*7919%n*page } // 7919 is prime
	buf := make([]byte, page)
	for i := range n {
		pattern.Fill(buf, r.seed, i*page)
		if err := r.sender.dev.CopyIn(from(i), buf); err != nil {
			t.Fatal(err)
		}
	}
	r.poison()
	reqs := make([]railhop.Request, requests)
	for k := range reqs {
		i := uint64(k) % n
		reqs[k] = railhop.Request{Op: railhop.Write, Source: from(i), Target: r.id, TargetAddr: r.dst + i*stride, Length: page}
	}
	was, before := r.sender.engine.Stats().Relayed.Bytes, slots.Load()
	b := r.sender.engine.NewBatch(requests)
	if err := b.Submit(reqs); err != nil {
		t.Fatal(err)
	}
	r.wait(b)
	c := command{Op: "verify", Addr: r.dst, Size: r.size, Seed: r.seed}
	if stride > page {
		c.Part, c.Stride, c.Byte = page, stride, 0xa5
	}
	if bad := r.target.do(c).Bad; bad > 0 {
		t.Errorf("%d bytes differ", bad)
	}
	s := r.sender.engine.Stats()
	if got := s.Relayed.Bytes - was; got != requests*page {
		t.Errorf("%d bytes were relayed, want %d; fallbacks: %v", got, requests*page, s.Fallbacks)
	}
	const want = (requests*page + slot - 1) / slot
	if n := slots.Load() - before; n != want {
		t.Errorf("%d slots were used, want %d", n, want)
	}
}

// TestPermutedTopology is case D01: a file that pairs GPUs and NICs otherwise
// than by their numbers.
func TestPermutedTopology(t *testing.T) {
	const file = `{"cuda:0":[["mlx5_4"],["mlx5_5"]], "cuda:1":[["mlx5_5"],["mlx5_4"]],
	               "cuda:4":[["mlx5_0"],["mlx5_1"]], "cuda:5":[["mlx5_1"],["mlx5_0"]]}`
	dir := t.TempDir()
	path := filepath.Join(dir, "topology.json")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	gpus := func(visible ...int) string {
		var all []string
		for _, i := range visible {
			all = append(all, fmt.Sprintf("0000:%02x:00.0,index=%d", 0x10+i, i))
		}
		return strings.Join(all, ";")
	}
	host := func(net int, gpus string) settings {
		s := rankSettings("g", 0)
		s["RAILHOP_SOFT_GPUS"], s["MC_CUSTOM_TOPO_JSON"], s["MC_PXN_SLOT_SIZE"] = gpus, path, "256KiB"
		s["RAILHOP_SOFT_NICS"] = ""
		for _, i := range []int{0, 1, 4, 5} {
			s["RAILHOP_SOFT_NICS"] += fmt.Sprintf("mlx5_%d=127.0.%d.%d;", i, net, i+1)
		}
		return s
	}
	all := gpus(0, 1, 2, 3, 4, 5, 6, 7)
	b, name := start(t, with(host(3, gpus(0, 5)), settings{"MC_PXN_ENABLE": ""}), dir)
	b0 := b.do(command{Op: "memory", Size: small}).Addr
	b5 := b.do(command{Op: "memory", Size: small, GPU: 1}).Addr
	// The rank of GPU 5, which sees no other, and as a decoy that of GPU 1.
	relay, _ := start(t, host(2, gpus(5)), dir)
	decoy, _ := start(t, host(2, gpus(1)), dir)

	open := func(set settings) *rig {
		r := &rig{T: t, registry: dir, target: b, name: name, size: small, log: &records{seen: make(map[string]int)}, seed: 1}
		t.Cleanup(r.log.end)
		r.open(options{set: set})
		return r
	}
	// only checks that a write went direct, by one NIC to another.
	only := func(t *testing.T, s railhop.Stats, nic string) {
		t.Helper()
		if len(s.Direct.Links) != 1 || s.Direct.Links[0].NIC != nic || s.Direct.Links[0].Peer != name+"@"+nic || s.DirectSameRail.Bytes != small {
			t.Errorf("went by %+v, want %s at either end", s.Direct.Links, nic)
		}
	}
	t.Run("GPU 0", func(t *testing.T) {
		r := open(host(2, all))
		r.dst = b0
		r.write()
		s := r.sender.engine.Stats()
		only(t, s, "mlx5_4")
		r.dst = b5
		r.write()
		s = r.sender.engine.Stats()
		served := relay.do(command{Op: "stats"}).Stats.Served
		if s.Relayed.Bytes != small || sum(served) != small {
			t.Errorf("%d bytes were relayed, and %d by the rank of GPU 5; fallbacks %v", s.Relayed.Bytes, sum(served), s.Fallbacks)
		}
		if n := sum(decoy.do(command{Op: "stats"}).Stats.Served); n != 0 {
			t.Errorf("%d bytes were relayed by the rank of GPU 1", n)
		}
		if err := r.sender.close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("CUDA_VISIBLE_DEVICES=4,5", func(t *testing.T) {
		r := open(host(2, gpus(4, 5)))
		dev, err := r.sender.gpus.Open("0000:15:00.0")
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		src, err := dev.Alloc(small)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Free(src)
		if err := r.sender.engine.Register(src, small, ""); err != nil {
			t.Fatal(err)
		}
		r.dst = b5
		writeAndCompare(t, r, src, b5, small)
		only(t, r.sender.engine.Stats(), "mlx5_1")
		if err := r.sender.engine.Unregister(src); err != nil {
			t.Error(err)
		}
		if err := r.sender.close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("a NIC that is not there", func(t *testing.T) {
		bad := filepath.Join(dir, "bad.json")
		if err := os.WriteFile(bad, []byte(`{"cuda:0":[["mlx5_4"],["mlx5_9"]]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		set := host(2, all)
		set["MC_CUSTOM_TOPO_JSON"] = bad
		p, err := openWith(options{set: set, registry: dir})
		if err == nil {
			p.close()
			t.Fatal("the engine starts with a topology that names a NIC which is not there")
		}
		for _, want := range []string{"mlx5_9", bad, "cuda:0"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not name %q", err, want)
			}
		}
	})
}

func sum(all []uint64) (n uint64) {
	for _, x := range all {
		n += x
	}
	return n
}
