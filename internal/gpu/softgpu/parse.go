package softgpu

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// busID is a PCI bus id in numbers.
type busID struct {
	domain uint32
	bus    uint8
	devfn  uint8 // device<<3 | function
}

func (b busID) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%d", b.domain, b.bus, b.devfn>>3, b.devfn&7)
}

func parseBusID(s string) (busID, error) {
	bad := func() (busID, error) {
		return busID{}, fmt.Errorf("softgpu: bus id %q: want a lower-case PCI bus id, such as 0000:a0:00.0", s)
	}
	shape := regexp.MustCompile(`^([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])$`)
	m := shape.FindStringSubmatch(s)
	if m == nil {
		return bad()
	}
	domain, err := strconv.ParseUint(m[1], 16, 32)
	if err != nil {
		return bad()
	}
	bus, _ := strconv.ParseUint(m[2], 16, 8)
	dev, _ := strconv.ParseUint(m[3], 16, 5)
	b := busID{domain: uint32(domain), bus: uint8(bus), devfn: uint8(dev)<<3 | (m[4][0] - '0')}
	if b.String() != s {
		return bad() // one spelling for each identity
	}
	return b, nil
}

// ParseDevices reads the text form of a device list: a number of devices, as
// [Uniform] makes them, or their descriptions, separated by semicolons:
//
//	0000:a0:00.0,numa=0,memops=off;0000:a1:00.0,numa=1,peer=off,max=1073741824
//
// Each is a bus id and, in any order, numa (a node, -1 for unknown), index (the
// ordinal on the host that is played), memops, peer and batch (on or off) and max
// (bytes).
func ParseDevices(text string) ([]DeviceConfig, error) {
	if n, err := strconv.Atoi(text); err == nil {
		if n < 0 || n > MaxDevices {
			return nil, fmt.Errorf("softgpu: device count %q: want 0..%d", text, MaxDevices)
		}
		return Uniform(n), nil
	}
	var devices []DeviceConfig
	seen := make(map[string]bool)
	for item := range strings.SplitSeq(text, ";") {
		c, err := parseDevice(strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		if seen[c.BusID] {
			return nil, fmt.Errorf("softgpu: device %s is listed twice in %q", c.BusID, text)
		}
		seen[c.BusID] = true
		devices = append(devices, c)
	}
	if len(devices) > MaxDevices {
		return nil, fmt.Errorf("softgpu: %d devices: want at most %d", len(devices), MaxDevices)
	}
	return devices, nil
}

func parseDevice(item string) (DeviceConfig, error) {
	fields := strings.Split(item, ",")
	id, err := parseBusID(fields[0])
	if err != nil {
		return DeviceConfig{}, err
	}
	c := defaultConfig(id.String())
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		switch key {
		case "numa":
			c.NUMA, err = strconv.Atoi(value)
			if err != nil || c.NUMA < -1 {
				err = fmt.Errorf("want a node number, or -1")
			}
		case "index":
			c.Index, err = strconv.Atoi(value)
			if err != nil || c.Index < 0 {
				err = fmt.Errorf("want an ordinal, 0 or more")
			}
		case "memops":
			c.StreamMemOps, err = parseSwitch(value)
		case "peer":
			c.PeerAtomics, err = parseSwitch(value)
		case "batch":
			c.BatchedCopy, err = parseSwitch(value)
		case "max":
			c.MaxBytes, err = strconv.ParseUint(value, 10, 63)
			if err != nil || c.MaxBytes == 0 {
				err = fmt.Errorf("want a number of bytes, 1 or more")
			}
		default:
			err = fmt.Errorf("want numa, index, memops, peer, batch or max")
		}
		if err != nil {
			return DeviceConfig{}, fmt.Errorf("softgpu: device %s: %q: %w", id, field, err)
		}
	}
	return c, nil
}

func parseSwitch(s string) (bool, error) {
	switch s {
	case "on":
		return true, nil
	case "off":
		return false, nil
	}
	return false, fmt.Errorf("want on or off")
}
