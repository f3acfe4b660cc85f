package metadata

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/railhop/railhop/internal/wire"
)

// Daemon is where a process's handshake server is.
type Daemon struct {
	Host string
	Port uint16
}

func (d Daemon) String() string { return wire.ServerName(d.Host, d.Port) }

// rpcEntry is a Daemon as it is stored.
type rpcEntry struct {
	Host *string `json:"ip_or_host_name"`
	Port *uint64 `json:"rpc_port"`
}

// Directory is Mooncake's keys in a store:
//
//	mooncake/[cluster/]ram/<segment>       descriptor; without ram/ if the name has a slash
//	mooncake/[cluster/]rpc_meta/<server>   where its handshake server is
type Directory struct {
	store  Store
	prefix string

	mu      sync.Mutex
	daemons map[string]Daemon
}

// New returns the directory of a cluster; "" is the one without an id. It takes the
// store over.
func New(store Store, cluster string) *Directory {
	d := &Directory{store: store, prefix: "mooncake/", daemons: make(map[string]Daemon)}
	if cluster != "" {
		d.prefix += strings.TrimSuffix(cluster, "/") + "/"
	}
	return d
}

// Close closes the store.
func (d *Directory) Close() error { return d.store.Close() }

func (d *Directory) segmentKey(name string) string {
	if strings.Contains(name, "/") {
		return d.prefix + name
	}
	return d.prefix + "ram/" + name
}

func (d *Directory) daemonKey(name string) string { return d.prefix + "rpc_meta/" + name }

// Describe fetches a segment's descriptor.
func (d *Directory) Describe(ctx context.Context, name string) (*wire.SegmentDesc, error) {
	key := d.segmentKey(name)
	b, err := d.store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	desc, err := wire.DecodeSegmentDesc(bytes.TrimSpace(b))
	if err != nil {
		return nil, &Error{"get", key, err}
	}
	return desc, nil
}

// Daemon returns where a process's handshake server is. It is remembered; fresh asks
// the store in any case.
func (d *Directory) Daemon(ctx context.Context, name string, fresh bool) (Daemon, error) {
	d.mu.Lock()
	at, ok := d.daemons[name]
	d.mu.Unlock()
	if ok && !fresh {
		return at, nil
	}
	key := d.daemonKey(name)
	b, err := d.store.Get(ctx, key)
	if err != nil {
		return Daemon{}, err
	}
	var e rpcEntry
	if err = json.Unmarshal(b, &e); err == nil && (e.Host == nil || *e.Host == "" || e.Port == nil || *e.Port == 0 || *e.Port > 65535) {
		err = errors.New(`want {"ip_or_host_name": text, "rpc_port": 1 to 65535}`)
	}
	if err != nil {
		return Daemon{}, &Error{"get", key, fmt.Errorf("%.200q: %w", b, err)}
	}
	at = Daemon{*e.Host, uint16(*e.Port)}
	d.mu.Lock()
	d.daemons[name] = at
	d.mu.Unlock()
	return at, nil
}

// Join makes this process known by a name. A daemon that goes by that name already is
// replaced unless lives says that it lives: it fails with [ErrTaken] then. HTTP servers
// refuse to overwrite the entry of a daemon, so that one that is left over is deleted
// first.
func (d *Directory) Join(ctx context.Context, name string, at Daemon, lives func(context.Context, Daemon) bool) error {
	key := d.daemonKey(name)
	old, err := d.Daemon(ctx, name, true)
	switch {
	case errors.Is(err, ErrNotFound):
	case err == nil && old != at && lives(ctx, old):
		return &Error{"put", key, fmt.Errorf("%w by the process at %v", ErrTaken, old)}
	default:
		// Left over, or nothing that can be read; a server that cannot be
		// reached fails again now.
		if err := d.store.Delete(ctx, key); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	port := uint64(at.Port)
	text, err := json.Marshal(rpcEntry{&at.Host, &port})
	if err != nil {
		return &Error{"put", key, err}
	}
	return d.store.Put(ctx, key, d.value(text))
}

// Publish stores this process's descriptor.
func (d *Directory) Publish(ctx context.Context, name string, desc []byte) error {
	return d.store.Put(ctx, d.segmentKey(name), d.value(desc))
}

// Leave takes this process's keys away. Empty is its descriptor without buffers, for
// readers that come between.
func (d *Directory) Leave(ctx context.Context, name string, empty []byte) error {
	err := d.Publish(ctx, name, empty)
	for _, key := range []string{d.daemonKey(name), d.segmentKey(name)} {
		if derr := d.store.Delete(ctx, key); derr != nil && !errors.Is(derr, ErrNotFound) {
			err = errors.Join(err, derr)
		}
	}
	return err
}

// value is a text as the store's values end.
func (d *Directory) value(text []byte) []byte {
	text = bytes.TrimRight(text, "\n")
	if d.store.Newline() {
		text = append(bytes.Clone(text), '\n')
	}
	return text
}
