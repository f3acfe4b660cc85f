package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// endWait bounds how long a worker may take to close its engines.
const endWait = 10 * time.Second

// Command says how a worker is started.
type Command struct {
	Name   string // in errors; "" is "worker"
	Exe    string
	Args   []string
	Stderr io.Writer // nil means the process's own
}

// Proc is a worker, as its parent sees it. Its methods may be called by any
// goroutine.
type Proc struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed once the process is reaped
	err   error         // of Wait, once ended

	outMu sync.Mutex
	stdin io.WriteCloser

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]*call
	gone    bool // no answer comes any more
}

// call is a command that has not been answered.
type call struct {
	event func(json.RawMessage)
	reply chan message
}

// Start starts a worker: exe has to call [Serve] when it is given args. The
// worker is ended when ctx is.
func Start(ctx context.Context, exe string, args ...string) (*Proc, error) {
	return Command{Exe: exe, Args: args}.Start(ctx)
}

// Start starts a worker, which is ended when ctx is.
func (c Command) Start(ctx context.Context) (*Proc, error) {
	if c.Name == "" {
		c.Name = "worker"
	}
	cmd := exec.CommandContext(ctx, c.Exe, c.Args...)
	cmd.Stderr = c.Stderr
	if c.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	// A terminal's signals go to the parent alone, which ends its workers in order.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("worker: start %s: %w", c.Name, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("worker: start %s: %w", c.Name, err)
	}
	cmd.Cancel = stdin.Close
	cmd.WaitDelay = endWait
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("worker: start %s: %w", c.Name, err)
	}
	p := &Proc{name: c.Name, cmd: cmd, stdin: stdin, ended: make(chan struct{}), waiting: make(map[uint64]*call)}
	go p.read(stdout)
	return p, nil
}

// read hands the answers out, then reaps the process.
func (p *Proc) read(stdout io.Reader) {
	scan := bufio.NewScanner(stdout)
	scan.Buffer(nil, maxLine)
	for scan.Scan() {
		var m message
		if err := json.Unmarshal(scan.Bytes(), &m); err != nil {
			continue // the command it belongs to ends with the process
		}
		p.mu.Lock()
		c := p.waiting[m.ID]
		if m.Event == nil {
			delete(p.waiting, m.ID)
		}
		p.mu.Unlock()
		switch {
		case c == nil:
		case m.Event == nil:
			c.reply <- m
		case c.event != nil:
			c.event(m.Event)
		}
	}
	p.err = p.cmd.Wait()
	p.mu.Lock()
	p.gone = true
	for id, c := range p.waiting {
		delete(p.waiting, id)
		close(c.reply)
	}
	p.mu.Unlock()
	close(p.ended)
}

// ErrEnded is returned for commands to a worker that has ended.
var ErrEnded = errors.New("worker: process has ended")

// Call runs a command of any name. event hears of its events, on the goroutine
// that reads the worker's answers, and may be nil. If ctx ends first, the command
// is stopped, and its answer waited for, for a while.
func Call[R any](ctx context.Context, p *Proc, do string, args any, event func(json.RawMessage)) (R, error) {
	var result R
	raw, err := p.call(ctx, do, args, event)
	if err != nil {
		return result, fmt.Errorf("%s: %s: %w", p.name, do, err)
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return result, fmt.Errorf("%s: %s: answer: %w", p.name, do, err)
	}
	return result, nil
}

func (p *Proc) call(ctx context.Context, do string, args any, event func(json.RawMessage)) (json.RawMessage, error) {
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	c := &call{event: event, reply: make(chan message, 1)}
	p.mu.Lock()
	if p.gone {
		p.mu.Unlock()
		return nil, p.why()
	}
	p.next++
	id := p.next
	p.waiting[id] = c
	p.mu.Unlock()
	if err := p.write(message{ID: id, Do: do, Args: raw}); err != nil {
		// The reader sees the end too, unless the pipe alone was closed.
		p.mu.Lock()
		delete(p.waiting, id)
		p.mu.Unlock()
		return nil, errors.Join(context.Cause(ctx), err)
	}
	stopped := ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case m, ok := <-c.reply:
			switch {
			case !ok:
				return nil, errors.Join(context.Cause(ctx), p.why())
			case m.Error != "":
				return nil, errors.Join(context.Cause(ctx), errors.New(m.Error))
			}
			return m.OK, nil
		case <-stopped:
			stopped = nil
			p.write(message{ID: id, Do: "cancel"})
			late = time.After(endWait)
		case <-late:
			return nil, fmt.Errorf("no answer: %w", context.Cause(ctx))
		}
	}
}

// why says how the process ended.
func (p *Proc) why() error {
	<-p.ended
	if p.err != nil {
		return fmt.Errorf("%w: %w", ErrEnded, p.err)
	}
	return ErrEnded
}

func (p *Proc) write(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	p.outMu.Lock()
	defer p.outMu.Unlock()
	_, err = p.stdin.Write(append(b, '\n'))
	return err
}

// PID is the process's id.
func (p *Proc) PID() int { return p.cmd.Process.Pid }

// Ended is closed once the process is gone and reaped.
func (p *Proc) Ended() <-chan struct{} { return p.ended }

// Close tells the worker to end, and waits. A worker that takes too long is
// killed. It returns how the process ended.
func (p *Proc) Close() error {
	p.stdin.Close()
	late := time.AfterFunc(endWait, func() { p.cmd.Process.Kill() })
	defer late.Stop()
	<-p.ended
	if p.err != nil {
		return fmt.Errorf("worker: %s: %w", p.name, p.err)
	}
	return nil
}

// Kill kills the process and waits until it is reaped.
func (p *Proc) Kill() error {
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-p.ended
	return err
}

// Stop stops the process where it is, and Cont lets it go on.
func (p *Proc) Stop() error { return p.cmd.Process.Signal(unix.SIGSTOP) }

// Cont lets a stopped process go on.
func (p *Proc) Cont() error { return p.cmd.Process.Signal(unix.SIGCONT) }
