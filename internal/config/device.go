package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Device is a NIC by name, and a port of it.
type Device struct {
	Name string // opaque: any name that the kernel gives
	Port int    // 0 means MC_IB_PORT
}

func (d Device) String() string {
	if d.Port == 0 {
		return d.Name
	}
	return d.Name + ":" + strconv.Itoa(d.Port)
}

// On is the device's name where port is the one that names without a port mean: each
// port of a device has one name.
func (d Device) On(port int) string {
	if d.Port == port {
		return d.Name
	}
	return d.String()
}

// ParseDevice reads the name of a device, with or without a port.
func ParseDevice(name string) (Device, error) {
	d, err := parseDevice(name)
	if err != nil {
		return Device{}, fmt.Errorf("config: %w", err)
	}
	return d, nil
}

// DeviceArg is the device argument of an engine, read. At most one of All, ByGPU
// and File is set; none means automatic.
type DeviceArg struct {
	All   []Device         // for every GPU
	ByGPU map[int][]Device // by GPU number as the caller sees them
	File  string           // the path of a JSON file that says ByGPU
	Notes []string         // what a person should know, such as a name given twice
}

const (
	maxDevices    = 1024 // in one list
	maxGPU        = 1023
	maxDeviceName = 63 // IBV_SYSFS_NAME_MAX less its NUL
)

// ParseDeviceArg reads a device argument:
//
//	                       automatic
//	mlx5_0,mlx5_1:2        these devices, the second by its port 2
//	mlx5_0;mlx5_1,mlx5_2   the first list for GPU 0, the second for GPU 1
//	{"0":"mlx5_0"}         lists by GPU; a list is a string or an array of strings
//	/etc/nics.json         a file that holds such an object
//
// It opens nothing: see [ReadDeviceArg].
func ParseDeviceArg(arg string) (DeviceArg, error) {
	a, err := parseDeviceArg(strings.TrimSpace(arg))
	if err != nil {
		return DeviceArg{}, fmt.Errorf("config: devices: %w", err)
	}
	return a, nil
}

func parseDeviceArg(arg string) (DeviceArg, error) {
	switch {
	case arg == "":
		return DeviceArg{}, nil
	case !utf8.ValidString(arg):
		return DeviceArg{}, fmt.Errorf("%s is not UTF-8", quote(arg))
	case arg[0] == '{':
		return parseDeviceMap(arg)
	case arg[0] == '/' || strings.HasPrefix(arg, "./") || strings.HasPrefix(arg, "../") || strings.HasSuffix(arg, ".json"):
		return DeviceArg{File: arg}, nil
	case !strings.Contains(arg, ";"):
		devices, notes, err := parseDevices(arg)
		return DeviceArg{All: devices, Notes: notes}, err
	}
	lists := strings.Split(arg, ";")
	if len(lists) > maxGPU+1 {
		return DeviceArg{}, fmt.Errorf("lists for %d GPUs, at most %d are valid", len(lists), maxGPU+1)
	}
	a := DeviceArg{ByGPU: make(map[int][]Device, len(lists))}
	for gpu, list := range lists {
		if strings.TrimSpace(list) == "" && gpu == len(lists)-1 {
			break // a closing ";"
		}
		if err := a.add(gpu, list); err != nil {
			return DeviceArg{}, err
		}
	}
	return a, nil
}

// ReadDeviceArg is [ParseDeviceArg], with a file read by read, which may be
// os.ReadFile.
func ReadDeviceArg(arg string, read func(path string) ([]byte, error)) (DeviceArg, error) {
	a, err := ParseDeviceArg(arg)
	if err != nil || a.File == "" {
		return a, err
	}
	text, err := read(a.File)
	if err != nil {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = e.Err // the path is said once
		}
		return DeviceArg{}, fmt.Errorf("config: devices: file %s: %w", quote(a.File), err)
	}
	inFile, err := parseDeviceMap(strings.TrimSpace(string(text)))
	if err != nil {
		return DeviceArg{}, fmt.Errorf("config: devices: file %s: %w", quote(a.File), err)
	}
	inFile.File = a.File
	return inFile, nil
}

// For returns the devices for a GPU; none means automatic.
func (a DeviceArg) For(gpu int) []Device {
	if a.ByGPU != nil {
		return a.ByGPU[gpu]
	}
	return a.All
}

