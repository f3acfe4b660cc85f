package handshake

import (
	"context"
	"runtime/debug"

	"github.com/railhop/railhop/internal/wire"
)

// Handlers answer requests. Each may be nil, and each is called by many
// goroutines at once. A handler's context ends when the server closes.
type Handlers struct {
	// Connect answers a handshake; a ReplyMsg in the answer refuses it.
	Connect func(ctx context.Context, h wire.HandShake) wire.HandShake
	// Describe returns the encoded descriptor, or nil if there is none. The server
	// does not change it.
	Describe func() []byte
	Notify   func(n wire.Notification)
	// Fence returns once the epoch's queue pairs are closed; an Error in the answer
	// says that they may not be.
	Fence func(ctx context.Context, q wire.FenceRequest) wire.FenceReply
}

// answer returns the reply's body. An error closes the connection without one.
func (s *Server) answer(f wire.Frame) ([]byte, error) {
	h := s.handlers.Load()
	switch f.Type {
	case wire.Connection:
		return s.connect(h, f.Body)
	case wire.Metadata:
		s.stats.metadata.Add(1)
		if err := wire.CheckJSON(f.Body); err != nil {
			return nil, err
		}
		return s.describe(h), nil
	case wire.Notify:
		s.stats.notifications.Add(1)
		return s.notify(h, f.Body)
	case wire.Fence:
		s.stats.fences.Add(1)
		return s.fence(h, f.Body)
	default:
		s.stats.probes.Add(1)
		if err := wire.CheckJSON(f.Body); err != nil {
			return nil, err
		}
		return []byte(wire.ProbeReply), nil
	}
}

// internalError is what a peer is told of a handler that panicked.
const internalError = "internal error"

// guard calls a handler and reports whether it returned. A handler works on what
// a peer sent: its mistakes cost that peer its answer, and no more.
func (s *Server) guard(name string, handler func()) (ok bool) {
	defer func() {
		if ok {
			return
		}
		cause := recover()
		s.stats.panics.Add(1)
		s.opts.Logger.Error("handshake: handler panicked", "handler", name, "panic", cause, "stack", string(debug.Stack()))
	}()
	handler()
	return true
}

func (s *Server) connect(h *Handlers, body []byte) ([]byte, error) {
	s.stats.connections.Add(1)
	var reply wire.HandShake
	request, err := wire.DecodeHandShake(body)
	switch {
	case isSyntax(err):
		return nil, err
	case err != nil:
		reply.ReplyMsg = "Invalid argument: " + err.Error()
	case h.Connect == nil:
		reply.ReplyMsg = "No RDMA transport on this node"
	case !s.guard("connect", func() { reply = h.Connect(s.ctx, request) }):
		reply = wire.HandShake{ReplyMsg: internalError}
	}
	if reply.ReplyMsg != "" {
		s.stats.rejected.Add(1)
		s.log.info(logRejected, "handshake: rejected", "from", request.LocalNICPath, "to", request.PeerNICPath, "reason", reply.ReplyMsg)
	}
	return wire.AppendHandShake(nil, &reply), nil
}

func (s *Server) describe(h *Handlers) []byte {
	var body []byte
	if h.Describe != nil {
		s.guard("describe", func() { body = h.Describe() })
	}
	if body == nil {
		return []byte(wire.Null)
	}
	if err := wire.CheckLength(body, s.opts.MaxLength); err != nil {
		s.log.warn(logOwnTooLong, "handshake: the descriptor sent is over this process's own limit; peers with the same limit refuse it", "err", err)
	}
	return body
}

func (s *Server) notify(h *Handlers, body []byte) ([]byte, error) {
	var reply wire.Notification // an empty message refuses
	n, err := wire.DecodeNotification(body)
	switch {
	case isSyntax(err):
		return nil, err
	case err != nil:
		s.stats.rejected.Add(1)
		s.log.info(logRejected, "handshake: notification rejected", "err", err)
	case h.Notify == nil:
		return []byte(wire.Null), nil
	case s.guard("notify", func() { h.Notify(n) }):
		reply.Msg = wire.NotifySuccess
	}
	return wire.AppendNotification(nil, &reply), nil
}

func (s *Server) fence(h *Handlers, body []byte) ([]byte, error) {
	request, err := wire.DecodeFenceRequest(body)
	reply := wire.FenceReply{Epoch: request.Epoch, Nonce: request.Nonce}
	switch {
	case err != nil:
		return nil, err
	case h.Fence == nil:
		reply.Error = "no fence on this node"
	case !s.guard("fence", func() { reply = h.Fence(s.ctx, request) }):
		reply = wire.FenceReply{Error: internalError}
	}
	reply.Epoch, reply.Nonce = request.Epoch, request.Nonce
	if reply.Error != "" {
		s.stats.rejected.Add(1)
	}
	return wire.AppendFenceReply(nil, &reply), nil
}
