package endpointtest

import (
	"context"
	"fmt"
	"sync"

	"github.com/railhop/railhop/internal/wire"
)

// Net carries handshakes between servers of one process. It is a dialer.
type Net struct {
	// Delay, if set, runs before a handshake is delivered and before its reply is.
	Delay func()
	// Filter, if set, may fail a handshake before it is delivered.
	Filter func(server string, hs wire.HandShake) error

	mu      sync.Mutex
	servers map[string]func(context.Context, wire.HandShake) wire.HandShake
	calls   int
	now     int
	most    int
}

// Serve makes a server known by its name; a nil accept takes it away.
func (n *Net) Serve(server string, accept func(context.Context, wire.HandShake) wire.HandShake) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.servers == nil {
		n.servers = make(map[string]func(context.Context, wire.HandShake) wire.HandShake)
	}
	n.servers[server] = accept
}

// Calls returns how many handshakes were sent, and how many at once at most.
func (n *Net) Calls() (total, atOnce int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls, n.most
}

// Connect delivers a handshake and returns the reply.
func (n *Net) Connect(ctx context.Context, server string, hs wire.HandShake) (wire.HandShake, error) {
	n.mu.Lock()
	n.calls++
	n.now++
	n.most = max(n.most, n.now)
	accept := n.servers[server]
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.now--
		n.mu.Unlock()
	}()
	if n.Delay != nil {
		n.Delay()
	}
	if n.Filter != nil {
		if err := n.Filter(server, hs); err != nil {
			return wire.HandShake{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return wire.HandShake{}, err
	}
	if accept == nil {
		return wire.HandShake{}, fmt.Errorf("endpointtest: %s: connection refused", server)
	}
	reply := accept(ctx, hs)
	if n.Delay != nil {
		n.Delay()
	}
	return reply, nil
}
