package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/dl"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/nic"
)

// fakeVerbs is what the fake library has beside libibverbs' functions.
type fakeVerbs struct {
	last    func(args *[8]uint64)
	fail    func(address, dmabuf int32)
	regions func() int32
}

// buildFake builds testdata/fakeverbs.c with macros.
func buildFake(t *testing.T, macros ...string) (path string) {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: tools/setup.sh installs it")
	}
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("no infiniband/verbs.h: install libibverbs-dev")
	}
	path = filepath.Join(t.TempDir(), "libfakeverbs.so")
	args := []string{"-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", path, "testdata/fakeverbs.c"}
	for _, m := range macros {
		args = append(args, "-D"+m)
	}
	if out, err := exec.CommandContext(t.Context(), gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// fakeLibrary opens a copy of a library that was built, whose state is the test's own,
// beside a sysfs in which fake0 has two ports and fake1 one. Ports are active unless
// states says otherwise.
func fakeLibrary(t *testing.T, built string, o Options, states map[string]string) (*Provider, *fakeVerbs, *bytes.Buffer) {
	t.Helper()
	code, err := os.ReadFile(built)
	if err == nil {
		o.Library = filepath.Join(t.TempDir(), "libfakeverbs.so")
		err = os.WriteFile(o.Library, code, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for i, port := range []string{"fake0/ports/1", "fake0/ports/2", "fake1/ports/1"} {
		device, _, _ := strings.Cut(port, "/")
		node := fmt.Sprint("uverbs", device[len(device)-1:])
		files["sys/class/infiniband_verbs/"+node+"/ibdev"] = device
		files["dev/infiniband/"+node] = ""
		at := "sys/class/infiniband/" + port + "/"
		state := "4: ACTIVE"
		if s := states[port]; s != "" {
			state = s
		}
		files[at+"state"], files[at+"link_layer"] = state, "Ethernet"
		files[at+"gids/0"] = fmt.Sprintf("0000:0000:0000:0000:0000:ffff:0a09:000%d", i+1)
		files[at+"gid_attrs/types/0"], files[at+"gid_attrs/ndevs/0"] = "RoCE v2", fmt.Sprint("eth", i)
	}
	tr := fakeSysfs(t, files)
	log := &bytes.Buffer{}
	o.GIDIndex, o.Sysfs, o.Dev, o.Logger = -1, tr.sysfs, tr.dev, slog.New(slog.NewTextHandler(log, nil))
	p, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	lib, err := dl.Open(o.Library)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeVerbs{}
	if err := dl.Bind(lib, 0, []dl.Symbol{
		{Names: []string{"fakeLast"}, Target: &f.last},
		{Names: []string{"fakeFail"}, Target: &f.fail},
		{Names: []string{"fakeRegions"}, Target: &f.regions},
	}); err != nil {
		t.Fatal(err)
	}
	return p, f, log
}

// knows is a GPU driver by whose word all memory is of a kind, and exports none.
type knows gpu.Kind

func (k knows) Classify(addr, length uint64) gpu.Range { return gpu.Range{Kind: gpu.Kind(k)} }

// exports exports it as a file, whose every byte is the low one of its address.
type exports struct {
	knows
	err   error
	files *int // how many it has exported
}

func (e exports) DMABuf(addr, length uint64) (int, uint64, error) {
	if e.err != nil {
		return -1, 0, e.err
	}
	*e.files++
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, 0, err
	}
	start := addr &^ 4095
	b := make([]byte, addr+length-start)
	for i := range b {
		b[i] = byte(start + uint64(i))
	}
	_, err = unix.Pwrite(fd, b, 0)
	return fd, addr - start, err
}

// TestRegisterGPUMemory has each way by which a card is told of GPU memory, and what is
// said where none works.
func TestRegisterGPUMemory(t *testing.T) {
	const at, length = 0x7f0000005007, 100
	const byAddress, asDMABuf = 1, 2
	unsupported := fmt.Errorf("this driver exports none: %w", errors.ErrUnsupported)
	const device = knows(gpu.DeviceMemory)
	built, old := buildFake(t), buildFake(t, "NO_DMABUF")
	for _, tc := range []struct {
		name    string
		gpu     func(files *int) GPU
		way     GPUMemory
		old     bool // the library has no ibv_reg_dmabuf_mr
		peermem bool
		address syscall.Errno // what the library says of it by address
		dmabuf  syscall.Errno // and as a dma-buf
		call    uint64        // that has succeeded
		by      string        // logged
		err     []string
	}{
		{name: "host memory", gpu: func(n *int) GPU { return exports{knows(gpu.HostMemory), nil, n} }, call: byAddress},
		{name: "no GPU", gpu: func(*int) GPU { return nil }, call: byAddress},
		{name: "exported", gpu: func(n *int) GPU { return exports{device, nil, n} }, call: asDMABuf, by: "dma-buf"},
		{name: "exported, nothing else wanted", gpu: func(n *int) GPU { return exports{device, nil, n} }, way: ByDMABuf, address: syscall.EFAULT, call: asDMABuf, by: "dma-buf"},
		{name: "exported, and peermem wanted", gpu: func(n *int) GPU { return exports{device, nil, n} }, way: ByPeermem, dmabuf: syscall.EINVAL, call: byAddress, by: "nvidia-peermem"},
		{name: "the driver exports none", gpu: func(n *int) GPU { return exports{device, unsupported, n} }, call: byAddress, by: "nvidia-peermem"},
		{name: "the GPUs export none", gpu: func(*int) GPU { return device }, call: byAddress, by: "nvidia-peermem"},
		{name: "the card takes none", gpu: func(n *int) GPU { return exports{device, nil, n} }, dmabuf: syscall.EOPNOTSUPP, call: byAddress, by: "nvidia-peermem"},
		{name: "the library knows none", gpu: func(n *int) GPU { return exports{device, nil, n} }, old: true, call: byAddress, by: "nvidia-peermem"},
		{
			name: "neither", gpu: func(n *int) GPU { return exports{device, unsupported, n} }, address: syscall.EFAULT,
			err: []string{"as a dma-buf: this driver exports none", "by nvidia-peermem: the kernel module is not loaded, try modprobe nvidia-peermem", "bad address"},
		},
		{
			name: "neither, with the module", gpu: func(n *int) GPU { return exports{device, nil, n} }, dmabuf: syscall.EOPNOTSUPP, address: syscall.EFAULT, peermem: true,
			err: []string{"as a dma-buf: the card's driver takes none: operation not supported", "by nvidia-peermem: it does not take it; memory of cuMemCreate"},
		},
		{
			name: "no dma-buf, nothing else wanted", gpu: func(n *int) GPU { return exports{device, nil, n} }, way: ByDMABuf, dmabuf: syscall.EINVAL,
			err: []string{"as a dma-buf: the card does not take it: invalid argument", "for WITH_NVIDIA_PEERMEM=0"},
		},
		{
			name: "an old library, nothing else wanted", gpu: func(n *int) GPU { return exports{device, nil, n} }, way: ByDMABuf, old: true,
			err: []string{"this libibverbs has no ibv_reg_dmabuf_mr, want version 34 or later"},
		},
		{
			name: "no module, nothing else wanted", gpu: func(n *int) GPU { return exports{device, nil, n} }, way: ByPeermem, address: syscall.EFAULT,
			err: []string{"for WITH_NVIDIA_PEERMEM=1", "try modprobe nvidia-peermem"},
		},
		{name: "managed memory", gpu: func(*int) GPU { return knows(gpu.ManagedMemory) }, address: syscall.EFAULT, err: []string{"managed GPU memory, which no card can reach"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			files := 0
			library := built
			if tc.old {
				library = old
			}
			p, f, log := fakeLibrary(t, library, Options{GPU: tc.gpu(&files), GPUMemory: tc.way}, nil)
			if tc.peermem {
				if err := os.MkdirAll(filepath.Join(p.opts.Sysfs, "module/nvidia_peermem"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			d, err := p.Open("fake0")
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			pd, err := d.NewPD()
			if err != nil {
				t.Fatal(err)
			}
			f.fail(int32(tc.address), int32(tc.dmabuf))
			mr, err := pd.Register(at, length, nic.LocalWrite|nic.RemoteWrite)
			if len(tc.err) > 0 {
				if err == nil || !errors.Is(err, nic.ErrMemory) {
					t.Fatalf("Register: %v, want %v", err, nic.ErrMemory)
				}
				for _, want := range tc.err {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%v: want %q in it", err, want)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var args [8]uint64
			f.last(&args)
			want := [8]uint64{byAddress, at, length, at, uint64(nic.LocalWrite | nic.RemoteWrite)}
			if tc.call == asDMABuf {
				want = [8]uint64{asDMABuf, at % 4096, length, at, uint64(nic.LocalWrite | nic.RemoteWrite), at & 0xff}
			}
			if args != want {
				t.Errorf("the library was called with %#x, want %#x", args, want)
			}
			if got := log.String(); strings.Contains(got, "GPU memory registered") != (tc.by != "") || !strings.Contains(got, tc.by) {
				t.Errorf("logged:\n%swant how it was done: %q", got, tc.by)
			}
			if err := mr.Close(); err != nil || f.regions() != 0 {
				t.Errorf("Close: %v, %d regions left", err, f.regions())
			}
		})
	}
}

// TestDMABufIsClosed counts the process's files: the card keeps what they stand for.
func TestDMABufIsClosed(t *testing.T) {
	files := 0
	p, f, _ := fakeLibrary(t, buildFake(t), Options{GPU: exports{knows(gpu.DeviceMemory), nil, &files}}, nil)
	d, err := p.Open("fake1")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	pd, err := d.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	for i := range 20 {
		f.fail(int32(syscall.EFAULT), int32(i%2)*int32(syscall.EINVAL)) // every other one is refused
		if mr, err := pd.Register(4096, 4096, nic.LocalWrite); err == nil {
			defer mr.Close()
		}
	}
	if n := openFiles(t); n != before || files != 20 {
		t.Errorf("%d files open after %d exports, %d before", n, files, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestPorts has a device of two ports and one of one, by names with a port and without.
func TestPorts(t *testing.T) {
	built := buildFake(t)
	for _, tc := range []struct {
		name   string
		port   int // MC_IB_PORT
		states map[string]string
		want   []string
		log    string
		usable map[string]string // why not, by name; "" if it can be used
	}{
		{
			name: "all active", want: []string{"fake0", "fake1"},
			usable: map[string]string{
				"fake0": "", "fake0:1": "", "fake0:2": "", "fake1:1": "",
				"fake0:3": "it has no port 3: its ports are [1 2]", "fake1:2": "it has no port 2: its ports are [1]",
				"fake2": "fake2: there is none", "fake0:0": `port "0": want 1..255`, "fake0:": `port "": want 1..255`,
			},
		},
		{
			name: "the first port is down", states: map[string]string{"fake0/ports/1": "1: DOWN"}, want: []string{"fake1"},
			log:    "usable=fake0:2",
			usable: map[string]string{"fake0": "port 1 is not active: DOWN", "fake0:2": ""},
		},
		{
			name: "the second port is asked for", port: 2, want: []string{"fake0"},
			log:    "usable=fake1:1",
			usable: map[string]string{"fake0": "", "fake0:1": "", "fake1": "it has no port 2: its ports are [1]", "fake1:1": ""},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, _, log := fakeLibrary(t, built, Options{Port: tc.port}, tc.states)
			got, err := p.Devices()
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("Devices = %q, %v, want %q", got, err, tc.want)
			}
			if !strings.Contains(log.String(), tc.log) {
				t.Errorf("logged:\n%swant %q in it", log, tc.log)
			}
			for name, why := range tc.usable {
				err := p.Usable(name)
				if why == "" && err != nil || why != "" && (!errors.Is(err, nic.ErrNoDevice) || !strings.Contains(err.Error(), why)) {
					t.Errorf("Usable(%s) = %v, want %q", name, err, why)
				}
				d, openErr := p.Open(name)
				if openErr != nil {
					if why == "" || !errors.Is(openErr, nic.ErrNoDevice) {
						t.Errorf("Open(%s): %v", name, openErr)
					}
					continue
				}
				if d.Attr().Name != name {
					t.Errorf("Open(%s) is named %q", name, d.Attr().Name)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}

	// Each port is a NIC of its own, with its own address.
	p, _, _ := fakeLibrary(t, built, Options{}, nil)
	var gids []string
	for _, name := range []string{"fake0", "fake0:2"} {
		d, err := p.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		port := d.Port()
		gids = append(gids, fmt.Sprint(port.GID, " ", port.LID))
	}
	if want := []string{"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:09:00:01 1", "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:09:00:02 2"}; !slices.Equal(gids, want) {
		t.Errorf("GIDs and LIDs %q, want %q", gids, want)
	}
}
