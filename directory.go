package railhop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/metadata"
	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// joinTimeout bounds joining and leaving a metadata server, publishTimeout one
// change of the descriptor there, and liveTimeout the question whether another
// process of the same name lives.
const (
	joinTimeout    = 15 * time.Second
	publishTimeout = 5 * time.Second
	liveTimeout    = 2 * time.Second
)

// served reports whether a metadata server is asked, and not the peers themselves.
func (c Config) served() bool { return c.Metadata != "" && c.Metadata != metadata.P2PHandshake }

// named asks peers whose handshake servers a metadata server knows.
type named struct {
	handshake.Asker
	dir *metadata.Directory
}

func (n named) Describe(ctx context.Context, name string) (*wire.SegmentDesc, error) {
	return n.dir.Describe(ctx, name)
}

// at asks at the address of a server. If nobody answers there, it may have moved.
func (n named) at(ctx context.Context, server string, ask func(address string) error) error {
	d, err := n.dir.Daemon(ctx, server, false)
	if err != nil {
		return err
	}
	err = ask(d.String())
	if !errors.Is(err, xfer.ErrSocket) || ctx.Err() != nil {
		return err
	}
	now, ferr := n.dir.Daemon(ctx, server, true)
	if ferr != nil || now == d {
		return err
	}
	return ask(now.String())
}

func (n named) Connect(ctx context.Context, server string, h wire.HandShake) (reply wire.HandShake, err error) {
	err = n.at(ctx, server, func(address string) error {
		var err error
		reply, err = n.Asker.Connect(ctx, address, h)
		return err
	})
	return reply, err
}

func (n named) Notify(ctx context.Context, server string, note wire.Notification) error {
	return n.at(ctx, server, func(address string) error { return n.Asker.Notify(ctx, address, note) })
}

func (n named) Probe(ctx context.Context, server string) error {
	return n.at(ctx, server, func(address string) error { return n.Asker.Probe(ctx, address) })
}

func (n named) Fence(ctx context.Context, server string, q wire.FenceRequest) (reply wire.FenceReply, err error) {
	err = n.at(ctx, server, func(address string) error {
		var err error
		reply, err = n.Asker.Fence(ctx, address, q)
		return err
	})
	return reply, err
}

// openDirectory opens the metadata server, if there is one.
func (e *Engine) openDirectory() error {
	if !e.cfg.served() {
		return nil
	}
	m := e.cfg.Settings.Metadata
	store, err := metadata.Open(e.cfg.Metadata, metadata.Options{
		RedisUsername: m.RedisUsername, RedisPassword: string(m.RedisPassword), RedisDB: m.RedisDB, DefaultPort: e.cfg.Settings.Names.HandshakePort,
	})
	if err != nil {
		return fmt.Errorf("railhop: %w", err)
	}
	e.dir = metadata.New(store, m.ClusterID)
	return nil
}

// join makes the engine known on the metadata server.
func (e *Engine) join() error {
	if e.dir == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(e.ctx, joinTimeout)
	defer cancel()
	at := metadata.Daemon{Host: e.cfg.Settings.Names.TCPBindAddress, Port: e.server.Port()}
	var err error
	switch {
	case e.cfg.Settings.Names.LegacyRPCPort:
		at.Host, _, err = wire.ParseServer(e.name, 1)
	case at.Host == "":
		at.Host, err = ownAddress(e.cfg.Settings.Names.IPv6)
	}
	if err != nil {
		return fmt.Errorf("railhop: address to be advertised: %w", err)
	}
	if err := e.dir.Join(ctx, e.name, at, e.lives); err != nil {
		return fmt.Errorf("railhop: join %s: %w", e.cfg.Metadata, err)
	}
	e.joined = true
	return e.publish()
}

// lives asks whether another process goes by our name.
func (e *Engine) lives(ctx context.Context, at metadata.Daemon) bool {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	desc, err := e.asker.Describe(ctx, at.String())
	if err == nil {
		return desc.Name == e.name
	}
	return !errors.Is(err, xfer.ErrSocket) && !errors.Is(err, xfer.ErrDNS)
}

// publish brings the descriptor on the metadata server up to date.
func (e *Engine) publish() error {
	if e.dir == nil || !e.joined {
		return nil
	}
	e.publishMu.Lock()
	defer e.publishMu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), publishTimeout)
	defer cancel()
	if err := e.dir.Publish(ctx, e.name, e.local.Encoded()); err != nil {
		return fmt.Errorf("railhop: publish the descriptor of %s: %w", e.name, err)
	}
	return nil
}

// publishLater is publish for the pump.
func (e *Engine) publishLater() {
	if e.dir == nil {
		return
	}
	e.wg.Go(func() {
		if err := e.publish(); err != nil {
			e.log.Warn("descriptor not published", "err", err)
		}
	})
}

// leave takes the engine off the metadata server. No memory is registered any more.
func (e *Engine) leave() error {
	if e.dir == nil {
		return nil
	}
	var err error
	if e.joined {
		ctx, cancel := context.WithTimeout(context.Background(), joinTimeout)
		defer cancel()
		if err = e.dir.Leave(ctx, e.name, e.local.Encoded()); err != nil {
			err = fmt.Errorf("railhop: leave %s: %w", e.cfg.Metadata, err)
		}
	}
	return errors.Join(err, e.dir.Close())
}

// ownAddress is the first address of an interface that is up, and not the loopback's.
func ownAddress(v6 bool) (string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagRunning == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if ip := p.Addr(); err == nil && ip.Is6() == v6 {
				if ip.IsLinkLocalUnicast() && v6 {
					ip = ip.WithZone(i.Name)
				}
				return ip.String(), nil
			}
		}
	}
	return "", fmt.Errorf("no interface but the loopback is up: set MC_TCP_BIND_ADDRESS")
}

// refresh fetches all known descriptors anew, every so often.
func (e *Engine) refresh(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-tick.C:
		}
		for _, r := range e.cache.All() {
			if _, err := r.Refetch(e.ctx, r.Desc()); err != nil {
				e.log.Debug("descriptor not fetched", "segment", r.Name, "err", err)
			}
		}
	}
}
