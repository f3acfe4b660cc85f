package wire

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// NICPath names a NIC of a process for its peers.
func NICPath(server, device string) string { return server + "@" + device }

// SplitNICPath cuts a NIC path at its first '@'. Without one, device is empty.
func SplitNICPath(path string) (server, device string) {
	server, device, _ = strings.Cut(path, "@")
	return server, device
}

// ServerName joins host and port as segments are named: IPv6 in brackets.
func ServerName(host string, port uint16) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(int(port))
}

// ParseServer splits host[:port]. IPv6 addresses may come in brackets or alone,
// with a scope or without. Where Mooncake repairs (a bad port becomes the
// default), this fails.
func ParseServer(s string, defaultPort uint16) (host string, port uint16, err error) {
	host, digits, hasPort, err := splitServer(s)
	if err != nil {
		return "", 0, err
	}
	if !hasPort {
		return host, defaultPort, nil
	}
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return "", 0, badServer(s, "its port is not a number from 0 to 65535")
		}
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		return "", 0, badServer(s, "its port is not a number from 0 to 65535")
	}
	return host, uint16(n), nil
}

func badServer(s, problem string) error {
	return fmt.Errorf("wire: server name %q: %s", s, problem)
}

func splitServer(s string) (host, port string, hasPort bool, err error) {
	if strings.HasPrefix(s, "[") {
		host, rest, ok := strings.Cut(s[1:], "]")
		if !ok || !isIPv6(host) {
			return "", "", false, badServer(s, "no IPv6 address in the brackets")
		}
		if rest == "" {
			return host, "", false, nil
		}
		if rest[0] != ':' {
			return "", "", false, badServer(s, "want a colon and a port after the bracket")
		}
		return host, rest[1:], true, nil
	}
	if isIPv6(s) {
		return s, "", false, nil
	}
	if i := strings.IndexByte(s, '%'); i >= 0 {
		zone, port, ok := strings.Cut(s[i:], ":")
		if host = s[:i] + zone; ok && isIPv6(host) {
			return host, port, true, nil
		}
	}
	host, port, hasPort = strings.Cut(s, ":")
	switch {
	case host == "":
		return "", "", false, badServer(s, "no host")
	case strings.Contains(port, ":"):
		return "", "", false, badServer(s, "more than one colon, and not an IPv6 address")
	}
	for _, c := range []byte(host) {
		if !isNameByte(c) {
			return "", "", false, badServer(s, fmt.Sprintf("%q cannot be in a host's name", c))
		}
	}
	return host, port, hasPort, nil
}

// isIPv6 reports whether s is an IPv6 address, with or without a scope.
func isIPv6(s string) bool {
	a, err := netip.ParseAddr(s)
	if err != nil || !a.Is6() {
		return false
	}
	for _, c := range []byte(a.Zone()) {
		if !isNameByte(c) {
			return false
		}
	}
	return true
}

// isNameByte reports whether c may stand in a host's or an interface's name.
func isNameByte(c byte) bool {
	return c > ' ' && c < 0x7f && strings.IndexByte("@:/[]%\\\"'", c) < 0
}

// CheckOwnHost refuses a host under which peers on other machines cannot reach
// this process, unless singleNode says that there are none. A loopback address
// that is written out says the same and passes.
func CheckOwnHost(host string, singleNode bool) error {
	if host == "" {
		return badServer(host, "no host")
	}
	if singleNode {
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name == "localhost" || strings.HasPrefix(name, "localhost.") || strings.HasSuffix(name, ".localhost") ||
		name == "ip6-localhost" || name == "ip6-loopback" {
		return badServer(host, "as this process's own name it means something else on every other machine; use an address that peers can reach")
	}
	if a, err := netip.ParseAddr(host); err == nil && a.WithZone("").Unmap().IsUnspecified() {
		return badServer(host, "it is no address that peers can reach; use one of this machine's own")
	}
	return nil
}

// ParseGID reads 16 groups of one or two hex digits, joined by colons.
func ParseGID(s string) (gid [16]byte, err error) {
	rest := s
	for i := range gid {
		group, tail, more := strings.Cut(rest, ":")
		v, err := strconv.ParseUint(group, 16, 8)
		if err != nil || len(group) > 2 || more != (i < len(gid)-1) {
			return [16]byte{}, fmt.Errorf("wire: GID %q: want 16 groups of two hex digits, joined by colons", s)
		}
		gid[i], rest = byte(v), tail
	}
	return gid, nil
}

// FormatGID writes what [ParseGID] reads.
func FormatGID(gid [16]byte) string {
	b := make([]byte, 0, 47)
	for i, x := range gid {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, lowerHex[x>>4], lowerHex[x&15])
	}
	return string(b)
}
