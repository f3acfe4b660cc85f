package capi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/railhop/railhop"
)

// link is a NIC as showLinks prints it.
type link struct {
	Device   string  `json:"device"`
	NUMA     int     `json:"numa"`
	GID      string  `json:"gid"`
	GIDIndex int     `json:"gid_index"` // -1: the engine does not say
	Port     int     `json:"port"`
	Gbps     float64 `json:"speed_gbps"` // 0: the engine does not say
	Source   string  `json:"source"`
}

// Links tells of the engine's NICs and of the choice between them.
func (e *Engine) Links(asJSON bool) (string, error) {
	engine, err := e.use()
	if err != nil {
		return "", e.fail("show links", err)
	}
	nics, matrix := engine.NICs(), lists(engine.Topology())
	if !asJSON {
		return linksText(nics, matrix), nil
	}
	links := make([]link, 0, len(nics))
	for _, n := range nics {
		links = append(links, link{Device: n.Name, NUMA: n.NUMA, GID: n.GID, GIDIndex: -1, Port: 1, Source: "railhop"})
	}
	text, err := json.Marshal(map[string]any{"local_nics": links, "topology": matrix})
	return string(text), err
}

func linksText(nics []railhop.NIC, matrix map[string][2][]string) string {
	var b strings.Builder
	b.WriteString("=== Local NICs ===\n")
	if len(nics) == 0 {
		b.WriteString("(no RDMA devices found)\n")
	}
	for _, n := range nics {
		state := "active"
		if !n.Active {
			state = "down"
		}
		fmt.Fprintf(&b, "%s  numa %d  gid %s  %s\n", n.Name, n.NUMA, n.GID, state)
	}
	b.WriteString("=== Topology (NIC Selection) ===\n")
	for _, at := range slices.Sorted(maps.Keys(matrix)) {
		fmt.Fprintf(&b, "%s  preferred: %s  others: %s\n", at, strings.Join(matrix[at][0], ","), strings.Join(matrix[at][1], ","))
	}
	return b.String()
}
