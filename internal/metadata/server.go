package metadata

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Server is a metadata server as Mooncake's http_metadata_server.py is one: it keeps
// keys and values in memory. It is an [http.Handler] for one path.
//
//	GET, PUT, DELETE ?key=…   200; 404 no such key; 400 no key
//
// A PUT on the key of a daemon (one with rpc_meta in it) that has another value is refused with
// 400, so that two processes do not go by one name.
type Server struct {
	mu     sync.Mutex
	values map[string][]byte
	size   int // bytes of keys and values
}

// NewServer returns a server without keys.
func NewServer() *Server { return &Server{values: make(map[string][]byte)} }

// maxKept bounds what a server keeps, in bytes.
const maxKept = 4 << 30

// Len returns how many keys there are.
func (s *Server) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.values)
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	say := func(status int, text string) {
		w.WriteHeader(status)
		io.WriteString(w, text)
	}
	key := strings.TrimSpace(r.URL.Query().Get("key"))
	if key == "" {
		say(http.StatusBadRequest, "metadata key is required")
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		s.mu.Lock()
		value, ok := s.values[key]
		s.mu.Unlock()
		if !ok {
			say(http.StatusNotFound, "metadata not found")
			return
		}
		w.Write(value)
	case http.MethodPut:
		value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxValue))
		if err != nil {
			status := http.StatusBadRequest
			if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
				status = http.StatusRequestEntityTooLarge
			}
			say(status, err.Error())
			return
		}
		say(s.put(key, value))
	case http.MethodDelete:
		s.mu.Lock()
		value, ok := s.values[key]
		if ok {
			s.size -= len(key) + len(value)
			delete(s.values, key)
		}
		s.mu.Unlock()
		if !ok {
			say(http.StatusNotFound, "metadata not found")
			return
		}
		say(http.StatusOK, "metadata deleted")
	default:
		w.Header().Set("Allow", "GET, PUT, DELETE")
		say(http.StatusMethodNotAllowed, "Method not allowed")
	}
}

func (s *Server) put(key string, value []byte) (status int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.values[key]
	if ok && strings.Contains(key, "rpc_meta") && !bytes.Equal(old, value) {
		return http.StatusBadRequest, "Duplicate rpc_meta key not allowed"
	}
	size := s.size + len(value) - len(old)
	if !ok {
		size += len(key)
	}
	if size > maxKept {
		return http.StatusInsufficientStorage, "the server is full"
	}
	s.size = size
	s.values[key] = value
	return http.StatusOK, "metadata updated"
}
