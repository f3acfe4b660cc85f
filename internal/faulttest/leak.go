package faulttest

import (
	"os"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/nic/nicfault"
)

// Held is what a process holds of the system.
type Held struct {
	Goroutines, Threads, Descriptors, Mappings int
	Keys, QPs                                  int // of its NICs
	GPU                                        softgpu.Counts
}

// held counts. Mappings are those of files; Go's own grow and shrink as it likes.
func (c *child) held() (*Held, error) {
	h := &Held{Goroutines: runtime.NumGoroutine(), GPU: c.dev.(*softgpu.Device).Counts()}
	h.Keys, h.QPs = int(c.nicHeld.keys.Load()), int(c.nicHeld.qps.Load())
	for path, n := range map[string]*int{"/proc/self/task": &h.Threads, "/proc/self/fd": &h.Descriptors} {
		all, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		*n = len(all)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "/") {
			h.Mappings++
		}
	}
	return h, nil
}

// nicHeld counts what NICs have made and not closed.
type nicHeld struct {
	keys, qps atomic.Int64
}

// count is a hook.
func (h *nicHeld) count(c *nicfault.Call) error {
	switch c.Op {
	case nicfault.Register:
		h.keys.Add(1)
	case nicfault.CloseMR:
		h.keys.Add(-1)
	case nicfault.NewQP:
		h.qps.Add(1)
	case nicfault.CloseQP:
		h.qps.Add(-1)
	}
	return nil
}
