package railhop

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/wire"
)

// transport is what an engine runs on, and why.
type transport struct {
	tcp  bool
	why  string
	warn string // what was asked for and is not to be had, or not used
}

func (t transport) name() string {
	if t.tcp {
		return wire.ProtocolTCP
	}
	return wire.ProtocolRDMA
}

// Transport is what the engine runs on, "rdma" or "tcp", and why.
func (e *Engine) Transport() (name, why string) {
	return e.host.transport.name(), e.host.transport.why
}

func (t transport) report(log *slog.Logger) {
	if t.warn != "" {
		log.Warn(t.warn, "transport", t.name(), "why", t.why)
	}
}

// choose decides by what was asked for and what is there.
func (h *host) choose(cfg Config) (transport, error) {
	var known, used []string
	if h.nics != nil {
		var err error
		if known, err = h.nics.Devices(); err != nil {
			return transport{}, fmt.Errorf("railhop: list NICs: %w", err)
		}
		for _, f := range h.filters {
			if err := h.usable(f, known); err != nil {
				h.log.Warn("MC_TE_FILTERS names a NIC that is not there or cannot be used", "nic", f, "there", known, "err", err)
			}
		}
		if used, err = h.candidates(nil, known); err != nil {
			return transport{}, err
		}
	}
	return chooseTransport(cfg.Protocol, cfg.Settings, known, used)
}

// chooseTransport decides for a host with these NICs, of which some may be used.
func chooseTransport(protocol string, env config.Env, nics, used []string) (transport, error) {
	none := len(used) == 0
	there := "there are NICs: " + strings.Join(used, ", ")
	switch {
	case none && len(nics) == 0:
		there = "no RDMA device can be used on this host; RAILHOP_PROVIDERS=soft plays one in software"
	case none:
		there = fmt.Sprintf("MC_TE_FILTERS lets none of the NICs %s through", strings.Join(nics, ", "))
	}
	switch {
	case env.Transport.ForceTCP:
		return transport{tcp: true, why: "MC_FORCE_TCP is set"}, nil
	case protocol == wire.ProtocolTCP:
		t := transport{tcp: true, why: "protocol tcp was asked for"}
		if !none {
			t.warn = "NICs are there and not used: for them ask for protocol rdma"
		}
		return t, nil
	case none && env.Transport.ForceHCA:
		return transport{}, fmt.Errorf("%w: MC_FORCE_HCA is set, and %s", ErrNoProvider, there)
	case none && env.Providers.Verbs:
		return transport{}, fmt.Errorf("%w: RAILHOP_PROVIDERS names verbs, and %s", ErrNoProvider, there)
	case protocol == wire.ProtocolRDMA && none:
		return transport{tcp: true, why: there, warn: "protocol rdma was asked for and cannot be had"}, nil
	case protocol == wire.ProtocolRDMA:
		return transport{why: "protocol rdma was asked for"}, nil
	case protocol != "":
		t := transport{tcp: none, why: there}
		t.warn = fmt.Sprintf("protocol %.64q is not known: want rdma or tcp", protocol)
		return t, nil
	case none:
		return transport{tcp: true, why: there, warn: "there is no NIC to be used"}, nil
	}
	return transport{why: there}, nil
}
