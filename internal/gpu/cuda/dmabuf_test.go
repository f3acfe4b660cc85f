package cuda

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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
