package topo

import (
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
)

//go:generate go test . -run TestRecords -update

var update = flag.Bool("update", false, "rewrite testdata")

// builder makes up a machine's sysfs.
type builder struct {
	*record
	gpus []GPU
	nics int
}

func build(describe func(b *builder)) *builder {
	b := &builder{record: emptyRecord("made up")}
	describe(b)
	return b
}

func (b *builder) text(name, text string) {
	b.texts[name] = text
	b.add(name)
}

func (b *builder) link(name, to string) {
	b.links[name] = to
	b.add(name)
}

// nodes puts processors on n NUMA nodes.
func (b *builder) nodes(n, cpus int) {
	for i := range n {
		at := fmt.Sprintf("devices/system/node/node%d", i)
		b.text(at+"/cpulist", fmt.Sprintf("%d-%d", i*cpus, (i+1)*cpus-1))
		var distances []string
		for j := range n {
			distances = append(distances, map[bool]string{true: "10", false: "21"}[i == j])
		}
		b.text(at+"/distance", strings.Join(distances, " "))
	}
}

// device puts a device at a path below devices, such as "pci0000:15/0000:15:01.0/…".
func (b *builder) device(at string, numa int, facts map[string]string) string {
	at = "devices/" + at
	b.text(at+"/numa_node", fmt.Sprint(numa))
	for name, text := range facts {
		b.text(at+"/"+name, text)
	}
	listed := pciDevices + "/" + path.Base(at)
	b.link(listed, at)
	for _, name := range []string{"class", "vendor", "device"} {
		if facts[name] != "" {
			b.text(listed+"/"+name, facts[name])
		}
	}
	return at
}

func (b *builder) bridges(ids ...string) string { return strings.Join(ids, "/") }

// gpu puts a GPU there, as the driver sees it.
func (b *builder) gpu(at string, numa int) {
	b.device(at, numa, map[string]string{
		"class": "0x030200", "vendor": vendorNVIDIA, "device": "0x2330",
		"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
	})
	i := len(b.gpus)
	b.gpus = append(b.gpus, GPU{Info: gpu.Info{
		Index: i, HostIndex: i, BusID: path.Base(at), Name: "NVIDIA H100 80GB HBM3", NUMA: numa,
		StreamMemOps: true, BatchedCopy: true, IPC: true, DirectRDMA: true, DMABuf: true,
	}})
}

// joined says that all GPUs reach each other over NVLink, or only over PCIe.
func (b *builder) joined(nvlink bool) {
	for i := range b.gpus {
		for j := range b.gpus {
			if i != j {
				b.gpus[i].Peers = append(b.gpus[i].Peers, Peer{BusID: b.gpus[j].BusID, Link: gpu.Link{Access: true, Atomics: nvlink}})
			}
		}
	}
}

// cable is a port: "ib", or an interface with its address and network; down if it does
// not carry.
type cable struct {
	netdev, addr string
	rate         string
	down         bool
}

