package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
)

// TestClassifyMappings has memory that is mapped chunk by chunk, as allocators do that
// grow their segments, and kinds that are of no use to streams.
func TestClassifyMappings(t *testing.T) {
	p, f := fake(t, Options{}, "BATCH_V2", "DRIVER=13000")
	d := first(t, p)
	infos, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	const chunk = 2 << 20
	whole, holed, mixed := f.mapChunks(8, -1, 0, -1), f.mapChunks(8, 5, 0, -1), f.mapChunks(8, -1, 0, 6)
	managed, foreign := f.managed(chunk), f.foreign(chunk)
	own := alloc(t, d, 3*chunk)
	device := gpu.Range{Kind: gpu.DeviceMemory, BusID: infos[0].BusID}
	other := gpu.Range{Kind: gpu.DeviceMemory, BusID: infos[1].BusID}
	for _, tc := range []struct {
		name         string
		addr, length uint64
		want         gpu.Range
	}{
		{"all chunks", whole, 8 * chunk, device},
		{"across two chunks", whole + chunk - 1, 2, device},
		{"one byte past the last", whole + 1, 8 * chunk, gpu.Range{}},
		{"up to a hole", holed, 5 * chunk, device},
		{"into a hole", holed + 3, 5 * chunk, gpu.Range{}},
		{"across a hole", holed, 8 * chunk, gpu.Range{}},
		{"behind a hole", holed + 6*chunk, 2 * chunk, device},
		{"up to another device's", mixed, 6 * chunk, device},
		{"across another device's", mixed, 8 * chunk, gpu.Range{}},
		{"the other device's", mixed + 6*chunk, chunk, other},
		{"managed", managed, chunk, gpu.Range{Kind: gpu.ManagedMemory}},
		{"of another context", foreign, chunk, gpu.Range{}},
		{"one allocation", own, 3 * chunk, device},
		{"past an allocation", own, 3*chunk + 1, gpu.Range{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := p.Classify(tc.addr, tc.length); got != tc.want {
				t.Errorf("Classify = %v %q, want %v %q", got.Kind, got.BusID, tc.want.Kind, tc.want.BusID)
			}
		})
	}
}

// TestClassifyWithoutContext asks before any device is opened: the model's primary
// context is there, but this thread has none current.
func TestClassifyWithoutContext(t *testing.T) {
	p, f := fake(t, Options{}, "BATCH_V2", "DRIVER=13000")
	at := f.mapChunks(2, -1, 1, -1)
	if got := p.Classify(at, 4<<20); got.Kind != gpu.UnknownMemory {
		t.Errorf("without any context: Classify = %v, want %v", got.Kind, gpu.UnknownMemory)
	}
	model, err := Open(Options{Library: p.opts.Library})
	if err != nil {
		t.Fatal(err)
	}
	first(t, model)
	if got := p.Classify(at, 4<<20); got.Kind != gpu.DeviceMemory {
		t.Errorf("beside a model's context: Classify = %v, want %v", got.Kind, gpu.DeviceMemory)
	}
	if bus, ok := p.Current(); ok {
		t.Errorf("Current = %q, want none: the context was borrowed", bus)
	}
}

func TestLink(t *testing.T) {
	p, _ := fake(t, Options{})
	infos, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	a, b := infos[0].BusID, infos[1].BusID
	for _, tc := range []struct {
		name, from, to string
		want           gpu.Link
		err            error
	}{
		{"itself", a, a, gpu.Link{Access: true, Atomics: true}, nil},
		{"over NVLink", a, b, gpu.Link{Access: true, Atomics: true}, nil},
		{"over PCIe", b, a, gpu.Link{Access: true}, nil},
		{"not to be seen", a, "0000:ff:00.0", gpu.Link{}, gpu.ErrNoDevice},
		{"from nowhere", "", a, gpu.Link{}, gpu.ErrNoDevice},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, err := p.Link(tc.from, tc.to); got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("Link(%s, %s) = %+v, %v, want %+v, %v", tc.from, tc.to, got, err, tc.want, tc.err)
			}
		})
	}
}

