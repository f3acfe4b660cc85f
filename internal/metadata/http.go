package metadata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

// Mooncake's bounds.
const (
	httpConnectTimeout = 1500 * time.Millisecond
	httpTimeout        = 3 * time.Second
)

// httpStore is a server like Mooncake's http_metadata_server.py: GET, PUT and DELETE on
// the address and ?key=. Only status 200 is success.
type httpStore struct {
	address string
	client  http.Client
}

func newHTTP(address string) (*httpStore, error) {
	if u, err := url.Parse(address); err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("metadata: server %.256q: want http://host[:port]/path: %w", address, xfer.ErrInvalidArgument)
	}
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: httpConnectTimeout}).DialContext,
		TLSHandshakeTimeout:   httpConnectTimeout,
		MaxIdleConnsPerHost:   2,
		IdleConnTimeout:       30 * time.Second,
		ResponseHeaderTimeout: httpTimeout,
	}
	return &httpStore{address, http.Client{Transport: transport, Timeout: httpTimeout}}, nil
}

// escape is curl_easy_escape, which is what servers see from Mooncake.
func escape(key string) string {
	const hex = "0123456789ABCDEF"
	var b []byte
	for _, c := range []byte(key) {
		switch {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_' || c == '~':
			b = append(b, c)
		default:
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

// statusError is an answer other than 200.
type statusError struct {
	status int
	body   string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("status %d %s: %.200q", e.status, http.StatusText(e.status), e.body)
}

func (s *httpStore) do(ctx context.Context, method, key string, body []byte) ([]byte, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.address+"?key="+escape(key), r)
	if err != nil {
		return nil, &Error{method, key, err}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, &Error{method, key, err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxValue+1))
	switch {
	case err != nil:
	case resp.StatusCode == http.StatusNotFound:
		err = ErrNotFound
	case resp.StatusCode != http.StatusOK:
		err = &statusError{resp.StatusCode, string(b)}
	case len(b) > maxValue:
		err = errors.New("the value is too long")
	default:
		return b, nil
	}
	return nil, &Error{method, key, err}
}

func (s *httpStore) Get(ctx context.Context, key string) ([]byte, error) {
	return s.do(ctx, http.MethodGet, key, nil)
}

func (s *httpStore) Put(ctx context.Context, key string, value []byte) error {
	_, err := s.do(ctx, http.MethodPut, key, value)
	return err
}

func (s *httpStore) Delete(ctx context.Context, key string) error {
	_, err := s.do(ctx, http.MethodDelete, key, nil)
	return err
}

func (s *httpStore) Newline() bool { return false }

func (s *httpStore) Close() error {
	s.client.CloseIdleConnections()
	return nil
}
