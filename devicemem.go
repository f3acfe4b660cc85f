package railhop

import (
	"errors"
	"sync"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/nic/softnic"
)

// deviceMemory lets software NICs reach the memory of real GPUs, by copies through a
// stage. Its methods may be called by any goroutine.
type deviceMemory struct {
	gpus gpu.Provider // nil if there is no real GPU; set before the first Find

	mu   sync.Mutex
	open map[string]gpu.Device
}

// Find implements [softnic.Memory].
func (m *deviceMemory) Find(addr, length uint64) (softnic.Copier, error) {
	if m.gpus == nil {
		return nil, nil
	}
	r := m.gpus.Classify(addr, length)
	if r.Kind != gpu.DeviceMemory {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.open[r.BusID]; d != nil {
		return d, nil
	}
	d, err := m.gpus.Open(r.BusID)
	if err != nil {
		return nil, err
	}
	if m.open == nil {
		m.open = make(map[string]gpu.Device)
	}
	m.open[r.BusID] = d
	return d, nil
}

func (m *deviceMemory) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	for _, d := range m.open {
		if e := d.Close(); !errors.Is(e, gpu.ErrFatal) {
			err = errors.Join(err, e)
		}
	}
	m.open = nil
	return err
}
