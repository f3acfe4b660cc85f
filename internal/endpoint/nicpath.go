package endpoint

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/railhop/railhop/internal/nic"
)

// NICPath joins a server name and a device name.
func NICPath(server, device string) string { return server + "@" + device }

// SplitNICPath cuts a NIC path at its first "@". The device is "" if there is none.
func SplitNICPath(path string) (server, device string) {
	server, device, _ = strings.Cut(path, "@")
	return server, device
}

// ParseGID reads 16 groups of one or two hexadecimal digits joined by ":".
func ParseGID(s string) (nic.GID, error) {
	var g nic.GID
	rest, more := s, true
	for i := range g {
		if !more {
			return nic.GID{}, fmt.Errorf("endpoint: GID %q: want 16 groups of two hexadecimal digits", s)
		}
		var group string
		group, rest, more = strings.Cut(rest, ":")
		v, err := strconv.ParseUint(group, 16, 8)
		if err != nil || len(group) > 2 {
			return nic.GID{}, fmt.Errorf("endpoint: GID %q: group %q is not one or two hexadecimal digits", s, group)
		}
		g[i] = byte(v)
	}
	if more {
		return nic.GID{}, fmt.Errorf("endpoint: GID %q: want 16 groups of two hexadecimal digits", s)
	}
	return g, nil
}
