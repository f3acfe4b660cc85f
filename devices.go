package railhop

import (
	"errors"
	"fmt"
	"slices"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/nic"
)

// device is an opened NIC: one port of a card.
type device struct {
	nic.Device
	pd   nic.PD
	refs int
}

func devicesOf(devices []*device) []nic.Device {
	all := make([]nic.Device, len(devices))
	for i, d := range devices {
		all[i] = d.Device
	}
	return all
}

// usable says why a NIC cannot be used, or nil. known are those that the provider lists.
func (h *host) usable(d config.Device, known []string) error {
	name := d.On(h.port)
	if p, ok := h.nics.(nic.Ported); ok {
		return p.Usable(name)
	}
	switch {
	case slices.Contains(known, name):
		return nil
	case d.Port != 0 && slices.Contains(known, d.Name):
		return fmt.Errorf("%s has no port %d: want %d: %w", d.Name, d.Port, h.port, nic.ErrNoDevice)
	}
	return nic.ErrNoDevice
}

// candidates are the NICs that may be used, by the names that they go by here: those
// asked for, or all of known, and of these what MC_TE_FILTERS lets through.
func (h *host) candidates(asked, known []string) ([]string, error) {
	devices := make([]config.Device, 0, len(known))
	for _, name := range known {
		devices = append(devices, config.Device{Name: name})
	}
	if len(asked) > 0 {
		devices = devices[:0]
		for _, name := range asked {
			d, err := config.ParseDevice(name)
			if err == nil {
				err = h.usable(d, known)
			}
			if err != nil {
				return nil, fmt.Errorf("railhop: NIC %q: want some of %q: %w", name, known, err)
			}
			devices = append(devices, d)
		}
	}
	devices = allowed(devices, h.filters)
	if len(asked) == 0 {
		for _, f := range h.filters { // a port that a filter names may work where the usual one does not
			if f.Port != 0 && !slices.Contains(known, f.Name) {
				devices = append(devices, f)
			}
		}
		devices = slices.DeleteFunc(devices, func(d config.Device) bool { return d.Port != 0 && h.usable(d, known) != nil })
	}
	var names []string
	for _, d := range devices {
		if name := d.On(h.port); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// allowed are those of some NICs that filters let through, in their order; all if there
// are none. A port that a filter names holds where none is named already.
func allowed(devices, filters []config.Device) []config.Device {
	if len(filters) == 0 {
		return devices
	}
	var all []config.Device
	for _, d := range devices {
		for _, f := range filters {
			switch {
			case f.Name != d.Name || d.Port != 0 && f.Port != 0 && f.Port != d.Port:
			case d.Port != 0:
				all = append(all, d)
			default:
				all = append(all, f)
			}
		}
	}
	return all
}

// open opens NICs by name, all that may be used if names is empty.
func (h *host) open(names []string) ([]*device, error) {
	known, err := h.nics.Devices()
	if err != nil {
		return nil, fmt.Errorf("railhop: list NICs: %w", err)
	}
	if names, err = h.candidates(names, known); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: the %s provider has no NIC that may be used, of %q", ErrNoProvider, h.nics.Name(), known)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var opened []*device
	for _, name := range names {
		d := h.devices[name]
		if d == nil {
			dev, err := h.nics.Open(name)
			if err != nil {
				h.releaseLocked(opened)
				return nil, fmt.Errorf("railhop: open NIC %s: %w", name, err)
			}
			pd, err := dev.NewPD()
			if err != nil {
				dev.Close()
				h.releaseLocked(opened)
				return nil, fmt.Errorf("railhop: open NIC %s: %w", name, err)
			}
			d = &device{Device: dev, pd: pd}
			h.devices[name] = d
		}
		d.refs++
		opened = append(opened, d)
	}
	return opened, nil
}

func (h *host) release(devices []*device) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.releaseLocked(devices)
}

func (h *host) releaseLocked(devices []*device) error {
	var err error
	for _, d := range devices {
		if d.refs--; d.refs == 0 {
			delete(h.devices, d.Attr().Name)
			err = errors.Join(err, d.pd.Close(), d.Close())
		}
	}
	return err
}
