package gputest

import (
	"errors"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
)

func testPeer(t *testing.T, setup Setup) {
	t.Run("child imports", func(t *testing.T) { testChildImports(t, setup) })
	t.Run("import from a child", func(t *testing.T) { testImportFromChild(t, setup) })
	t.Run("lane", func(t *testing.T) { testLane(t, setup) })
	for _, tc := range []struct {
		name string
		end  func(c *child, addr uint64)
	}{
		{"owner has freed it", func(c *child, addr uint64) { c.ask(request{Op: "free", Addr: addr}) }},
		{"owner has exited", func(c *child, addr uint64) { c.ask(request{Op: "free", Addr: addr}); c.exit() }},
		{"owner was killed", func(c *child, _ uint64) { c.kill() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := setup.open(t)
			_, _, file := r.page()
			c := r.child(file)
			addr := c.ask(request{Op: "alloc", Size: 1 << 20}).Addr
			h := gpu.Handle(c.ask(request{Op: "export", Addr: addr}).Handle)
			tc.end(c, addr)
			if addr, err := r.d.Import(h, 1<<20); !errors.Is(err, gpu.ErrHandle) {
				t.Errorf("Import = %#x, %v, want %v", addr, err, gpu.ErrHandle)
			}
		})
	}
}

// testChildImports shares memory of this process: each sees what the other writes,
// by copies from the host and by streams.
func testChildImports(t *testing.T, setup Setup) {
	r := setup.open(t)
	_, _, file := r.page()
	c := r.child(file)
	const size = 3<<20 + 12345
	addr := r.alloc(size)
	h, err := r.d.Export(addr)
	r.must(err)

	r.fill(addr, size, 1)
	theirs := c.ask(request{Op: "import", Handle: h[:], Size: size}).Addr
	c.ask(request{Op: "check", Addr: theirs, Size: size, Seed: 1})
	want := gpu.Range{Kind: gpu.DeviceMemory, BusID: r.d.Info().BusID}
	if got := c.ask(request{Op: "classify", Addr: theirs, Size: size}).Range; got != want {
		t.Errorf("the import is %v, want %v", got, want)
	}

	c.ask(request{Op: "fill", Addr: theirs, Size: size, Seed: 2})
	r.check(addr, size, 2)

	own := c.ask(request{Op: "alloc", Size: size}).Addr
	c.ask(request{Op: "fill", Addr: own, Size: size, Seed: 3})
	c.ask(request{Op: "copy", Addr: theirs, Src: own, Size: size})
	r.check(addr, size, 3)

	c.ask(request{Op: "close import", Addr: theirs})
	c.ask(request{Op: "free", Addr: own})
	r.check(addr, size, 3)
}

// testImportFromChild shares memory of the child.
func testImportFromChild(t *testing.T, setup Setup) {
	r := setup.open(t)
	_, _, file := r.page()
	c := r.child(file)
	s := r.stream()
	const size = 8 << 20
	theirs := c.ask(request{Op: "alloc", Size: size}).Addr
	c.ask(request{Op: "fill", Addr: theirs, Size: size, Seed: 1})
	h := gpu.Handle(c.ask(request{Op: "export", Addr: theirs}).Handle)

	src := r.alloc(size)
	for lap := range uint64(3) { // an import can be closed and made again
		seed := 10 + 2*lap
		addr, err := r.d.Import(h, size)
		r.must(err)
		if got := r.p.Classify(addr, size); got.Kind != gpu.DeviceMemory || got.BusID != r.d.Info().BusID {
			t.Errorf("the import is %v, want %v of %s", got, gpu.DeviceMemory, r.d.Info().BusID)
		}
		r.fill(src, size, seed)
		r.copyNow(s, gpu.Copy{Dst: addr, Src: src, Length: size})
		c.ask(request{Op: "check", Addr: theirs, Size: size, Seed: seed})
		c.ask(request{Op: "fill", Addr: theirs, Size: size, Seed: seed + 1})
		r.copyNow(s, gpu.Copy{Dst: src, Src: addr, Length: size})
		r.check(src, size, seed+1)
		r.must(r.d.CloseImport(addr))
		if err := r.d.CloseImport(addr); err == nil {
			t.Error("second CloseImport: want an error")
		}
	}
	c.ask(request{Op: "free", Addr: theirs})
}

// testLane is the use that all this is for: copies into another process's arena,
// each followed by its number in shared memory, and the other process finds the
// bytes in place when it sees the number.
func testLane(t *testing.T, setup Setup) {
	r := setup.open(t)
	if !r.d.Info().StreamMemOps {
		t.Skip("the device has no stream memory operations")
	}
	words, bell, file := r.page()
	c := r.child(file)
	s := r.stream()
	const slots, laps, size = 18, 4, 512 << 10
	theirs := c.ask(request{Op: "alloc", Size: slots * size}).Addr
	arena, err := r.d.Import(gpu.Handle(c.ask(request{Op: "export", Addr: theirs}).Handle), slots*size)
	r.must(err)
	src := r.alloc(slots * size)

	for lap := range uint64(laps) {
		first := lap*slots + 1
		for i := range uint64(slots) {
			r.fill(src+i*size, size, first+i)
		}
		c.send(request{Op: "watch", Addr: theirs, Size: size, Seed: first, Count: slots})
		r.must(eventually("child watches", func() (bool, error) { return word(words, 1).Load() == first, nil }))
		for i := range uint64(slots) {
			half := uint64(size / 2)
			r.must(s.Copy([]gpu.Copy{
				{Dst: arena + i*size + half, Src: src + i*size + half, Length: half},
				{Dst: arena + i*size, Src: src + i*size, Length: half},
			}))
			r.must(s.Write64(bell, first+i))
		}
		c.answer()
	}
	r.drain(s)
	r.must(r.d.CloseImport(arena))
	c.ask(request{Op: "free", Addr: theirs})
}
