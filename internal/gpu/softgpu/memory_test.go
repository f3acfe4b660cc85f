package softgpu

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/gpu"
)

// ownerArg, as the only argument, makes the test binary a process that owns an
// allocation until its input ends.
const ownerArg = "softgpu-owner"

const ownerSize = 64 << 10

func serveOwner() error {
	p, err := New(Options{Devices: Uniform(2)})
	if err != nil {
		return err
	}
	d, err := p.Open("0000:a1:00.0")
	if err != nil {
		return err
	}
	addr, err := d.Alloc(ownerSize)
	if err != nil {
		return err
	}
	if err := d.CopyIn(addr, []byte("owner")); err != nil {
		return err
	}
	h, err := d.Export(addr)
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(h[:]))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// owner starts a process that owns an allocation of its device a1.
func owner(t *testing.T) (*exec.Cmd, gpu.Handle) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe, ownerArg)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	var h gpu.Handle
	if n, err := hex.Decode(h[:], []byte(strings.TrimSpace(line))); err != nil || n != len(h) {
		t.Fatalf("handle %q: %v", line, err)
	}
	return cmd, h
}

func TestImportFromAStoppedOwner(t *testing.T) {
	p, d := open(t, Options{})
	cmd, h := owner(t)
	must(t, cmd.Process.Signal(unix.SIGSTOP))
	must(t, unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
	addr, err := d.Import(h, ownerSize)
	must(t, err)
	got := make([]byte, 5)
	must(t, d.CopyOut(got, addr))
	if string(got) != "owner" {
		t.Errorf("memory = %q, want owner", got)
	}
	// The exporter's device, which this process does not even have.
	want := gpu.Range{Kind: gpu.DeviceMemory, BusID: "0000:a1:00.0"}
	if got := p.Classify(addr, ownerSize); got != want {
		t.Errorf("Classify = %v, want %v", got, want)
	}
	must(t, cmd.Process.Kill())
	must(t, d.CopyIn(addr, []byte("still"))) // what is mapped stays mapped
	must(t, d.CloseImport(addr))
}

func TestImportFromAZombie(t *testing.T) {
	_, d := open(t, Options{})
	cmd, h := owner(t)
	must(t, cmd.Process.Kill())
	must(t, unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	_, err := d.Import(h, ownerSize)
	if !errors.Is(err, gpu.ErrHandle) || !strings.Contains(err.Error(), "not yet reaped") {
		t.Errorf("Import = %v, want %v, and that its owner is dead", err, gpu.ErrHandle)
	}
}

func TestImportRefusals(t *testing.T) {
	p, d := open(t, Options{})
	addr := alloc(t, d, 8192)
	h, err := d.Export(addr)
	must(t, err)
	good, err := decode(h)
	must(t, err)

	unsealed, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC)
	must(t, err)
	defer unix.Close(unsealed)
	must(t, unix.Ftruncate(unsealed, 8192))
	var st unix.Stat_t
	must(t, unix.Fstat(unsealed, &st))
	var pipe [2]int
	must(t, unix.Pipe(pipe[:]))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])

	for _, tc := range []struct {
		name string
		edit func(*source)
		want string
	}{
		{"no such process", func(s *source) { s.owner.pid = 1<<22 + 1 }, "owner is gone"},
		{"pid used again", func(s *source) { s.owner.start++ }, "used again"},
		{"descriptor closed", func(s *source) { s.fd = 1 << 20 }, "no such file"},
		{"descriptor of a pipe", func(s *source) { s.fd = int32(pipe[0]) }, "regular file"},
		{"descriptor of another file", func(s *source) { s.inode++ }, "was freed"},
		{"another size", func(s *source) { s.size += 4096 }, "8192 bytes, want 12288"},
		{"unsealed", func(s *source) { s.fd, s.inode = int32(unsealed), st.Ino }, "not sealed"},
		{"no pid", func(s *source) { s.owner.pid = 0 }, "not valid"},
		{"negative descriptor", func(s *source) { s.fd = -1 }, "not valid"},
		{"no size", func(s *source) { s.size = 0 }, "not valid"},
		{"huge", func(s *source) { s.size = 1<<47 + 1 }, "not valid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := good
			tc.edit(&s)
			_, err := d.Import(s.encode(), s.size)
			if !errors.Is(err, gpu.ErrHandle) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Import = %v, want %v with %q", err, gpu.ErrHandle, tc.want)
			}
		})
	}
	t.Run("any bit", func(t *testing.T) {
		for bit := range 8 * len(h) {
			bad := h
			bad[bit/8] ^= 1 << (bit % 8)
			if _, err := d.Import(bad, 8192); !errors.Is(err, gpu.ErrHandle) {
				t.Errorf("bit %d: Import = %v, want %v", bit, err, gpu.ErrHandle)
			}
		}
	})
	t.Run("size that the importer did not expect", func(t *testing.T) {
		if _, err := d.Import(h, 4096); !errors.Is(err, gpu.ErrHandle) {
			t.Errorf("Import = %v, want %v", err, gpu.ErrHandle)
		}
	})
	if n := len(p.memory.regions()); n != 1 {
		t.Errorf("%d regions, want the 1 allocation", n)
	}
}

