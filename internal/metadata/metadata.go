// Package metadata keeps segment descriptors on a metadata server, under Mooncake's keys:
// an HTTP server, etcd or Redis.
//
//	Open("http://…") ─> Store ── New ─> Directory ── Describe ─> a peer's descriptor
//	                                        ├─────── Daemon ───> where its handshake server is
//	                                        └─────── Join, Publish, Leave: our own
//
// A [Store] moves values and knows nothing of their meaning. P2PHANDSHAKE, where peers
// tell of themselves, needs none of this. The package opens no handshake: whether the
// owner of a name lives is asked of the caller. [Server] is an HTTP server of its own.
//
// There are no goroutines but those of the clients. All methods may be called by any.
package metadata

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

// P2PHandshake in place of a server's address means that there is none.
const P2PHandshake = "P2PHANDSHAKE"

var (
	// ErrNotFound is returned when a store has no such key.
	ErrNotFound = errors.New("metadata: no such key")
	// ErrTaken is returned when another process that lives goes by the same name.
	ErrTaken = errors.New("metadata: the name is taken")
)

// Store is a metadata server.
type Store interface {
	// Get returns a key's value. It fails with [ErrNotFound].
	Get(ctx context.Context, key string) ([]byte, error)
	Put(ctx context.Context, key string, value []byte) error
	// Delete fails with [ErrNotFound] if the store says that there is no such key.
	Delete(ctx context.Context, key string) error
	// Newline reports whether values end with one, as Mooncake writes them there.
	Newline() bool
	Close() error
}

// Options configures [Open].
type Options struct {
	RedisUsername, RedisPassword string
	RedisDB                      int
	DefaultPort                  int // of a Redis server named without one; 0 means 12001, Mooncake's
}

// callTimeout bounds one call of etcd and Redis.
const callTimeout = 5 * time.Second

// maxValue bounds what is taken from a server, in bytes.
const maxValue = 128 << 20

// Check says whether a connection string names a server that [Open] can connect to.
func Check(server string) error {
	scheme, rest := split(server)
	if rest == "" {
		return fmt.Errorf("metadata: server %q: no address: %w", server, xfer.ErrInvalidArgument)
	}
	switch scheme {
	case "http", "https", "etcd", "redis":
		return nil
	}
	return fmt.Errorf("metadata: server %.256q: scheme %.64q is not known: want http, https, etcd, redis, or %s for none: %w",
		server, scheme, P2PHandshake, xfer.ErrInvalidArgument)
}

// split returns etcd as the scheme of an address alone.
func split(server string) (scheme, rest string) {
	scheme, rest, ok := strings.Cut(server, "://")
	if !ok {
		return "etcd", server
	}
	return scheme, rest
}

// Open returns the store that a connection string names: http://…, https://…,
// etcd://…, redis://…, or an address alone, which is etcd's. It connects when first
// used.
func Open(server string, opts Options) (Store, error) {
	if err := Check(server); err != nil {
		return nil, err
	}
	switch scheme, rest := split(server); scheme {
	case "etcd":
		return newEtcd(rest)
	case "redis":
		return newRedis(rest, opts)
	default:
		return newHTTP(server)
	}
}

// Error is a call to a store that failed. [errors.As] finds it as [xfer.ErrMetadata] too.
type Error struct {
	Op, Key string
	Err     error
}

func (e *Error) Error() string { return fmt.Sprintf("metadata: %s %s: %v", e.Op, e.Key, e.Err) }

func (e *Error) Unwrap() []error { return []error{xfer.ErrMetadata, e.Err} }
