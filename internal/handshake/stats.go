package handshake

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/wire"
)

// Stats counts what a server has seen.
type Stats struct {
	Accepted      uint64 // connections
	Frames        uint64 // well-formed frames
	Connections   uint64 // of those: handshakes
	Metadata      uint64 // descriptor requests
	Notifications uint64
	Probes        uint64
	Fences        uint64

	Rejected    uint64 // answered with a refusal
	BadFrame    uint64 // closed without a reply, as are all that follow
	HTTPProbe   uint64
	TLSProbe    uint64
	TooLong     uint64
	Timeouts    uint64 // the request was not complete in time
	Empty       uint64 // nothing was sent
	WriteErrors uint64 // the reply could not be written
	Panics      uint64 // of handlers

	InProgress int // requests now
}

type counters struct {
	accepted, frames                                     atomic.Uint64
	connections, metadata, notifications, probes, fences atomic.Uint64
	rejected, badFrame, httpProbe, tlsProbe, tooLong     atomic.Uint64
	timeouts, empty, writeErrors, panics                 atomic.Uint64
	inProgress                                           atomic.Int64
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{
		Accepted:      c.accepted.Load(),
		Frames:        c.frames.Load(),
		Connections:   c.connections.Load(),
		Metadata:      c.metadata.Load(),
		Notifications: c.notifications.Load(),
		Probes:        c.probes.Load(),
		Fences:        c.fences.Load(),
		Rejected:      c.rejected.Load(),
		BadFrame:      c.badFrame.Load(),
		HTTPProbe:     c.httpProbe.Load(),
		TLSProbe:      c.tlsProbe.Load(),
		TooLong:       c.tooLong.Load(),
		Timeouts:      c.timeouts.Load(),
		Empty:         c.empty.Load(),
		WriteErrors:   c.writeErrors.Load(),
		Panics:        c.panics.Load(),
		InProgress:    int(c.inProgress.Load()),
	}
}

func isSyntax(err error) bool {
	var se *wire.SyntaxError
	return errors.As(err, &se)
}

// logKind groups lines that come in storms.
type logKind uint8

const (
	logAccept logKind = iota
	logProbe
	logTooLong
	logOwnTooLong
	logBadFrame
	logTimeout
	logRejected
	logKinds
)

// quietLog writes at most one line a second of each kind, with the number of
// those it left out.
type quietLog struct {
	logger *slog.Logger
	next   [logKinds]atomic.Int64 // unix nanoseconds
	left   [logKinds]atomic.Int64
}

func (q *quietLog) info(k logKind, msg string, args ...any) {
	if left, ok := q.due(k, time.Now()); ok {
		q.logger.Info(msg, append(args, "left_out", left)...)
	}
}

func (q *quietLog) warn(k logKind, msg string, args ...any) {
	if left, ok := q.due(k, time.Now()); ok {
		q.logger.Warn(msg, append(args, "left_out", left)...)
	}
}

func (q *quietLog) due(k logKind, now time.Time) (left int64, ok bool) {
	next := q.next[k].Load()
	if now.UnixNano() < next || !q.next[k].CompareAndSwap(next, now.Add(time.Second).UnixNano()) {
		q.left[k].Add(1)
		return 0, false
	}
	return q.left[k].Swap(0), true
}
