package gputest

import (
	"errors"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

func testMemory(t *testing.T, setup Setup) {
	t.Run("alloc", func(t *testing.T) {
		r := setup.open(t)
		sizes := []uint64{1, 255, 256, 4097, 1 << 20}
		addrs := make([]uint64, len(sizes))
		for i, size := range sizes {
			addrs[i] = r.alloc(size)
			if addrs[i]%256 != 0 {
				t.Errorf("%d bytes at %#x: want an alignment of 256", size, addrs[i])
			}
			r.fill(addrs[i], size, uint64(i))
		}
		for i, size := range sizes {
			r.check(addrs[i], size, uint64(i))
		}
	})
	t.Run("too large", func(t *testing.T) {
		r := setup.open(t)
		if addr, err := r.d.Alloc(1 << 46); !errors.Is(err, gpu.ErrMemory) {
			t.Errorf("Alloc = %#x, %v, want %v", addr, err, gpu.ErrMemory)
		}
		if addr, err := r.d.Alloc(0); err == nil {
			t.Errorf("Alloc(0) = %#x, want an error", addr)
		}
	})
	t.Run("a gigabyte that nobody touches", func(t *testing.T) {
		r := setup.open(t)
		addr := r.alloc(1 << 30)
		r.fill(addr+1<<30-3, 3, 1)
		r.check(addr+1<<30-3, 3, 1)
	})
	t.Run("free", func(t *testing.T) {
		r := setup.open(t)
		addr, err := r.d.Alloc(8192)
		r.must(err)
		if err := r.d.Free(addr + 4096); err == nil {
			t.Error("Free of an address inside an allocation: want an error")
		}
		r.must(r.d.Free(addr))
		if err := r.d.Free(addr); err == nil {
			t.Error("second Free: want an error")
		}
	})
	t.Run("copy in and out", func(t *testing.T) {
		r := setup.open(t)
		addr := r.alloc(8192)
		r.fill(addr, 8192, 1)
		r.must(r.d.CopyIn(addr+4095, []byte{1, 2, 3}))
		want := pattern(8192, 1)
		copy(want[4095:], []byte{1, 2, 3})
		got := make([]byte, 8192)
		r.must(r.d.CopyOut(got, addr))
		r.must(compare(got, want))
		r.must(r.d.CopyIn(addr, nil))
		r.must(r.d.CopyOut(nil, addr))
	})
	t.Run("from many goroutines", func(t *testing.T) {
		r := setup.open(t)
		var wg sync.WaitGroup
		for g := range uint64(4) {
			wg.Go(func() {
				for n := range uint64(20) {
					addr, err := r.d.Alloc(4096)
					if err == nil {
						err = fill(r.d, addr, 4096, g<<8|n)
					}
					if err == nil {
						err = check(r.d, addr, 4096, g<<8|n)
					}
					if kind := r.p.Classify(addr, 4096).Kind; err == nil && kind != gpu.DeviceMemory {
						t.Errorf("Classify = %v, want %v", kind, gpu.DeviceMemory)
					}
					if err = errors.Join(err, r.d.Free(addr)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
	t.Run("handles that are none", func(t *testing.T) {
		r := setup.open(t)
		var ones, text gpu.Handle
		for i := range ones {
			ones[i] = 0xff
		}
		copy(text[:], "this is not a handle, it is a sentence of more than that length")
		for _, tc := range []struct {
			name   string
			handle gpu.Handle
		}{
			{"zero", gpu.Handle{}}, {"ones", ones}, {"text", text},
		} {
			if addr, err := r.d.Import(tc.handle, 4096); !errors.Is(err, gpu.ErrHandle) {
				t.Errorf("%s: Import = %#x, %v, want %v", tc.name, addr, err, gpu.ErrHandle)
			}
		}
	})
	t.Run("export", func(t *testing.T) {
		r := setup.open(t)
		addr := r.alloc(8192)
		a, err := r.d.Export(addr)
		r.must(err)
		if b, err := r.d.Export(addr); err != nil || b != a {
			t.Errorf("second Export = %x, %v, want %x", b, err, a)
		}
		if _, err := r.d.Export(addressOf(make([]byte, 1))); err == nil {
			t.Error("Export of host memory: want an error")
		}
	})
	t.Run("map host memory", func(t *testing.T) {
		r := setup.open(t)
		mem, err := unix.Mmap(-1, 0, 2*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
		r.must(err)
		defer unix.Munmap(mem)
		for range 2 {
			_, unmap, err := r.d.MapHost(mem)
			r.must(err)
			if got := r.p.Classify(addressOf(mem), uint64(len(mem))); got.Kind != gpu.HostMemory {
				t.Errorf("Classify of mapped memory = %v, want %v", got.Kind, gpu.HostMemory)
			}
			r.must(unmap())
			if err := unmap(); err == nil {
				t.Error("second unmap: want an error")
			}
		}
	})
}

func testClassify(t *testing.T, setup Setup) {
	r := setup.open(t)
	const size = 1 << 20
	addr := r.alloc(size)
	device := gpu.Range{Kind: gpu.DeviceMemory, BusID: r.d.Info().BusID}
	for _, tc := range []struct {
		name         string
		addr, length uint64
		want         gpu.Range
	}{
		{"whole allocation", addr, size, device},
		{"first byte", addr, 1, device},
		{"last byte", addr + size - 1, 1, device},
		{"inside", addr + 13, 4097, device},
		{"one byte past the end", addr, size + 1, gpu.Range{}},
		{"one byte before the start", addr - 1, 2, gpu.Range{}},
		{"around it", addr - 4096, size + 8192, gpu.Range{}},
		{"far past the end", addr + 1, 1 << 46, gpu.Range{}},
		{"wraps", addr, ^uint64(0), gpu.Range{}},
		{"empty", addr, 0, gpu.Range{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := r.p.Classify(tc.addr, tc.length); got != tc.want {
				t.Errorf("Classify = %v %q, want %v %q", got.Kind, got.BusID, tc.want.Kind, tc.want.BusID)
			}
		})
	}
	// A driver may or may not know of plain host memory; what it must not do is
	// take it for a device's.
	for _, tc := range []struct {
		name         string
		addr, length uint64
	}{
		{"Go memory", addressOf(make([]byte, 100)), 100}, {"null", 0, 1}, {"the last page", ^uint64(4095), 4095},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if kind := r.p.Classify(tc.addr, tc.length).Kind; kind != gpu.UnknownMemory && kind != gpu.HostMemory {
				t.Errorf("Classify = %v, want %v or %v", kind, gpu.UnknownMemory, gpu.HostMemory)
			}
		})
	}
	t.Run("freed", func(t *testing.T) {
		addr, err := r.d.Alloc(size)
		r.must(err)
		r.must(r.d.Free(addr))
		if got := r.p.Classify(addr, size); got.Kind == gpu.DeviceMemory {
			t.Errorf("Classify = %v, want another", got.Kind)
		}
	})
}