func TestSharing(t *testing.T) {
	for _, tc := range []struct {
		name, macro string
		want        gpu.Info
	}{
		{"all is said", "DRIVER=13000", gpu.Info{IPC: true, DirectRDMA: true, DMABuf: true}},
		{"IPC is not said", "DRIVER=11080", gpu.Info{IPC: true, DirectRDMA: true, DMABuf: true}},
		{"no dma-buf", "DRIVER=11000", gpu.Info{IPC: true, DirectRDMA: true}},
		{"no IPC", "IPC=0", gpu.Info{DirectRDMA: true, DMABuf: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, _ := fake(t, Options{}, tc.macro)
			infos, err := p.Devices()
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range infos {
				if got.IPC != tc.want.IPC || got.DirectRDMA != tc.want.DirectRDMA || got.DMABuf != tc.want.DMABuf {
					t.Errorf("%+v, want what %+v can", got, tc.want)
				}
			}
		})
	}
}

func TestPeerAtomics(t *testing.T) {
	p, _ := fake(t, Options{}, "BATCH_V2", "DRIVER=13000")
	infos, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	d := first(t, p)
	second, err := p.Open(infos[1].BusID)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	for _, tc := range []struct {
		name string
		d    gpu.Device
		bus  string
		want bool
	}{
		{"itself", d, infos[0].BusID, true},
		{"over NVLink", d, infos[1].BusID, true},
		{"not the other way", second, infos[0].BusID, false},
		{"not to be seen", d, "0000:ff:00.0", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.d.PeerAtomics(tc.bus); got != tc.want {
				t.Errorf("PeerAtomics(%s) = %v, want %v", tc.bus, got, tc.want)
			}
		})
	}
}

// TestPTXHeader keeps the kernel loadable by old drivers, for old devices.
func TestPTXHeader(t *testing.T) {
	version := regexp.MustCompile(`(?m)^\.version (\d+)\.(\d+)$`).FindStringSubmatch(gatherPTX)
	target := regexp.MustCompile(`(?m)^\.target sm_(\d+)$`).FindStringSubmatch(gatherPTX)
	if version == nil || target == nil {
		t.Fatal("no .version or no .target")
	}
	number := func(s string) int { n, _ := strconv.Atoi(s); return n }
	if v := number(version[1])*10 + number(version[2]); v > 78 {
		t.Errorf(".version %s.%s: want 7.8 at most", version[1], version[2])
	} else if v != 70 {
		t.Errorf(".version %s.%s: kernelDriver is for 7.0", version[1], version[2])
	}
	if n := number(target[1]); n > 75 || n != kernelTarget {
		t.Errorf(".target sm_%d: want %d, and 75 at most", n, kernelTarget)
	}
	if regexp.MustCompile(`\.entry gather\(`).FindString(gatherPTX) == "" {
		t.Error("no entry named gather")
	}
}

func TestSysfs(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("bus/pci/devices/0000:1a:00.0/numa_node", "1\n")
	write("bus/pci/devices/0000:1b:00.0/numa_node", "-1\n")
	for _, name := range []string{"0000:1b:00.0", "0000:1a:00.0", "0000:0a:00.0", "bind", "new_id", "module"} {
		write("bus/pci/drivers/nvidia/"+name, "")
	}
	p, _ := fake(t, Options{Sysfs: root}, "BATCH_V2", "DRIVER=13000")
	infos, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []gpu.Info{{NUMA: 1, HostIndex: 1}, {NUMA: -1, HostIndex: 2}} {
		if infos[i].NUMA != want.NUMA || infos[i].HostIndex != want.HostIndex || infos[i].Index != i {
			t.Errorf("device %d is %+v, want node %d and host index %d", i, infos[i], want.NUMA, want.HostIndex)
		}
	}
	if numaNode(root, "0000:ff:00.0") != -1 || hostIndex(root, "0000:ff:00.0") != -1 || hostIndex("/nowhere", "0000:1a:00.0") != -1 {
		t.Error("a device that sysfs does not have: want -1")
	}
}
