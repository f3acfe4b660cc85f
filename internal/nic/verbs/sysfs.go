package verbs

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/nic"
)

// tree is the two places where the kernel shows devices.
type tree struct{ sysfs, dev string }

func (t tree) text(elem ...string) (string, bool) {
	b, err := os.ReadFile(filepath.Join(append([]string{t.sysfs}, elem...)...))
	return strings.TrimSpace(string(b)), err == nil
}

func portDir(device string, port int) string {
	return filepath.Join("class/infiniband", device, "ports", strconv.Itoa(port))
}

// numa returns the node that a device is near, or -1.
func (t tree) numa(device string) int {
	text, _ := t.text("class/infiniband", device, "device/numa_node")
	if node, err := strconv.Atoi(text); err == nil && node >= 0 {
		return node
	}
	return -1
}

// linkUp reports whether a port is active, with the kernel's word for what it is.
func (t tree) linkUp(device string, port int) (bool, string) {
	text, ok := t.text(portDir(device, port), "state") // such as "4: ACTIVE"
	if !ok {
		return false, "no such port"
	}
	number, word, _ := strings.Cut(text, ":")
	return number == strconv.Itoa(portAlive), strings.TrimSpace(word)
}

// node returns the path of a device's node, and why it cannot be used.
func (t tree) node(device string) (path, why string) {
	entries, err := os.ReadDir(filepath.Join(t.sysfs, "class/infiniband_verbs"))
	if err != nil {
		return "", "the kernel module ib_uverbs is not loaded"
	}
	for _, e := range entries {
		name, ok := t.text("class/infiniband_verbs", e.Name(), "ibdev")
		if !ok || name != device {
			continue
		}
		path = filepath.Join(t.dev, "infiniband", e.Name())
		if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
			return path, path + " cannot be opened: " + err.Error()
		}
		return path, ""
	}
	return "", "it has no device node: the kernel module ib_uverbs does not know it"
}

// infiniband reports whether a port's link is InfiniBand and not Ethernet.
func (t tree) infiniband(device string, port int) bool {
	text, _ := t.text(portDir(device, port), "link_layer")
	return text == "InfiniBand"
}

// gids reads a port's GID table. It ends where the kernel has no more of it; entries
// in between may be empty.
func (t tree) gids(device string, port int) []gidEntry {
	const most = 4096
	dir := portDir(device, port)
	ids, err := openFolder(filepath.Join(t.sysfs, dir, "gids"))
	if err != nil {
		return nil
	}
	defer ids.close()
	infiniband := t.infiniband(device, port)
	var table []gidEntry
	for i := range most {
		name := strconv.Itoa(i)
		text, ok := ids.text(name)
		if !ok {
			break
		}
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.IsUnspecified() {
			continue
		}
		e := gidEntry{index: i, gid: nic.GID(addr.As16())}
		kind, _ := t.text(dir, "gid_attrs/types", name)
		switch {
		case infiniband:
			e.kind = gidInfiniBand
		case kind == "RoCE v2":
			e.kind = gidRoCE2
		case kind == "IB/RoCE v1" || kind == "RoCE v1":
			e.kind = gidRoCE1
		}
		e.netdev, _ = t.text(dir, "gid_attrs/ndevs", name)
		table = append(table, e)
	}
	return table
}

// folder is an open directory of small files: cards have up to a thousand GIDs, each
// a file, most of them empty.
type folder int

func openFolder(path string) (folder, error) {
	fd, err := unix.Open(path, unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_PATH, 0)
	return folder(fd), err
}

func (f folder) close() { unix.Close(int(f)) }

func (f folder) text(name string) (string, bool) {
	fd, err := unix.Openat(int(f), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	var b [128]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return "", false
	}
	return strings.TrimSpace(string(b[:n])), true
}

// subnet returns the network of an entry, over all 128 bits: that of the address of
// its network device, or, on InfiniBand, the prefix that the subnet manager has given
// out. It is invalid where it cannot be found out.
func subnet(e gidEntry) netip.Prefix {
	if e.kind == gidInfiniBand {
		return netip.PrefixFrom(netip.AddrFrom16(e.gid), 64).Masked()
	}
	dev, err := net.InterfaceByName(e.netdev)
	if err != nil {
		return netip.Prefix{}
	}
	addrs, err := dev.Addrs()
	if err != nil {
		return netip.Prefix{}
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().Unmap() != e.addr() {
			continue
		}
		bits := p.Bits()
		if p.Addr().Unmap().Is4() && bits <= 32 {
			bits += 96
		}
		return netip.PrefixFrom(netip.AddrFrom16(e.gid), bits).Masked()
	}
	return netip.Prefix{}
}

// ports are the numbers of a device's ports.
func (t tree) ports(device string) []int {
	entries, err := os.ReadDir(filepath.Join(t.sysfs, "class/infiniband", device, "ports"))
	if err != nil {
		return nil
	}
	var ports []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			ports = append(ports, n)
		}
	}
	slices.Sort(ports)
	return ports
}

// unusable says why a device is of no use by a port, or "".
func (p *Provider) unusable(device string, port int) string {
	t := tree{p.opts.Sysfs, p.opts.Dev}
	if _, why := t.node(device); why != "" {
		return why
	}
	if ports := t.ports(device); !slices.Contains(ports, port) {
		return fmt.Sprintf("it has no port %d: its ports are %v", port, ports)
	}
	if up, state := t.linkUp(device, port); !up {
		return "port " + strconv.Itoa(port) + " is not active: " + state
	}
	if _, err := p.pick(t.gids(device, port), t.infiniband(device, port), device, nil); err != nil {
		return err.Error()
	}
	return ""
}
