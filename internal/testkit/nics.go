// Package testkit gives tests the NICs that there are: software ones, or, in a
// machine made by tools/rxe-vm, Soft-RoCE devices through libibverbs, so that one
// test runs on both.
//
// It owns the choice and the names, and nothing of what a test does. Besides, it stops
// processes for certain. All may be called by any goroutine.
package testkit

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/nic/softnic"
	"github.com/railhop/railhop/internal/nic/verbs"
)

// RealDevices are the names of the devices that tools/rxe-vm has made, in order; none
// outside it.
func RealDevices() []string { return strings.Fields(os.Getenv("RXE_DEVICES")) }

// NICs returns the devices that text describes in softnic's form. Where there are real
// ones, each is played by one of those: that of the number at the end of its name, or,
// if its address is that of another host (not 127.0.1.x), half of them further on.
func NICs(text string, log *slog.Logger) (nic.Provider, error) {
	configs, err := softnic.ParseDevices(text)
	if err != nil {
		return nil, err
	}
	real := RealDevices()
	if len(real) == 0 {
		return softnic.New(softnic.Options{Devices: configs, Logger: log})
	}
	v, err := verbs.Open(verbs.Options{GIDIndex: -1, Logger: log})
	if err != nil {
		return nil, err
	}
	p := &played{Provider: v, real: make(map[string]string)}
	for _, c := range configs {
		p.names = append(p.names, c.Name)
		p.real[c.Name] = real[place(c.Name, c.Addr, len(real))]
	}
	return p, nil
}

// place is the number of the device that plays one.
func place(name string, addr netip.Addr, n int) int {
	digits := name[len(strings.TrimRight(name, "0123456789")):]
	i, _ := strconv.Atoi(digits)
	if b := addr.As4(); b[2] != 1 {
		i += (n + 1) / 2
	}
	return i % n
}

// played is a provider of real devices under other names.
type played struct {
	nic.Provider
	names []string
	real  map[string]string
}

func (p *played) Devices() ([]string, error) { return p.names, nil }

func (p *played) Open(name string) (nic.Device, error) {
	real, ok := p.real[name]
	if !ok {
		return nil, fmt.Errorf("testkit: open %q: %w", name, nic.ErrNoDevice)
	}
	d, err := p.Provider.Open(real)
	if err != nil {
		return nil, err
	}
	return &renamed{d, name}, nil
}

type renamed struct {
	nic.Device
	name string
}

func (d *renamed) Attr() nic.Attr {
	a := d.Device.Attr()
	a.Name = d.name
	return a
}
