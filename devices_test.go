package railhop

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/nic"
)

// ported is a provider of devices that are listed if port 1 can be used.
type ported struct {
	nic.Provider
	listed []string
	ports  map[string]bool // by name and port: whether it can be used
}

func (p ported) Devices() ([]string, error) { return p.listed, nil }

func (p ported) Usable(name string) error {
	if !strings.Contains(name, ":") {
		name += ":1"
	}
	switch up, there := p.ports[name]; {
	case up:
		return nil
	case there:
		return fmt.Errorf("%s is down: %w", name, nic.ErrNoDevice)
	}
	return fmt.Errorf("%s is not there: %w", name, nic.ErrNoDevice)
}

// portless is one whose devices have no numbered ports.
type portless struct {
	nic.Provider
	listed []string
}

func (p portless) Devices() ([]string, error) { return p.listed, nil }

// TestCandidates has the names of NICs, with ports and without, as they are asked for
// and as MC_TE_FILTERS has them.
func TestCandidates(t *testing.T) {
	cards := ported{listed: []string{"m0", "m1"}, ports: map[string]bool{"m0:1": true, "m0:2": true, "m1:1": true, "m1:2": false, "m2:1": false, "m2:2": true}}
	soft := portless{listed: []string{"m0", "m1"}}
	for _, tc := range []struct {
		name    string
		nics    nic.Provider
		asked   string
		filters string
		want    string
		err     string
	}{
		{name: "all", nics: cards, want: "m0 m1"},
		{name: "by name", nics: cards, asked: "m1 m0", want: "m1 m0"},
		{name: "the usual port", nics: cards, asked: "m0:1", want: "m0"},
		{name: "the same twice", nics: cards, asked: "m0:1 m0", want: "m0"},
		{name: "two ports", nics: cards, asked: "m0:2 m0:1", want: "m0:2 m0"},
		{name: "a port of a device whose first is down", nics: cards, asked: "m2:2", want: "m2:2"},
		{name: "a port that is down", nics: cards, asked: "m1:2", err: `NIC "m1:2": want some of ["m0" "m1"]: m1:2 is down`},
		{name: "the first port is down", nics: cards, asked: "m2", err: `NIC "m2": want some of ["m0" "m1"]: m2:1 is down`},
		{name: "no such port", nics: cards, asked: "m0:3", err: "m0:3 is not there"},
		{name: "no such device", nics: cards, asked: "m9", err: `NIC "m9"`},
		{name: "not a port", nics: cards, asked: "m0:x", err: `port "x" is not an integer from 1 to 255`},
		{name: "port 0", nics: cards, asked: "m0:0", err: `port "0" is not an integer from 1 to 255`},
		{name: "a form of NCCL's", nics: cards, asked: "^m0", err: "NCCL_IB_HCA"},

		{name: "filter", nics: cards, filters: "m1", want: "m1"},
		{name: "filter by the usual port", nics: cards, filters: "m1:1", want: "m1"},
		{name: "filter by another port", nics: cards, filters: "m0:2,m1", want: "m0:2 m1"},
		{name: "filter by both ports", nics: cards, filters: "m0:2,m0:1", want: "m0:2 m0"},
		{name: "filter by a port of a device whose first is down", nics: cards, filters: "m0,m2:2", want: "m0 m2:2"},
		{name: "filter by a port that is down", nics: cards, filters: "m0,m1:2", want: "m0"},
		{name: "filter by device, a port asked for", nics: cards, asked: "m0:2 m1", filters: "m0", want: "m0:2"},
		{name: "filter by port, another asked for", nics: cards, asked: "m0:1", filters: "m0:2", want: ""},
		{name: "filter by port, a device asked for", nics: cards, asked: "m0", filters: "m0:2", want: "m0:2"},

		{name: "no ports", nics: soft, asked: "m0:1 m1", want: "m0 m1"},
		{name: "no ports, another asked for", nics: soft, asked: "m0:2", err: "m0 has no port 2: want 1"},
		{name: "no ports, filter by one", nics: soft, filters: "m1:1", want: "m1"},
		{name: "no ports, filter by another", nics: soft, filters: "m1:2", want: ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := &host{nics: tc.nics, port: 1}
			for f := range strings.SplitSeq(tc.filters, ",") {
				if d, err := config.ParseDevice(f); err == nil {
					h.filters = append(h.filters, d)
				}
			}
			known, err := tc.nics.Devices()
			if err != nil {
				t.Fatal(err)
			}
			got, err := h.candidates(strings.Fields(tc.asked), known)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("err = %v, want %q in it", err, tc.err)
				}
				return
			}
			if want := strings.Fields(tc.want); err != nil || !slices.Equal(got, want) {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
	if h := (&host{nics: cards, port: 2}); h.usable(config.Device{Name: "m0", Port: 9}, nil) == nil || !errors.Is(h.usable(config.Device{Name: "m0", Port: 9}, nil), nic.ErrNoDevice) {
		t.Error("a port that is not there: want ErrNoDevice")
	}
}