// Check returns an error that names every device which is not in present.
func (a DeviceArg) Check(present []string) error {
	named := slices.Clone(a.All)
	for _, devices := range a.ByGPU {
		named = append(named, devices...)
	}
	var absent []string
	for _, d := range named {
		if !slices.Contains(present, d.Name) {
			absent = append(absent, d.Name)
		}
	}
	if len(absent) == 0 {
		return nil
	}
	slices.Sort(absent)
	have := "none"
	if len(present) > 0 {
		have = strings.Join(present, ", ")
	}
	return fmt.Errorf("config: devices: no %s on this host, which has: %s", strings.Join(slices.Compact(absent), ", "), have)
}

func (a *DeviceArg) add(gpu int, list string) error {
	devices, notes, err := parseDevices(list)
	if err != nil {
		return fmt.Errorf("%w (in the list of GPU %d; lists by GPU are best given as JSON: {\"0\":\"mlx5_0\",\"1\":\"mlx5_1\"})", err, gpu)
	}
	a.ByGPU[gpu] = devices
	a.Notes = append(a.Notes, notes...)
	return nil
}

// parseDeviceMap reads a JSON object: GPU number to a list of devices.
func parseDeviceMap(text string) (DeviceArg, error) {
	members, err := parseObject(text)
	if err != nil {
		return DeviceArg{}, err
	}
	a := DeviceArg{ByGPU: make(map[int][]Device, len(members))}
	for _, m := range members {
		gpu, err := strconv.Atoi(m.name)
		if err != nil || gpu < 0 || gpu > maxGPU || strconv.Itoa(gpu) != m.name {
			return DeviceArg{}, fmt.Errorf("%s is not a GPU number from 0 to %d", quote(m.name), maxGPU)
		}
		var list string
		var names []string
		switch {
		case m.value[0] == '"':
			err = json.Unmarshal(m.value, &list)
		case m.value[0] == '[':
			err = json.Unmarshal(m.value, &names)
			list = strings.Join(names, ",")
		default:
			err = errors.New("want a string or an array of strings")
		}
		if err != nil {
			return DeviceArg{}, fmt.Errorf("GPU %d: %w", gpu, err)
		}
		if err := a.add(gpu, list); err != nil {
			return DeviceArg{}, err
		}
	}
	return a, nil
}

// parseDevices reads a comma list. A device that stands there twice is taken
// once, and noted.
func parseDevices(list string) (devices []Device, notes []string, err error) {
	for word := range strings.SplitSeq(list, ",") {
		d, err := parseDevice(strings.TrimSpace(word))
		if err != nil {
			return nil, nil, err
		}
		switch {
		case slices.Contains(devices, d):
			notes = append(notes, fmt.Sprintf("device %s is given twice and used once", d))
		case len(devices) == maxDevices:
			return nil, nil, fmt.Errorf("more than %d in one list", maxDevices)
		default:
			devices = append(devices, d)
		}
	}
	return devices, notes, nil
}

func parseDevice(word string) (Device, error) {
	if word == "" {
		return Device{}, errors.New("an empty name in the list")
	}
	if word[0] == '^' || word[0] == '=' {
		return Device{}, fmt.Errorf("%s: a leading ^ or = is a form of NCCL_IB_HCA; give plain names, such as mlx5_0,mlx5_1", quote(word))
	}
	name, port, hasPort := strings.Cut(word, ":")
	if name == "" || len(name) > maxDeviceName || strings.ContainsFunc(name, notInName) {
		return Device{}, fmt.Errorf("%s is not a device name: want 1 to %d letters, digits or other signs, such as mlx5_0", quote(word), maxDeviceName)
	}
	d := Device{Name: name}
	if hasPort {
		n, err := inRange(port, "", 1, 255)
		if err != nil {
			return Device{}, fmt.Errorf("%s: port %s is not %s", quote(word), quote(port), rangeWords("", 1, 255))
		}
		d.Port = n
	}
	return d, nil
}

// notInName reports signs that no device has in its name and that would be
// taken for something else in a list, a path or a NIC path.
func notInName(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune(`,;:/@="'{}[]^`+"`", r)
}
