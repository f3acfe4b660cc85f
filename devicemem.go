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

// reachable says how real NICs reach the memory of real GPUs.
type reachable struct {
	gpu.Provider
	peermem bool // by the kernel module, and not as a dma-buf
}

// exporter is a GPU provider that exports memory as dma-bufs.
type exporter interface {
	DMABuf(addr, length uint64) (fd int, offset uint64, err error)
}

// DMABuf implements [verbs.GPU].
func (r reachable) DMABuf(addr, length uint64) (int, uint64, error) {
	e, ok := r.Provider.(exporter)
	if !ok || r.peermem {
		return -1, 0, errors.ErrUnsupported
	}
	return e.DMABuf(addr, length)
}