func TestImportInTheSameProcess(t *testing.T) {
	p, err := New(Options{Devices: Uniform(2)})
	must(t, err)
	a, b := openOn(t, p, 0), openOn(t, p, 1)
	src, slot := alloc(t, a, 4096), alloc(t, b, 4096)
	h, err := b.Export(slot)
	must(t, err)
	arena, err := a.Import(h, 4096)
	must(t, err)
	if got, want := p.Classify(arena, 4096).BusID, b.Info().BusID; got != want {
		t.Errorf("the import is of %s, want %s", got, want)
	}
	must(t, a.CopyIn(src, []byte("hop")))
	s := stream(t, a)
	must(t, s.Copy([]gpu.Copy{{Dst: arena, Src: src, Length: 3}}))
	s.Close()
	got := make([]byte, 3)
	must(t, b.CopyOut(got, slot))
	if string(got) != "hop" {
		t.Errorf("slot = %q, want hop", got)
	}
	for what, err := range map[string]error{
		"Free of an import":                a.Free(arena),
		"CloseImport of an allocation":     b.CloseImport(slot),
		"Free on another device":           a.Free(slot),
		"CloseImport on another device":    b.CloseImport(arena),
		"CloseImport of an address inside": a.CloseImport(arena + 8),
		"Free of what was never there":     a.Free(8),
		"second Free": errors.Join(func() error {
			addr, err := a.Alloc(1)
			must(t, err)
			must(t, a.Free(addr))
			return a.Free(addr)
		}()),
	} {
		if err == nil {
			t.Errorf("%s: want an error", what)
		}
	}
	if _, err := a.Export(arena); err == nil {
		t.Error("Export of an import: want an error")
	}
	must(t, a.CloseImport(arena))
}

func TestMaxBytes(t *testing.T) {
	devices := Uniform(1)
	devices[0].MaxBytes = 10 << 20
	_, d := open(t, Options{Devices: devices})
	a := alloc(t, d, 6<<20)
	for _, size := range []uint64{4<<20 + 1, 1 << 40, ^uint64(0)} {
		if addr, err := d.Alloc(size); !errors.Is(err, gpu.ErrMemory) {
			t.Errorf("Alloc(%d) = %#x, %v, want %v", size, addr, err, gpu.ErrMemory)
		}
	}
	b := alloc(t, d, 4<<20)
	must(t, d.Free(a))
	alloc(t, d, 6<<20)
	must(t, d.Free(b))
	if c := d.Counts(); c != (Counts{Allocs: 1}) {
		t.Errorf("Counts = %+v, want 1 allocation", c)
	}
}

