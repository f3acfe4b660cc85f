package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves an engine's counters in the form that the client asks for:
// Prometheus text, or OpenMetrics.
func Handler(s Source) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(New(s))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4})
}

// Server is an HTTP server with the one page /metrics.
type Server struct {
	listener net.Listener
	http     *http.Server
	done     chan struct{}
	once     sync.Once
	err      error
}

// Listen serves an engine's counters at addr, "host:port", until Close. Port 0
// means one that is free.
func Listen(addr string, s Source) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", Handler(s))
	v := &Server{listener: l, done: make(chan struct{}), http: &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
	}}
	go func() {
		defer close(v.done)
		if err := v.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			v.err = fmt.Errorf("metrics: %w", err)
		}
	}()
	return v, nil
}

// URL is where the counters are.
func (v *Server) URL() string { return "http://" + v.listener.Addr().String() + "/metrics" }

// Close ends the server, and gives a scrape that is underway a second. A second
// call does nothing.
func (v *Server) Close() error {
	v.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if v.http.Shutdown(ctx) != nil {
			v.http.Close()
		}
	})
	<-v.done
	return v.err
}
