package railhop

import (
	"context"
	"fmt"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// Notification is a short message between engines. It is delivered once, and not
// ordered with others.
type Notification = wire.Notification

// Notify delivers a notification to a target and waits until the target has it.
// It goes over the handshake port: wait for the transfers that it tells of first.
func (e *Engine) Notify(ctx context.Context, target SegmentID, n Notification) error {
	r := e.cache.Get(target)
	if r == nil {
		return fmt.Errorf("railhop: notify: segment %d is not open: %w", target, xfer.ErrInvalidArgument)
	}
	return e.dialer.Notify(ctx, r.Desc().Name, n)
}

// Probe asks whether the engine behind a name answers.
func (e *Engine) Probe(ctx context.Context, name string) error { return e.dialer.Probe(ctx, name) }

// maxNotes bounds the notifications that nobody has taken yet.
const maxNotes = 1 << 16

func (e *Engine) notified(n wire.Notification) {
	e.notesMu.Lock()
	defer e.notesMu.Unlock()
	if len(e.notes) == maxNotes {
		e.log.Warn("notification dropped: nobody takes them", "waiting", maxNotes, "name", n.Name)
		return
	}
	e.notes = append(e.notes, n)
}

// Notifications returns the notifications received since the last call, oldest
// first.
func (e *Engine) Notifications() []Notification {
	e.notesMu.Lock()
	defer e.notesMu.Unlock()
	notes := e.notes
	e.notes = nil
	return notes
}