func TestClassifyHostMemory(t *testing.T) {
	p, d := open(t, Options{})
	a := alloc(t, d, 100)
	page := os.Getpagesize()
	mem, err := unix.MmapPtr(-1, 0, nil, uintptr(3*page), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	host := uint64(uintptr(mem))
	hole := host + uint64(page)
	must(t, unix.MunmapPtr(pointerTo(hole), uintptr(page)))
	defer unix.MunmapPtr(mem, uintptr(page))
	defer unix.MunmapPtr(pointerTo(hole+uint64(page)), uintptr(page))
	for _, tc := range []struct {
		name         string
		addr, length uint64
		want         gpu.Kind
	}{
		{"mapped", host, uint64(page), gpu.HostMemory},
		{"up to the hole, from an odd place", host + 5, uint64(page) - 5, gpu.HostMemory},
		{"one byte into the hole", host, uint64(page) + 1, gpu.UnknownMemory},
		{"across the hole", host, uint64(3 * page), gpu.UnknownMemory},
		{"in the hole", hole, 1, gpu.UnknownMemory},
		{"null", 0, 1, gpu.UnknownMemory},
		{"the last byte there is", ^uint64(0), 1, gpu.UnknownMemory},
		{"the last page", ^uint64(4095), 4096, gpu.UnknownMemory},
		{"an allocation's last page beyond its end", a + 100, 1, gpu.HostMemory},
		{"an allocation and the rest of its page", a, 101, gpu.UnknownMemory},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := p.Classify(tc.addr, tc.length).Kind; got != tc.want {
				t.Errorf("Classify = %v, want %v", got, tc.want)
			}
		})
	}
}

func FuzzHandle(f *testing.F) {
	p, err := New(Options{})
	if err != nil {
		f.Fatal(err)
	}
	dev, err := p.Open("0000:a0:00.0")
	if err != nil {
		f.Fatal(err)
	}
	addr, err := dev.Alloc(4096)
	if err != nil {
		f.Fatal(err)
	}
	h, err := dev.Export(addr)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(h[:], false)
	f.Add([]byte("not a handle"), false)
	f.Add([]byte{}, true)
	f.Fuzz(func(t *testing.T, b []byte, sign bool) {
		var h gpu.Handle
		copy(h[:], b)
		if sign { // get past the checks of shape
			s := source{
				owner: process{pid: int32(h[12]), start: uint64(h[16])},
				fd:    int32(h[40]), inode: uint64(h[24]), size: uint64(h[32]),
				id: busID{domain: uint32(h[44]), bus: h[48], devfn: h[49]},
			}
			h = s.encode()
		}
		s, err := decode(h)
		if err != nil {
			if !errors.Is(err, gpu.ErrHandle) {
				t.Errorf("decode = %v, want %v", err, gpu.ErrHandle)
			}
			return
		}
		if s.encode() != h {
			t.Errorf("%+v encodes to another handle", s)
		}
		if addr, err := dev.Import(h, s.size); err == nil {
			err = dev.CloseImport(addr)
			if err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, gpu.ErrHandle) {
			t.Errorf("Import = %v, want %v", err, gpu.ErrHandle)
		}
	})
}

func TestParseStat(t *testing.T) {
	tail := strings.Repeat(" 0", 18) + " 4242 0 0"
	for _, tc := range []struct {
		name string
		line string
		want procStat
		ok   bool
	}{
		{"plain", "7 (go) S" + tail, procStat{start: 4242}, true},
		{"name with parentheses and blanks", "7 (a) Z 1 (b) R" + tail, procStat{start: 4242}, true},
		{"zombie", "7 (go) Z" + tail, procStat{start: 4242, dead: true}, true},
		{"dead", "7 (go) X" + tail, procStat{start: 4242, dead: true}, true},
		{"no parenthesis", "7 go S" + tail, procStat{}, false},
		{"short", "7 (go) S 1 2", procStat{}, false},
		{"empty", "", procStat{}, false},
		{"start is no number", "7 (go) S" + strings.Repeat(" 0", 18) + " x", procStat{}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseStat([]byte(tc.line))
			if got != tc.want || (err == nil) != tc.ok {
				t.Errorf("parseStat = %+v, %v, want %+v, ok %v", got, err, tc.want, tc.ok)
			}
		})
	}
}
