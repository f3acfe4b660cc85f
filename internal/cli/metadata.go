package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/railhop/railhop/internal/metadata"
)

// metadataOptions are the flags of metadata-server.
type metadataOptions struct {
	listen string
	path   string
}

func newMetadataCmd(a *app) *cobra.Command {
	o := metadataOptions{}
	cmd := &cobra.Command{
		Use:   "metadata-server",
		Short: "Serve segment descriptors over HTTP, for engines of Mooncake and of railhop",
		Long: `metadata-server keeps the descriptors of segments in memory and serves them over HTTP,
as Mooncake's http_metadata_server.py does. Engines of both kinds are given its address:

  railhop metadata-server --listen 10.0.0.1:8080
  … metadata server http://10.0.0.1:8080/metadata

GET, PUT and DELETE on ?key=… answer 200, 404 where there is no such key, and 400 where
none is given. The entry of a process's handshake port (rpc_meta) is not overwritten by
another value, so that two processes do not go by one name: 400. Anybody who reaches the
port can read and change everything: keep it in a network that is trusted.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !strings.HasPrefix(o.path, "/") || strings.ContainsAny(o.path, "?#{} ") {
				return usagef("metadata-server: --path %q: want a path such as /metadata", o.path)
			}
			if _, _, err := net.SplitHostPort(o.listen); err != nil {
				return usagef("metadata-server: --listen %q: want host:port, such as 127.0.0.1:8080", o.listen)
			}
			return a.serveMetadata(cmd.Context(), &o)
		},
	}
	cmd.Flags().StringVar(&o.listen, "listen", "127.0.0.1:8080", "host:port to listen on; port 0 is any")
	cmd.Flags().StringVar(&o.path, "path", "/metadata", "path to serve")
	return cmd
}

// serveMetadata serves until ctx ends.
func (a *app) serveMetadata(ctx context.Context, o *metadataOptions) error {
	ln, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("metadata-server: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(o.path, metadata.NewServer())
	server := http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute}
	fmt.Fprintf(a.out, "http://%s%s\n", ln.Addr(), o.path)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	select {
	case err := <-ended:
		return fmt.Errorf("metadata-server: %w", err)
	case <-ctx.Done():
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if server.Shutdown(late) != nil {
		server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metadata-server: %w", err)
	}
	return nil
}
