package metadata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

// freePort is a port of the loopback that was free a moment ago.
func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// daemonize runs a server for as long as the test does, and waits until store answers.
func daemonize(t *testing.T, store Store, name string, args ...string) bool {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); cmd.Wait() }()
	t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	for range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := store.Get(ctx, "none")
		cancel()
		if errors.Is(err, ErrNotFound) {
			return true
		}
		select {
		case <-ended:
			t.Logf("%s has ended:\n%s", name, out.String())
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatalf("%s does not answer", name)
	return false
}

// serverOf starts a real server; its port may be taken by others meanwhile.
func serverOf(t *testing.T, binary string, open func(port int) (Store, []string)) (Store, int) {
	t.Helper()
	path, err := exec.LookPath(binary)
	if err != nil {
		t.Skipf("no %s: tools/setup.sh installs it", binary)
	}
	for range 5 {
		port := freePort(t)
		store, args := open(port)
		t.Cleanup(func() { store.Close() })
		if daemonize(t, store, path, args...) {
			return store, port
		}
	}
	t.Fatalf("%s does not start", binary)
	return nil, 0
}

func mustOpen(t *testing.T, server string, o Options) Store {
	t.Helper()
	s, err := Open(server, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func startEtcd(t *testing.T) (Store, int) {
	return serverOf(t, "etcd", func(port int) (Store, []string) {
		client, peer := fmt.Sprintf("http://127.0.0.1:%d", port), fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
		return mustOpen(t, fmt.Sprintf("127.0.0.1:%d", port), Options{}), []string{
			"--data-dir", t.TempDir(), "--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
		}
	})
}

const redisPassword = "not a secret"

func startRedis(t *testing.T) (Store, int) {
	return serverOf(t, "redis-server", func(port int) (Store, []string) {
		return mustOpen(t, fmt.Sprintf("redis://127.0.0.1:%d", port), Options{RedisPassword: redisPassword, RedisDB: 3}), []string{
			"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--save", "", "--requirepass", redisPassword, "--dir", t.TempDir(),
		}
	})
}

func TestStores(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) Store{
		"http": func(t *testing.T) Store {
			s := httptest.NewServer(NewServer())
			t.Cleanup(s.Close)
			return mustOpen(t, s.URL+"/metadata", Options{})
		},
		"etcd":  func(t *testing.T) Store { s, _ := startEtcd(t); return s },
		"redis": func(t *testing.T) Store { s, _ := startRedis(t); return s },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testStore(t, start(t))
		})
	}
}

func testStore(t *testing.T, s Store) {
	ctx := t.Context()
	const key = "mooncake/ram/node-a:12345 ä%"
	if _, err := s.Get(ctx, key); !errors.Is(err, ErrNotFound) || !errors.Is(err, xfer.ErrMetadata) {
		t.Errorf("get of nothing: got %v, want %v", err, ErrNotFound)
	}
	if err := s.Delete(ctx, key); !errors.Is(err, ErrNotFound) {
		t.Errorf("delete of nothing: got %v, want %v", err, ErrNotFound)
	}
	long := strings.Repeat(`{"a":1}`, 1<<17)
	for _, value := range []string{`{"v":1}`, `{"v":2}`, long} {
		if err := s.Put(ctx, key, []byte(value)); err != nil {
			t.Fatal(err)
		}
		got, err := s.Get(ctx, key)
		if err != nil || string(got) != value {
			t.Fatalf("got %.40q, %v; want %.40q", got, err, value)
		}
	}
	if err := s.Delete(ctx, key); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, key); !errors.Is(err, ErrNotFound) {
		t.Errorf("get after delete: got %v, want %v", err, ErrNotFound)
	}
}

