package softnic

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// ParseDevices reads device configurations from text: devices separated by ";",
// each a name, "=", an address with or without a port, and options separated by
// commas:
//
//	mlx5_0=127.0.0.1,rail=r0,rate=2GB,cross=200MB,latency=10us;mlx5_1=[::1]:7001,numa=1
//
// The options are rail, rate and cross (bytes a second), latency (one way), numa,
// maxmr (bytes) and subnet (an address prefix). Sizes are a number with an optional
// unit: kB, MB, GB, TB, or KiB, MiB, GiB, TiB.
func ParseDevices(text string) ([]DeviceConfig, error) {
	var devs []DeviceConfig
	seen := map[string]bool{}
	for item := range strings.SplitSeq(text, ";") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		c, err := parseDevice(item)
		if err != nil {
			return nil, fmt.Errorf("softnic: device %q: %w", item, err)
		}
		if seen[c.Name] {
			return nil, fmt.Errorf("softnic: device %q is configured twice", c.Name)
		}
		seen[c.Name] = true
		if err := c.check(); err != nil {
			return nil, err
		}
		devs = append(devs, c)
	}
	if len(devs) == 0 {
		return nil, fmt.Errorf("softnic: no device in %q: want name=address[,option=value]...[;...]", text)
	}
	return devs, nil
}

func parseDevice(item string) (DeviceConfig, error) {
	c := DeviceConfig{NUMA: -1}
	fields := strings.Split(item, ",")
	name, addr, ok := strings.Cut(fields[0], "=")
	if !ok {
		return c, fmt.Errorf("%q: want name=address", fields[0])
	}
	c.Name = strings.TrimSpace(name)
	var err error
	if c.Addr, c.Port, err = parseAddr(strings.TrimSpace(addr)); err != nil {
		return c, err
	}
	for _, field := range fields[1:] {
		key, value, ok := strings.Cut(field, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || value == "" {
			return c, fmt.Errorf("option %q: want key=value", field)
		}
		switch key {
		case "rail":
			c.Rail = value
		case "rate":
			c.Rate, err = parseSize(value)
		case "cross":
			c.CrossRate, err = parseSize(value)
		case "maxmr":
			c.MaxMR, err = parseSize(value)
		case "latency":
			c.Latency, err = time.ParseDuration(value)
		case "numa":
			if c.NUMA, err = strconv.Atoi(value); err == nil && c.NUMA < -1 {
				err = fmt.Errorf("%d: want a node, or -1", c.NUMA)
			}
		case "subnet":
			c.Subnet, err = netip.ParsePrefix(value)
		default:
			return c, fmt.Errorf("option %q: want rail, rate, cross, latency, numa, maxmr or subnet", key)
		}
		if err != nil {
			return c, fmt.Errorf("option %s: %w", key, err)
		}
	}
	return c, nil
}

func parseAddr(s string) (netip.Addr, uint16, error) {
	if at, err := netip.ParseAddrPort(s); err == nil {
		return at.Addr(), at.Port(), nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return a, 0, fmt.Errorf("address %q: want such as 127.0.0.1, 127.0.0.1:7000 or [::1]:7000", s)
	}
	return a, 0, nil
}

func parseSize(s string) (uint64, error) {
	bad := fmt.Errorf("size %q: want a number above 0 with an optional unit such as MB or MiB", s)
	digits := strings.TrimRight(s, "kKMGTiB")
	var unit float64
	switch strings.ToUpper(s[len(digits):]) {
	case "", "B":
		unit = 1
	case "K", "KB":
		unit = 1e3
	case "M", "MB":
		unit = 1e6
	case "G", "GB":
		unit = 1e9
	case "T", "TB":
		unit = 1e12
	case "KIB":
		unit = 1 << 10
	case "MIB":
		unit = 1 << 20
	case "GIB":
		unit = 1 << 30
	case "TIB":
		unit = 1 << 40
	default:
		return 0, bad
	}
	x, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if err != nil || math.IsNaN(x) || x*unit < 1 || x*unit >= 1<<63 {
		return 0, bad
	}
	return uint64(x * unit), nil
}
