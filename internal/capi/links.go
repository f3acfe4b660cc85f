package capi

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
)

// link is a NIC as showLinks prints it.
type link struct {
	Device   string  `json:"device"`
	NUMA     int     `json:"numa"`
	GID      string  `json:"gid"`
	GIDIndex int     `json:"gid_index"` // -1: the kernel does not say
	Port     int     `json:"port"`
	Gbps     float64 `json:"speed_gbps"` // 0: the kernel does not say
	Source   string  `json:"source"`
	active   bool
}

// Links tells of the engine's NICs and of the choice between them.
func (e *Engine) Links(asJSON bool) (string, error) {
	engine, err := e.use()
	if err != nil {
		return "", e.fail("show links", err)
	}
	links := make([]link, 0, len(engine.NICs()))
	for _, n := range engine.NICs() {
		links = append(links, linkOf(os.DirFS("/sys/class/infiniband"), n, e.env.RDMA.Port))
	}
	matrix := lists(engine.Topology())
	if !asJSON {
		return linksText(links, matrix), nil
	}
	text, err := json.Marshal(map[string]any{"local_nics": links, "topology": matrix})
	return string(text), err
}

// linkOf is a NIC with what the kernel's folder of devices says of its port, which is
// the usual one unless its name says another.
func linkOf(devices fs.FS, n railhop.NIC, port int) link {
	l := link{Device: n.Name, NUMA: n.NUMA, GID: n.GID, GIDIndex: -1, Port: port, Source: "railhop", active: n.Active}
	name := n.Name
	if d, err := config.ParseDevice(name); err == nil {
		name = d.Name
		if d.Port != 0 {
			l.Port = d.Port
		}
	}
	at := name + "/ports/" + strconv.Itoa(l.Port) + "/"
	rate, _ := fs.ReadFile(devices, at+"rate") // such as "100 Gb/sec (4X EDR)"
	if number, unit, _ := strings.Cut(string(rate), " "); strings.HasPrefix(unit, "Gb") {
		l.Gbps, _ = strconv.ParseFloat(number, 64)
	}
	l.GIDIndex = gidIndex(devices, at, n.GID)
	return l
}

// gidIndex is where a GID is in a port's table, or -1. Of RoCE v1 and v2 with the same
// address the second counts, which is the one that is chosen.
func gidIndex(devices fs.FS, at, gid string) int {
	plain := func(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), ":", "") }
	found := -1
	entries, _ := fs.ReadDir(devices, at+"gids")
	for _, entry := range entries {
		i, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		text, err := fs.ReadFile(devices, at+"gids/"+entry.Name())
		if err != nil || plain(string(text)) != plain(gid) {
			continue
		}
		kind, _ := fs.ReadFile(devices, at+"gid_attrs/types/"+entry.Name())
		if strings.TrimSpace(string(kind)) == "RoCE v2" {
			return i
		}
		if found < 0 || i < found {
			found = i
		}
	}
	return found
}

func linksText(links []link, matrix map[string][2][]string) string {
	var b strings.Builder
	b.WriteString("=== Local NICs ===\n")
	if len(links) == 0 {
		b.WriteString("(no RDMA devices found)\n")
	}
	for _, l := range links {
		state := "active"
		if !l.active {
			state = "down"
		}
		fmt.Fprintf(&b, "%s  port %d  numa %d  gid %s", l.Device, l.Port, l.NUMA, l.GID)
		if l.GIDIndex >= 0 {
			fmt.Fprintf(&b, " (index %d)", l.GIDIndex)
		}
		if l.Gbps > 0 {
			fmt.Fprintf(&b, "  %g Gb/s", l.Gbps)
		}
		fmt.Fprintf(&b, "  %s\n", state)
	}
	b.WriteString("=== Topology (NIC Selection) ===\n")
	for _, at := range slices.Sorted(maps.Keys(matrix)) {
		fmt.Fprintf(&b, "%s  preferred: %s  others: %s\n", at, strings.Join(matrix[at][0], ","), strings.Join(matrix[at][1], ","))
	}
	return b.String()
}
