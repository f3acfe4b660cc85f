package cuda

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/dl"
)

func TestDMABuf(t *testing.T) {
	p, f := fake(t, Options{}, "BATCH_V2", "DRIVER=13000")
	d := first(t, p)
	const chunk = 2 << 20
	own := alloc(t, d, chunk)
	grown, holed, private := f.mapChunks(2, -1, 0, -1), f.mapChunks(2, 1, 0, -1), f.mapChunks(1, -1, 0, -1)
	f.private(private)
	for _, tc := range []struct {
		name         string
		addr, length uint64
		offset       uint64
		err          string
	}{
		{"an allocation", own, chunk, 0, ""},
		{"a part that begins and ends inside of pages", own + 5000, 9000, 5000 - 4096, ""},
		{"across two mappings", grown + chunk - 100, 200, 4096 - 100, ""},
		{"into a hole", holed, 2 * chunk, 0, "unknown memory, want device memory"},
		{"host memory", uint64(addr(f)), 8, 0, "unknown memory, want device memory"},
		{"managed memory", f.managed(chunk), chunk, 0, "managed memory, want device memory"},
		{"memory that was not made for NICs", private, chunk, 0, "without gpuDirectRDMACapable, as by cuMemCreate: cuMemGetHandleForAddressRange: error 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fd, offset, err := p.DMABuf(tc.addr, tc.length)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || errors.Is(err, errors.ErrUnsupported) {
					t.Fatalf("DMABuf = %v, want %q in it, and not unsupported", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			if offset != tc.offset {
				t.Errorf("offset = %d, want %d", offset, tc.offset)
			}
			want := hostBytes(tc.addr, int(tc.length))
			for i := range want {
				want[i] = byte(i * 7)
			}
			again, offset, err := p.DMABuf(tc.addr, tc.length)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(again)
			got := make([]byte, tc.length)
			if n, err := unix.Pread(again, got, int64(offset)); n != len(got) || err != nil || string(got) != string(want) {
				t.Errorf("read %d bytes at %d of the file, %v: not those of the range", n, offset, err)
			}
		})
	}
	if bus, ok := p.Current(); ok {
		t.Errorf("Current = %q, want none: the context was borrowed", bus)
	}
}

func TestDMABufUnsupported(t *testing.T) {
	for _, tc := range []struct {
		name   string
		macros []string
		want   string
	}{
		{"an old driver", []string{"DRIVER=11060"}, "driver 11060 has no cuMemGetHandleForAddressRange"},
		{"a device that cannot", []string{"DMABUF=0"}, "does not export memory of device 0000:1a:00.0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, _ := fake(t, Options{}, tc.macros...)
			at := alloc(t, first(t, p), 4096)
			if _, _, err := p.DMABuf(at, 4096); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("DMABuf = %v, want %q in it", err, tc.want)
			}
		})
	}
}

// TestDMABufOfDriver has the real driver do what it says that it can.
func TestDMABufOfDriver(t *testing.T) {
	p := open(t, Options{})
	d := first(t, p)
	at := alloc(t, d, 4<<20)
	fd, offset, err := p.DMABuf(at+100, 1<<20)
	if !d.Info().DMABuf {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("DMABuf = %d, %v, want unsupported, as the device's attribute says", fd, err)
		}
		t.Skipf("device %s: %v", d.Info().BusID, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if want := uint64(100) + (at % uint64(os.Getpagesize())); offset != want {
		t.Errorf("offset = %d, want %d", offset, want)
	}
	if name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil || !strings.Contains(name, "dmabuf") {
		t.Errorf("the file is %q, %v, want a dma-buf", name, err)
	}
	size, err := unix.Seek(fd, 0, unix.SEEK_END)
	if err != nil || size < 1<<20 {
		t.Errorf("the file has %d bytes, %v, want at least %d", size, err, 1<<20)
	}
	t.Logf("device %s, driver %d: a dma-buf of %d bytes", d.Info().BusID, p.Driver(), size)
}

// mappings is the functions by which an allocator makes memory out of mappings.
type mappings struct {
	create    func(handle *uint64, size uint64, prop *[32]byte, flags uint64) int32
	release   func(handle uint64) int32
	reserve   func(at *uint64, size, alignment, hint, flags uint64) int32
	free      func(at, size uint64) int32
	mapAt     func(at, size, offset, handle, flags uint64) int32
	unmap     func(at, size uint64) int32
	setAccess func(at, size uint64, desc *[12]byte, count uint64) int32
}

func bindMappings(t *testing.T) *mappings {
	t.Helper()
	lib, err := dl.Open("libcuda.so.1")
	if err != nil {
		t.Fatal(err)
	}
	m := &mappings{}
	if err := dl.Bind(lib, 0, []dl.Symbol{
		{Names: []string{"cuMemCreate"}, Target: &m.create},
		{Names: []string{"cuMemRelease"}, Target: &m.release},
		{Names: []string{"cuMemAddressReserve"}, Target: &m.reserve},
		{Names: []string{"cuMemAddressFree"}, Target: &m.free},
		{Names: []string{"cuMemMap"}, Target: &m.mapAt},
		{Names: []string{"cuMemUnmap"}, Target: &m.unmap},
		{Names: []string{"cuMemSetAccess"}, Target: &m.setAccess},
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

// grow maps chunks of 2 MiB of a device, one behind the other.
func (m *mappings) grow(t *testing.T, d *Device, chunks uint64, rdma bool) (at uint64) {
	t.Helper()
	const chunk = 2 << 20
	check := func(call string, code int32) {
		t.Helper()
		if err := d.d.p.check(call, code); err != nil {
			t.Fatal(err)
		}
	}
	ordinal := byte(d.d.ordinal)
	prop := [32]byte{0: 1, 8: 1, 12: ordinal} // pinned, on a device
	if rdma {
		prop[25] = 1 // allocFlags.gpuDirectRDMACapable
	}
	check("cuMemAddressReserve", m.reserve(&at, chunks*chunk, 0, 0, 0))
	for i := range chunks {
		var handle uint64
		check("cuMemCreate", m.create(&handle, chunk, &prop, 0))
		check("cuMemMap", m.mapAt(at+i*chunk, chunk, 0, handle, 0))
		check("cuMemRelease", m.release(handle))
	}
	check("cuMemSetAccess", m.setAccess(at, chunks*chunk, &[12]byte{0: 1, 4: ordinal, 8: 3}, 1)) // read and write
	t.Cleanup(func() {
		check("cuMemUnmap", m.unmap(at, chunks*chunk))
		check("cuMemAddressFree", m.free(at, chunks*chunk))
	})
	return at
}

// TestDMABufOfMappings has memory of cuMemCreate, with the real driver: what was made
// for NICs is exported across mappings, and of the rest it is said what it lacks.
func TestDMABufOfMappings(t *testing.T) {
	p := open(t, Options{})
	d := first(t, p)
	if !d.Info().DMABuf {
		t.Skipf("device %s exports no dma-buf", d.Info().BusID)
	}
	m := bindMappings(t)
	for _, rdma := range []bool{true, false} {
		at := m.grow(t, d, 3, rdma)
		fd, offset, err := p.DMABuf(at+(2<<20)-100, 200)
		t.Logf("made for NICs: %v: file %d, offset %d, %v", rdma, fd, offset, err)
		if err == nil {
			unix.Close(fd)
		}
		if rdma && err != nil {
			t.Error(err)
		}
		if !rdma && err != nil && !strings.Contains(err.Error(), "gpuDirectRDMACapable") {
			t.Errorf("DMABuf = %v, want it to name gpuDirectRDMACapable", err)
		}
	}
}