// TestKeys looks at the keys and values that a directory leaves on real servers, with
// the servers' own clients.
func TestKeys(t *testing.T) {
	t.Parallel()
	join := func(t *testing.T, s Store) {
		d := New(s, "c1")
		if err := d.Join(t.Context(), "node-a:1", Daemon{"10.0.0.1", 15001}, nil); err != nil {
			t.Fatal(err)
		}
	}
	const key, want = "mooncake/c1/rpc_meta/node-a:1", `{"ip_or_host_name":"10.0.0.1","rpc_port":15001}` + "\n"
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		s, port := startEtcd(t)
		join(t, s)
		checkOutput(t, key+"\n"+want+"\n", "etcdctl", "--endpoints", fmt.Sprintf("127.0.0.1:%d", port), "get", key)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s, port := startRedis(t)
		join(t, s)
		checkOutput(t, want+"\n", "redis-cli", "--no-auth-warning", "-a", redisPassword, "-p", fmt.Sprint(port), "-n", "3", "get", key)
	})
}

func checkOutput(t *testing.T, want, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("no %s", name)
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = []string{"ETCDCTL_API=3"}
	got, err := cmd.CombinedOutput()
	if err != nil || string(got) != want {
		t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		server string
		want   string // of the error; "" means none
	}{
		{"http://127.0.0.1:8080/metadata", ""},
		{"https://a.example/metadata", ""},
		{"etcd://a:2379,b:2379;c:2379", ""},
		{"a:2379", ""},
		{"redis://a:6379", ""},
		{"redis://a", ""},
		{"foo://x", `scheme "foo" is not known: want http, https, etcd, redis, or P2PHANDSHAKE`},
		{"http://", "no address"},
		{"http:///metadata", "want http://host"},
		{"http://a/metadata?key=1", "want http://host"},
		{"", "no address"},
		{"etcd://,", "no address"},
		{"redis://a:x", "port"},
	} {
		s, err := Open(tt.server, Options{})
		if err == nil {
			s.Close()
		}
		if (err != nil) != (tt.want != "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !errors.Is(err, xfer.ErrInvalidArgument)) {
			t.Errorf("Open(%q): got error %v, want %q", tt.server, err, tt.want)
		}
	}
}

// TestHTTPRequests compares what goes over the wire with what Mooncake sends.
func TestHTTPRequests(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []string
	server := NewServer()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		body.ReadFrom(r.Body)
		mu.Lock()
		seen = append(seen, strings.TrimSpace(r.Method+" "+r.RequestURI+" "+r.Header.Get("Content-Type")+" "+body.String()))
		mu.Unlock()
		r.Body = http.NoBody
		if body.Len() > 0 {
			r = httptest.NewRequest(r.Method, r.RequestURI, &body)
		}
		server.ServeHTTP(w, r)
	}))
	defer s.Close()
	d := New(mustOpen(t, s.URL+"/metadata", Options{}), "")
	ctx := t.Context()
	for _, err := range []error{
		d.Join(ctx, "node-a:12345", Daemon{"127.0.0.1", 16038}, nil),
		d.Publish(ctx, "node-a:12345", []byte("{}\n")),
		d.Publish(ctx, "a/b c~", []byte("{}\n")),
		d.Leave(ctx, "node-a:12345", []byte("{}\n")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	const rpc, ram = "/metadata?key=mooncake%2Frpc_meta%2Fnode-a%3A12345", "/metadata?key=mooncake%2Fram%2Fnode-a%3A12345"
	want := []string{
		"GET " + rpc,
		`PUT ` + rpc + ` application/json {"ip_or_host_name":"127.0.0.1","rpc_port":16038}`,
		"PUT " + ram + " application/json {}",
		"PUT /metadata?key=mooncake%2Fa%2Fb%20c~ application/json {}",
		"PUT " + ram + " application/json {}",
		"DELETE " + rpc,
		"DELETE " + ram,
	}
	if got := strings.Join(seen, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func TestDeadServers(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	for _, server := range []string{"http://127.0.0.1:%d/metadata", "redis://127.0.0.1:%d", "etcd://127.0.0.1:%d"} {
		server = fmt.Sprintf(server, port)
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			s := mustOpen(t, server, Options{})
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := s.Put(ctx, "k", []byte("v"))
			if !errors.Is(err, xfer.ErrMetadata) || ctx.Err() != nil {
				t.Errorf("put: %v", err)
			}
		})
	}
}
