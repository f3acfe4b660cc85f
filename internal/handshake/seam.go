package handshake

import (
	"context"

	"github.com/railhop/railhop/internal/wire"
)

// Asker asks peers, as [*Dialer] does.
type Asker interface {
	Connect(ctx context.Context, server string, h wire.HandShake) (wire.HandShake, error)
	Describe(ctx context.Context, server string) (*wire.SegmentDesc, error)
	Notify(ctx context.Context, server string, n wire.Notification) error
	Probe(ctx context.Context, server string) error
	Fence(ctx context.Context, server string, q wire.FenceRequest) (wire.FenceReply, error)
}

// Answerer answers peers, as [*Server] does.
type Answerer interface {
	Port() uint16
	Handle(Handlers)
	Close() error
}

var (
	_ Asker    = (*Dialer)(nil)
	_ Answerer = (*Server)(nil)
)
