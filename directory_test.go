package railhop_test

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/metadata"
	"github.com/railhop/railhop/internal/nic/softnic"
	"github.com/railhop/railhop/internal/pattern"
)

// overHTTP has engines meet by a metadata server.
func overHTTP(t *testing.T) (server *metadata.Server, join func(name string) func(*railhop.Config)) {
	t.Helper()
	server = metadata.NewServer()
	s := httptest.NewServer(server)
	t.Cleanup(s.Close)
	return server, func(name string) func(*railhop.Config) {
		return func(c *railhop.Config) {
			c.Host, c.Metadata = name, s.URL+"/metadata"
			c.Settings = loadSettings(t, settings{"MC_TCP_BIND_ADDRESS": "127.0.0.1"})
		}
	}
}

func TestMetadataServer(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"tcp", "rdma"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			server, join := overHTTP(t)
			with := func(name string) func(*railhop.Config) {
				return func(c *railhop.Config) {
					join(name)(c)
					if c.Protocol = protocol; protocol == "rdma" {
						c.NICs = must(softnic.New(softnic.Options{Devices: must(softnic.ParseDevices("m0=127.0.0.1"))}))
					}
				}
			}
			a, b := openTCP(t, with("node-a:1")), openTCP(t, with("node-b"))
			if a.Name() != "node-a:1" {
				t.Errorf("named %q, want the name given", a.Name())
			}
			src, srcAddr := registerBytes(t, a, 1<<20)
			dst, dstAddr := registerBytes(t, b, 1<<20)
			pattern.Fill(src, 5, 0)
			id := openSegment(t, a, "node-b")
			if err := a.Write(t.Context(), id, srcAddr, dstAddr, 1<<20); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(src, dst) {
				t.Error("the target's memory is not as written")
			}
			if err := a.Notify(t.Context(), id, railhop.Notification{Name: "n", Msg: "m"}); err != nil {
				t.Error(err)
			}
			if got := b.Notifications(); len(got) != 1 {
				t.Errorf("%d notifications, want 1", len(got))
			}
			if err := a.Probe(t.Context(), "node-b"); err != nil {
				t.Error(err)
			}
			if err := a.Probe(t.Context(), "node-c"); !errors.Is(err, railhop.ErrMetadata) {
				t.Errorf("probe of an unknown name: got %v, want %v", err, railhop.ErrMetadata)
			}
			for _, e := range []*railhop.Engine{a, b} {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			}
			if n := server.Len(); n != 0 {
				t.Errorf("%d keys are left on the server", n)
			}
		})
	}
}

// A name belongs to one process that lives, and to whoever comes after one that has
// crashed.
func TestOneNameOneProcess(t *testing.T) {
	t.Parallel()
	_, join := overHTTP(t)
	first := openTCP(t, join("n"))
	cfg := railhop.Defaults()
	cfg.Protocol = "tcp"
	join("n")(&cfg)
	if _, err := railhop.Open(cfg); !errors.Is(err, metadata.ErrTaken) {
		t.Fatalf("a second engine of the name: got %v, want %v", err, metadata.ErrTaken)
	}
	_, addr := registerBytes(t, first, 4096)
	other := openTCP(t, join("other"))
	id := openSegment(t, other, "n")
	if err := other.Write(t.Context(), id, addr, addr, 10); err != nil {
		t.Fatal(err)
	}

	railhop.Crash(first)
	second := openTCP(t, join("n"))
	mem, addr := registerBytes(t, second, 4096)
	local := railhop.Heap(5)
	copy(local, "hello")
	if err := other.Write(t.Context(), id, railhop.AddressOf(local), addr, 5); err != nil {
		t.Fatalf("write to the one that came after: %v", err)
	}
	if !bytes.Equal(mem[:5], local) {
		t.Error("the target's memory is not as written")
	}
	if err := other.Probe(t.Context(), "n"); err != nil {
		t.Errorf("probe of the one that came after: %v", err)
	}
}

func TestMetadataServerIsGone(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]error{"http://127.0.0.1:1/metadata": railhop.ErrMetadata, "foo://x": railhop.ErrInvalidArgument} {
		cfg := railhop.Defaults()
		cfg.Host, cfg.Protocol, cfg.Metadata = "h", "tcp", server
		cfg.Settings.Names.TCPBindAddress = "127.0.0.1"
		if _, err := railhop.Open(cfg); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", server, err, want)
		}
	}
	server := metadata.NewServer()
	s := httptest.NewServer(server)
	defer s.Close()
	cfg := railhop.Defaults()
	cfg.Host, cfg.Protocol, cfg.Metadata = "h", "tcp", s.URL
	cfg.Settings.Names.TCPBindAddress = "127.0.0.1"
	e, err := railhop.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s.Close()
	mem := railhop.Heap(100)
	if err := e.Register(railhop.AddressOf(mem), 100, ""); !errors.Is(err, railhop.ErrMetadata) {
		t.Errorf("register: got %v, want %v", err, railhop.ErrMetadata)
	}
	if _, err := e.RegisterBytes(make([]byte, 100)); !errors.Is(err, railhop.ErrMetadata) {
		t.Errorf("register a slice: got %v, want %v", err, railhop.ErrMetadata)
	}
	if _, err := e.OpenSegment(context.Background(), "x"); !errors.Is(err, railhop.ErrMetadata) {
		t.Errorf("open: got %v, want %v", err, railhop.ErrMetadata)
	}
}
