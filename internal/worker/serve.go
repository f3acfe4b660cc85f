package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/nic"
)

// Handler runs a command. emit sends an event to the parent; ctx ends when the
// parent gives the command up, or is gone.
type Handler func(ctx context.Context, args json.RawMessage, emit func(any)) (any, error)

// Options sets up a worker.
type Options struct {
	Logger *slog.Logger // nil means none
	// WrapNICs and WrapGPUs put something between the engines and the hardware.
	// They are for tests.
	WrapNICs func(nic.Provider) nic.Provider
	WrapGPUs func(gpu.Provider) gpu.Provider
	// Commands are further commands. They are for tests.
	Commands map[string]Handler
}

// Serve obeys the commands on in, until it ends or ctx does. It then stops what
// is under way and closes all engines.
func Serve(ctx context.Context, in io.Reader, out io.Writer, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := newHost(o)
	s := &server{out: out, commands: h.commands(), running: make(map[uint64]context.CancelFunc)}
	maps.Copy(s.commands, o.Commands)
	lines, failed := make(chan []byte), make(chan error, 1)
	go func() {
		scan := bufio.NewScanner(in)
		scan.Buffer(nil, maxLine)
		for scan.Scan() {
			select {
			case lines <- slices.Clone(scan.Bytes()):
			case <-ctx.Done():
				return
			}
		}
		failed <- scan.Err()
	}()
	var err error
	for open := true; open; {
		select {
		case line := <-lines:
			s.obey(ctx, line)
		case err = <-failed:
			open = false
		case <-ctx.Done():
			open = false
		}
	}
	cancel()
	s.wg.Wait()
	if err != nil {
		err = fmt.Errorf("worker: read commands: %w", err)
	}
	return errors.Join(err, h.close())
}

// server is the protocol's state at the worker's end.
type server struct {
	commands map[string]Handler
	wg       sync.WaitGroup

	outMu sync.Mutex
	out   io.Writer

	mu      sync.Mutex
	running map[uint64]context.CancelFunc
}

func (s *server) obey(ctx context.Context, line []byte) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		s.send(message{Error: fmt.Sprintf("worker: command %.80q: %v", line, err)})
		return
	}
	if m.Do == "cancel" {
		s.mu.Lock()
		if cancel := s.running[m.ID]; cancel != nil {
			cancel()
		}
		s.mu.Unlock()
		return
	}
	h := s.commands[m.Do]
	if h == nil {
		known := strings.Join(slices.Sorted(maps.Keys(s.commands)), ", ")
		s.send(message{ID: m.ID, Error: fmt.Sprintf("worker: command %q: want one of %s", m.Do, known)})
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.running[m.ID] = cancel
	s.mu.Unlock()
	s.wg.Go(func() {
		defer cancel()
		result, err := h(ctx, m.Args, func(event any) {
			if b, err := json.Marshal(event); err == nil {
				s.send(message{ID: m.ID, Event: b})
			}
		})
		s.mu.Lock()
		delete(s.running, m.ID)
		s.mu.Unlock()
		reply := message{ID: m.ID}
		if err == nil {
			reply.OK, err = json.Marshal(result)
		}
		if err != nil {
			reply.Error = err.Error()
		}
		s.send(reply)
	})
}

// send writes a line. If nobody reads any more, the input has ended too.
func (s *server) send(m message) {
	b, err := json.Marshal(m)
	if err != nil {
		return
	}
	s.outMu.Lock()
	defer s.outMu.Unlock()
	s.out.Write(append(b, '\n'))
}

// on makes a handler of a function of typed arguments.
func on[A, R any](f func(ctx context.Context, args A, emit func(any)) (R, error)) Handler {
	return func(ctx context.Context, raw json.RawMessage, emit func(any)) (any, error) {
		var args A
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, &args); err != nil {
				return nil, fmt.Errorf("worker: arguments: %w", err)
			}
		}
		return f(ctx, args, emit)
	}
}
