package sim

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/wire"
)

// network carries handshakes.
type network struct {
	w         *world
	listeners map[string]*listener
	open      []*netCall
	serial    uint64
}

// listener is a handshake server of a process.
type listener struct {
	p        *proc
	name     string
	port     uint16
	handlers handshake.Handlers
	ctx      context.Context
	cancel   context.CancelFunc
	running  int
	idle     chan struct{}
	closed   bool
}

// Port implements [handshake.Answerer].
func (l *listener) Port() uint16 { return l.port }

// Handle implements [handshake.Answerer].
func (l *listener) Handle(h handshake.Handlers) {
	l.p.w.mu.Lock()
	defer l.p.w.mu.Unlock()
	l.handlers = h
}

// Close implements [handshake.Answerer].
func (l *listener) Close() error {
	w := l.p.w
	w.mu.Lock()
	if l.closed {
		w.mu.Unlock()
		return nil
	}
	l.closed = true
	if w.net.listeners[l.name] == l {
		delete(w.net.listeners, l.name)
	}
	l.cancel()
	running := l.running
	w.mu.Unlock()
	if running > 0 {
		<-l.idle
	}
	return nil
}

// listen gives a process a port. A role that starts again mostly gets the same one.
func (n *network) listen(p *proc) *listener {
	w := n.w
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &listener{p: p, port: p.role.port, idle: make(chan struct{}, 1)}
	if p.role.moves {
		l.port += uint16(p.life)
	}
	l.name = wire.ServerName(p.host, l.port)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	n.listeners[l.name] = l
	return l
}

// netCall is a request on its way to its reply.
type netCall struct {
	from   *proc
	to     *listener
	server string
	key    string
	what   string
	do     func(l *listener) // runs in the server
	done   chan error
	over   bool // answered or given up; under the world's mutex
}

func (c *netCall) end(w *world, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !c.over {
		c.over = true
		c.done <- err
	}
}

var errReset = fmt.Errorf("sim: %w", syscall.ECONNRESET)

// ask sends a request and waits for its reply, or until ctx ends.
func (n *network) ask(ctx context.Context, p *proc, server, what string, do func(*listener)) error {
	w := n.w
	if p.zombie() {
		return errReset
	}
	c := &netCall{from: p, server: server, what: what + " " + p.name + "->" + server, do: do, done: make(chan error, 1)}
	w.mu.Lock()
	n.serial++
	c.key = fmt.Sprintf("%s#%d", c.what, p.calls(c.what))
	n.open = append(n.open, c)
	w.mu.Unlock()
	w.after(nil, 10*time.Microsecond, w.plan.netDelay, c.key, "request", func() { n.deliver(c) })
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		w.mu.Lock()
		c.over = true
		w.mu.Unlock()
		return context.Cause(ctx)
	}
}

// deliver brings a request to its server.
func (n *network) deliver(c *netCall) {
	w := n.w
	if c.over || c.from.dead {
		return
	}
	if !w.quiet && w.chance(w.plan.netLoss, 1000) {
		w.fault("request lost", c.key)
		n.reply(c, errReset)
		return
	}
	w.mu.Lock()
	l := n.listeners[c.server]
	w.mu.Unlock()
	switch {
	case l == nil:
		n.reply(c, fmt.Errorf("sim: %s: %w", c.server, syscall.ECONNREFUSED))
		return
	case l.p.dead: // the kernel takes the connection, and cuts it when it tears down
		c.to = l
		return
	case l.p.stopped:
		c.to = l
		l.p.held = append(l.p.held, &event{key: c.key, what: "request", owner: l.p, fire: func() { n.deliver(c) }})
		return
	}
	c.to = l
	l.running++
	go func() {
		c.do(l)
		w.after(l.p, 0, 20*time.Microsecond, c.key, "served", func() {
			if !w.quiet && w.chance(w.plan.netLoss, 1000) {
				w.fault("reply lost", c.key)
				n.reply(c, errReset)
				return
			}
			n.reply(c, nil)
		})
		w.mu.Lock()
		l.running--
		if l.running == 0 && l.closed {
			l.idle <- struct{}{}
		}
		w.mu.Unlock()
	}()
}

func (n *network) reply(c *netCall, err error) {
	n.w.after(c.from, 5*time.Microsecond, n.w.plan.netDelay, c.key, "reply", func() {
		n.forget(c)
		c.end(n.w, err)
	}).lost = func() { c.end(n.w, errReset) }
}

func (n *network) forget(c *netCall) {
	for i, o := range n.open {
		if o == c {
			n.open = append(n.open[:i], n.open[i+1:]...)
			return
		}
	}
}

// closed cuts the connections of a process that is gone.
func (n *network) closed(p *proc) {
	w := n.w
	w.mu.Lock()
	for name, l := range n.listeners {
		if l.p == p {
			delete(n.listeners, name)
		}
	}
	w.mu.Unlock()
	for _, c := range n.open {
		if c.to != nil && c.to.p == p && !c.over {
			n.reply(c, errReset)
		}
	}
}

// abandon ends the calls of a zombie, and lets its server go.
func (n *network) abandon(p *proc) {
	for _, c := range n.open {
		if c.from == p {
			c.end(n.w, errReset)
		}
	}
}

// asker is a process's end of the network.
type asker struct{ p *proc }

// Connect implements [handshake.Asker].
func (a asker) Connect(ctx context.Context, server string, h wire.HandShake) (wire.HandShake, error) {
	var reply wire.HandShake
	err := a.p.w.net.ask(ctx, a.p, server, "connect", func(l *listener) {
		if l.handlers.Connect == nil {
			reply.ReplyMsg = "No RDMA transport on this node"
			return
		}
		reply = l.handlers.Connect(l.ctx, h)
	})
	if err == nil && reply.ReplyMsg != "" {
		return reply, &handshake.RejectedError{Msg: reply.ReplyMsg}
	}
	if err != nil {
		return wire.HandShake{}, err
	}
	return reply, nil
}

// Describe implements [handshake.Asker].
func (a asker) Describe(ctx context.Context, server string) (*wire.SegmentDesc, error) {
	var body []byte
	plain := false
	err := a.p.w.net.ask(ctx, a.p, server, "describe", func(l *listener) {
		if l.handlers.Describe != nil {
			body, plain = l.handlers.Describe(), l.p.role.noFence
		}
	})
	if err != nil {
		return nil, err
	}
	d, err := wire.DecodeSegmentDesc(body)
	if err == nil && plain {
		d.FenceVersion = 0
	}
	return d, err
}

// Notify implements [handshake.Asker].
func (a asker) Notify(context.Context, string, wire.Notification) error {
	return errors.ErrUnsupported
}

// Probe implements [handshake.Asker].
func (a asker) Probe(context.Context, string) error { return errors.ErrUnsupported }

// Fence implements [handshake.Asker].
func (a asker) Fence(ctx context.Context, server string, q wire.FenceRequest) (wire.FenceReply, error) {
	var reply wire.FenceReply
	err := a.p.w.net.ask(ctx, a.p, server, "fence", func(l *listener) {
		if l.handlers.Fence == nil || l.p.role.noFence {
			reply.Error = "no fence on this node"
			return
		}
		reply = l.handlers.Fence(l.ctx, q)
	})
	if err == nil && reply.Error != "" {
		err = &handshake.RejectedError{Msg: reply.Error}
	}
	return reply, err
}
