package cli

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

func TestMetadataServer(t *testing.T) {
	t.Parallel()
	out, in := io.Pipe()
	a := &app{out: in, errOut: io.Discard, log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- a.serveMetadata(ctx, &metadataOptions{listen: "127.0.0.1:0", path: "/m"}) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(line)
	if !strings.HasPrefix(url, "http://127.0.0.1:") || !strings.HasSuffix(url, "/m") {
		t.Fatalf("printed %q, want its address", url)
	}
	for _, step := range []struct {
		method, url, body string
		status            int
	}{
		{"GET", url + "?key=k", "", 404},
		{"PUT", url + "?key=k", "v", 200},
		{"GET", url + "?key=k", "", 200},
		{"GET", strings.TrimSuffix(url, "m"), "", 404},
	} {
		req, err := http.NewRequestWithContext(ctx, step.method, step.url, strings.NewReader(step.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != step.status {
			t.Errorf("%s %s: status %d, want %d", step.method, step.url, resp.StatusCode, step.status)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("interrupted: %v", err)
	}
}

func TestMetadataServerUse(t *testing.T) {
	for _, tt := range []struct{ command, want string }{
		{"metadata-server --listen 8080", `--listen "8080": want host:port`},
		{"metadata-server --path metadata", `--path "metadata": want a path`},
		{"metadata-server now", "takes flags only"},
	} {
		if status, _, errOut := runMain(strings.Fields(tt.command)...); status != 2 || !strings.Contains(errOut, tt.want) {
			t.Errorf("railhop %s: status %d, %q: want 2 and %q", tt.command, status, errOut, tt.want)
		}
	}
}