// nic puts a NIC there, or nowhere on PCIe.
func (b *builder) nic(name, at string, numa int, ports ...cable) {
	n := b.nics
	b.nics++
	b.text(fmt.Sprintf("class/infiniband_verbs/uverbs%d/ibdev", n), name)
	ib := "class/infiniband/" + name
	if at != "" {
		real := b.device(at, numa, map[string]string{
			"class": "0x020700", "vendor": "0x15b3", "device": "0x1021",
			"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
		})
		b.link(ib+"/device", real)
		b.text(ib+"/hca_type", "MT4129")
	}
	for i, w := range ports {
		at := fmt.Sprintf("%s/ports/%d", ib, i+1)
		state, phys := "4: ACTIVE", "5: LinkUp"
		if w.down {
			state, phys = "1: DOWN", "3: Disabled"
		}
		b.text(at+"/state", state)
		b.text(at+"/phys_state", phys)
		if w.rate == "" {
			w.rate = "400 Gb/sec (4X NDR)"
		}
		b.text(at+"/rate", w.rate)
		guid := fmt.Sprintf("a288:c203:00%02x:%04x", n, 0x1000+i)
		if w.netdev == "" {
			b.text(at+"/link_layer", "InfiniBand")
			b.text(at+"/lid", fmt.Sprintf("0x%x", 16+n))
			b.text(at+"/gids/0", "fe80:0000:0000:0000:"+guid)
			b.text(at+"/gid_attrs/types/0", "IB/RoCE v1")
			continue
		}
		b.text(at+"/link_layer", "Ethernet")
		b.text(at+"/lid", "0x0")
		gids := []string{"fe80:0000:0000:0000:" + guid}
		addrs := "fe80::" + guid + "/64"
		if v4, _, _ := strings.Cut(w.addr, "/"); v4 != "" {
			var a [4]byte
			fmt.Sscanf(v4, "%d.%d.%d.%d", &a[0], &a[1], &a[2], &a[3])
			gids = append(gids, fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", a[0], a[1], a[2], a[3]))
			addrs = w.addr + " " + addrs
		}
		b.text(netFolder+"/"+w.netdev, addrs)
		for j, gid := range gids {
			for k, kind := range []string{"IB/RoCE v1", "RoCE v2"} {
				index := fmt.Sprint(2*j + k)
				b.text(at+"/gids/"+index, gid)
				b.text(at+"/gid_attrs/types/"+index, kind)
				b.text(at+"/gid_attrs/ndevs/"+index, w.netdev)
			}
		}
	}
}

// below is eight places for a NIC, each below the same switch as a GPU, in two halves
// by node; the GPU is behind a second switch, as in a DGX H100.
var below = []struct{ host, root, up, nic, gpu string }{
	{"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0/0000:18:00.0", "0000:17:02.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0"},
	{"pci0000:3d", "0000:3d:01.0", "0000:3e:00.0", "0000:3f:00.0/0000:40:00.0", "0000:3f:02.0/0000:41:00.0/0000:42:00.0/0000:43:00.0"},
	{"pci0000:4c", "0000:4c:01.0", "0000:4d:00.0", "0000:4e:00.0/0000:4f:00.0", "0000:4e:02.0/0000:50:00.0/0000:51:00.0/0000:52:00.0"},
	{"pci0000:5b", "0000:5b:01.0", "0000:5c:00.0", "0000:5d:00.0/0000:5e:00.0", "0000:5d:02.0/0000:5f:00.0/0000:60:00.0/0000:61:00.0"},
	{"pci0000:97", "0000:97:01.0", "0000:98:00.0", "0000:99:00.0/0000:9a:00.0", "0000:99:02.0/0000:9b:00.0/0000:9c:00.0/0000:9d:00.0"},
	{"pci0000:bd", "0000:bd:01.0", "0000:be:00.0", "0000:bf:00.0/0000:c0:00.0", "0000:bf:02.0/0000:c1:00.0/0000:c2:00.0/0000:c3:00.0"},
	{"pci0000:cb", "0000:cb:01.0", "0000:cc:00.0", "0000:cd:00.0/0000:ce:00.0", "0000:cd:02.0/0000:cf:00.0/0000:d0:00.0/0000:d1:00.0"},
	{"pci0000:d9", "0000:d9:01.0", "0000:da:00.0", "0000:db:00.0/0000:dc:00.0", "0000:db:02.0/0000:dd:00.0/0000:de:00.0/0000:df:00.0"},
}

func dgx(b *builder, name func(i int) string, port func(i int) cable) {
	b.nodes(2, 56)
	for i, p := range below {
		b.gpu(b.bridges(p.host, p.root, p.up, p.gpu), i/4)
	}
	for i, p := range below {
		b.nic(name(i), b.bridges(p.host, p.root, p.up, p.nic), i/4, port(i))
	}
	b.joined(true)
	b.text("module/nvidia_peermem/initstate", "live")
}

// machines are the hosts that tests look at, and testdata has.
var machines = map[string]func(b *builder){
	"dgx-h100": func(b *builder) {
		names := []string{"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"}
		dgx(b, func(i int) string { return names[i] }, func(int) cable { return cable{} })
	},
	// A rail is a subnet; the fourth NIC's cable is pulled.
	"hgx-rails": func(b *builder) {
		dgx(b, func(i int) string { return fmt.Sprintf("mlx5_%d", i) }, func(i int) cable {
			return cable{netdev: fmt.Sprintf("eth%d", i), addr: fmt.Sprintf("10.0.%d.17/24", i), down: i == 3}
		})
	},
	// A link is a subnet.
	"hgx-links": func(b *builder) {
		dgx(b, func(i int) string { return fmt.Sprintf("rocep%ds0", 24+i) }, func(i int) cable {
			return cable{netdev: fmt.Sprintf("rail%d", i), addr: fmt.Sprintf("10.9.%d.34/31", i)}
		})
	},
	// Four cards of two ports, each a device, with two GPUs at their switch.
	"hgx-dual-port": func(b *builder) {
		b.nodes(2, 48)
		for i := range 8 {
			p := below[i/2*2]
			b.gpu(fmt.Sprintf("%s/%s/%s/%s:%02x.0/0000:%02x:00.0", p.host, p.root, p.up, p.nic[:7], 4+i%2, 0x20+i), i/4)
		}
		for i := range 8 {
			p := below[i/2*2]
			at := b.bridges(p.host, p.root, p.up, p.nic)
			b.nic(fmt.Sprintf("mlx5_%d", i), at[:len(at)-1]+fmt.Sprint(i%2), i/4,
				cable{netdev: fmt.Sprintf("ens%d", i), addr: fmt.Sprintf("172.20.%d.5/24", i), rate: "200 Gb/sec (4X HDR)"})
		}
		b.joined(true)
	},
	"no-nic": func(b *builder) {
		b.nodes(1, 16)
		for i := range 2 {
			b.gpu(fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", 0x10+16*i, 0x10+16*i, 0x11+16*i), 0)
		}
		b.joined(false)
	},
	// A virtual machine: all on one bus, and no node is known.
	"cloud-flat": func(b *builder) {
		b.nodes(2, 48)
		for i := range 8 {
			b.gpu(fmt.Sprintf("pci0000:00/0000:00:%02x.0", 4+i), -1)
		}
		for i := range 8 {
			b.nic(fmt.Sprintf("rdmap%ds0", i), fmt.Sprintf("pci0000:00/0000:00:%02x.0", 0x10+i), -1,
				cable{netdev: fmt.Sprintf("eth%d", i+1), addr: fmt.Sprintf("10.20.0.%d/16", i+4), rate: "100 Gb/sec (4X EDR)"})
		}
		b.joined(true)
	},
	// Soft-RoCE: NICs that are on no bus, and no GPU.
	"soft-roce": func(b *builder) {
		b.nodes(1, 2)
		b.nic("rxe0", "", -1, cable{netdev: "veth0", addr: "192.168.7.1/24", rate: "2.5 Gb/sec (1X SDR)"})
		b.nic("rxe1", "", -1, cable{netdev: "veth1", addr: "192.168.8.1/24", rate: "2.5 Gb/sec (1X SDR)"})
	},
}

// machine reads one of them.
func machine(t testing.TB, name string) *Machine {
	t.Helper()
	m, err := Read(build(machines[name]), machineGPUs(name))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func machineGPUs(name string) []GPU {
	b := build(machines[name])
	if b.gpus == nil {
		return []GPU{}
	}
	return b.gpus
}

// TestRecords keeps testdata equal to the machines: what is recorded of them reads the
// same.
func TestRecords(t *testing.T) {
	for name := range machines {
		t.Run(name, func(t *testing.T) {
			rec := Record(build(machines[name]))
			want, err := Read(rec, machineGPUs(name))
			if err != nil {
				t.Fatal(err)
			}
			if err := KeepGPUs(rec, machineGPUs(name)); err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			if err := rec.Write(&text); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".sysfs")
			if *update {
				if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			onDisk, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if string(onDisk) != text.String() {
				t.Errorf("%s is out of date: run go generate ./internal/topo", file)
			}
			tree, err := Open(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Read(tree, nil)
			if err != nil {
				t.Fatal(err)
			}
			diff(t, got, want)
		})
	}
}
