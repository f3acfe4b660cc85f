package metadata

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/xfer"
)

func overHTTP(t *testing.T, cluster string) (*Directory, *Server) {
	t.Helper()
	server := NewServer()
	s := httptest.NewServer(server)
	t.Cleanup(s.Close)
	return New(mustOpen(t, s.URL, Options{}), cluster), server
}

// A process that has crashed can come back by its name, and one that lives keeps it.
func TestJoin(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	first, second := Daemon{"127.0.0.1", 15001}, Daemon{"127.0.0.1", 15002}
	for _, tt := range []struct {
		name  string
		lives bool
		left  string // in the first's place, unless empty
		want  error
	}{
		{"the other lives", true, "", ErrTaken},
		{"the other has crashed", false, "", nil},
		{"what is there cannot be read", true, "[]", nil},
	} {
		d, server := overHTTP(t, "c/")
		if err := d.Join(ctx, "n", first, nil); err != nil {
			t.Fatal(err)
		}
		if tt.left != "" {
			server.values["mooncake/c/rpc_meta/n"] = []byte(tt.left)
		}
		asked := Daemon{}
		err := d.Join(ctx, "n", second, func(_ context.Context, at Daemon) bool { asked = at; return tt.lives })
		if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
			t.Errorf("%s: got error %v, want %v", tt.name, err, tt.want)
		}
		if tt.left == "" && asked != first {
			t.Errorf("%s: asked whether %v lives, want %v", tt.name, asked, first)
		}
		want := second
		if tt.want != nil {
			want = first
		}
		if got, err := d.Daemon(ctx, "n", true); err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", tt.name, got, err, want)
		}
	}
}

func TestDaemonIsRemembered(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d, server := overHTTP(t, "")
	if _, err := d.Daemon(ctx, "n", false); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want %v", err, ErrNotFound)
	}
	server.values["mooncake/rpc_meta/n"] = []byte(`{"ip_or_host_name":"a","rpc_port":1}`)
	at, err := d.Daemon(ctx, "n", false)
	if err != nil || at != (Daemon{"a", 1}) {
		t.Fatalf("got %v, %v", at, err)
	}
	server.values["mooncake/rpc_meta/n"] = []byte(`{"ip_or_host_name":"b","rpc_port":2}`)
	if at, _ = d.Daemon(ctx, "n", false); at.Host != "a" {
		t.Errorf("got %v, want the one that is remembered", at)
	}
	if at, _ = d.Daemon(ctx, "n", true); at.Host != "b" {
		t.Errorf("got %v, want the new one", at)
	}
}

func TestBadValues(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d, server := overHTTP(t, "")
	for _, text := range []string{
		"", "null", "[]", "{}", `{"ip_or_host_name":"a"}`, `{"ip_or_host_name":"","rpc_port":1}`, `{"ip_or_host_name":1,"rpc_port":1}`,
		`{"ip_or_host_name":"a","rpc_port":"1"}`, `{"ip_or_host_name":"a","rpc_port":65536}`, `{"ip_or_host_name":"a","rpc_port":0}`,
	} {
		server.values["mooncake/rpc_meta/n"] = []byte(text)
		if at, err := d.Daemon(ctx, "n", true); !errors.Is(err, xfer.ErrMetadata) {
			t.Errorf("daemon %q: got %v, %v; want %v", text, at, err, xfer.ErrMetadata)
		}
	}
	for _, text := range []string{"", "null", "[]", `{"name":"x"}`} {
		server.values["mooncake/ram/n"] = []byte(text)
		if _, err := d.Describe(ctx, "n"); !errors.Is(err, xfer.ErrMetadata) {
			t.Errorf("descriptor %q: got %v, want %v", text, err, xfer.ErrMetadata)
		}
	}
	server.values["mooncake/ram/n"] = []byte(`{"buffers":[{"addr":4096,"length":5,"name":"n"}],"name":"n","protocol":"tcp","tcp_data_port":15091,"tcp_proto_version":2,"timestamp":""}`)
	desc, err := d.Describe(ctx, "n")
	if err != nil || desc.TCPDataPort != 15091 || len(desc.Buffers) != 1 {
		t.Errorf("got %+v, %v", desc, err)
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	s := NewServer()
	for _, step := range []struct {
		method, query, body string
		status              int
		want                string
	}{
		{"GET", "", "", 400, "metadata key is required"},
		{"PUT", "?key=", "x", 400, "metadata key is required"},
		{"DELETE", "?key=%20", "", 400, "metadata key is required"},
		{"GET", "?key=a", "", 404, "metadata not found"},
		{"DELETE", "?key=a", "", 404, "metadata not found"},
		{"PUT", "?key=a", "1", 200, "metadata updated"},
		{"PUT", "?key=a", "2", 200, "metadata updated"},
		{"GET", "?key=a", "", 200, "2"},
		{"PUT", "?key=mooncake%2Frpc_meta%2Fn", "1", 200, "metadata updated"},
		{"PUT", "?key=mooncake%2Frpc_meta%2Fn", "1", 200, "metadata updated"},
		{"PUT", "?key=mooncake%2Frpc_meta%2Fn", "2", 400, "Duplicate rpc_meta key not allowed"},
		{"GET", "?key=mooncake%2Frpc_meta%2Fn", "", 200, "1"},
		{"DELETE", "?key=mooncake%2Frpc_meta%2Fn", "", 200, "metadata deleted"},
		{"PUT", "?key=mooncake%2Frpc_meta%2Fn", "2", 200, "metadata updated"},
		{"DELETE", "?key=a", "", 200, "metadata deleted"},
		{"POST", "?key=a", "1", 405, "Method not allowed"},
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(step.method, "/metadata"+step.query, strings.NewReader(step.body)))
		if w.Code != step.status || w.Body.String() != step.want || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: got %d %q, want %d %q", step.method, step.query, w.Code, w.Body.String(), step.status, step.want)
		}
	}
	if s.Len() != 1 || s.size != len("mooncake/rpc_meta/n")+1 {
		t.Errorf("%d keys, %d bytes", s.Len(), s.size)
	}
}

var _ http.Handler = (*Server)(nil)
