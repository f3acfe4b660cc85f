package cuda

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// numaNode returns the node that sysfs gives for a device, or -1.
func numaNode(sysfs, busID string) int {
	text, err := os.ReadFile(filepath.Join(sysfs, "bus/pci/devices", busID, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || node < 0 {
		return -1
	}
	return node
}

// hostIndex returns a device's place among those that the kernel's driver has, by bus
// id, or -1 if it is not to be seen there.
func hostIndex(sysfs, busID string) int {
	entries, err := os.ReadDir(filepath.Join(sysfs, "bus/pci/drivers/nvidia"))
	if err != nil {
		return -1
	}
	var ids []string
	for _, e := range entries {
		if strings.Count(e.Name(), ":") == 2 { // the rest are the driver's own files
			ids = append(ids, e.Name())
		}
	}
	slices.Sort(ids)
	return slices.Index(ids, busID)
}
