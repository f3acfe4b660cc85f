package faulttest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/testkit"
)

// Patience bounds everything that a test waits for: long enough for machines that are
// emulated.
const Patience = time.Minute

// Process is a child of the test.
type Process struct {
	t    testing.TB
	role string
	cmd  *exec.Cmd
	in   io.WriteCloser

	// Name is the segment's, NIC where its NIC listens.
	Name, NIC string

	ended chan struct{} // its output has ended

	mu      sync.Mutex
	next    int
	waits   map[int]chan Answer
	reached chan Stage
	reaped  bool
	quiet   bool // the test has ended: no more logs
	said    strings.Builder
}

// Start starts a process that calls itself role in logs, and opens its engine.
func Start(t testing.TB, name string, o Options) *Process {
	t.Helper()
	binary := o.Binary
	if binary == "" {
		binary = os.Args[0]
	}
	p := &Process{
		t: t, role: name, cmd: exec.Command(binary, role), ended: make(chan struct{}),
		waits: make(map[int]chan Answer), reached: make(chan Stage, 16),
	}
	p.cmd.Stderr = logs{p}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.in = in
	go p.read(out)
	t.Cleanup(func() {
		p.Kill()
		p.Reap()
		p.mu.Lock()
		p.quiet = true
		p.mu.Unlock()
	})
	a := p.Do(command{Op: "open", Options: &o})
	p.Name, p.NIC = a.Name, a.NIC
	return p
}

// logs takes what the child says on its standard error.
type logs struct{ p *Process }

func (l logs) Write(b []byte) (int, error) {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said.Write(b)
	if text := strings.TrimSpace(string(b)); !p.quiet {
		p.t.Logf("[%s] %s", p.role, text)
		if strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic:") || strings.Contains(text, "fatal error:") {
			p.t.Errorf("%s has broken down: %s", p.role, text)
		}
	}
	return len(b), nil
}

// Said reports whether the process has logged a text.
func (p *Process) Said(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Contains(p.said.String(), text)
}

func (p *Process) read(out io.Reader) {
	defer close(p.ended)
	in := bufio.NewScanner(out)
	in.Buffer(nil, 4<<20)
	for in.Scan() {
		var a Answer
		if err := json.Unmarshal(in.Bytes(), &a); err != nil {
			a.Err = fmt.Sprintf("%v in %q", err, in.Bytes())
		}
		if a.Reached != Nowhere {
			p.reached <- a.Reached
			continue
		}
		p.mu.Lock()
		c := p.waits[a.ID]
		delete(p.waits, a.ID)
		p.mu.Unlock()
		if c != nil {
			c <- a
		}
	}
}

// Go sends a command and returns where its answer will come.
func (p *Process) Go(c command) <-chan Answer {
	p.t.Helper()
	answer := make(chan Answer, 1)
	p.mu.Lock()
	p.next++
	c.ID = p.next
	p.waits[c.ID] = answer
	p.mu.Unlock()
	b, err := json.Marshal(c)
	if err == nil {
		_, err = p.in.Write(append(b, '\n'))
	}
	if err != nil {
		p.t.Fatalf("%s: %s: %v", p.role, c.Op, err)
	}
	return answer
}

// Await waits for an answer.
func (p *Process) Await(what string, answer <-chan Answer) Answer {
	p.t.Helper()
	late := time.NewTimer(Patience)
	defer late.Stop()
	select {
	case a := <-answer:
		return a
	case <-p.ended:
		select {
		case a := <-answer:
			return a
		default:
		}
		p.t.Fatalf("%s: %s: the process has ended", p.role, what)
	case <-late.C:
		p.t.Fatalf("%s: %s: no answer within %v", p.role, what, Patience)
	}
	return Answer{}
}

// Do sends a command and waits for its answer, which must be no error.
func (p *Process) Do(c command) Answer {
	p.t.Helper()
	a := p.Await(c.Op, p.Go(c))
	if a.Err != "" {
		p.t.Fatalf("%s: %s: %s", p.role, c.Op, a.Err)
	}
	return a
}

// Arm makes the process stop at its stage from now on, Free lets it go on.
func (p *Process) Arm()  { p.t.Helper(); p.Do(command{Op: "arm"}) }
func (p *Process) Free() { p.t.Helper(); p.Do(command{Op: "release"}) }

// AwaitHeld waits until the process is at its stage.
func (p *Process) AwaitHeld() {
	p.t.Helper()
	late := time.NewTimer(Patience)
	defer late.Stop()
	select {
	case s := <-p.reached:
		p.t.Logf("%s is held at %q", p.role, s)
	case <-p.ended:
		p.t.Fatalf("%s has ended before it came to its stage", p.role)
	case <-late.C:
		p.t.Fatalf("%s has not come to its stage within %v", p.role, Patience)
	}
}

// Memory allocates and registers GPU memory.
func (p *Process) Memory(size uint64) uint64 {
	p.t.Helper()
	return p.Do(command{Op: "memory", Size: size}).Addr
}

// Fill puts the bytes of a seed into memory.
func (p *Process) Fill(addr, size, seed uint64) {
	p.t.Helper()
	p.Do(command{Op: "fill", Addr: addr, Size: size, Seed: seed})
}

// Verify wants the bytes of a seed in memory.
func (p *Process) Verify(addr, size, seed uint64) {
	p.t.Helper()
	if bad := p.Do(command{Op: "verify", Addr: addr, Size: size, Seed: seed}).Bad; bad > 0 {
		p.t.Errorf("%s: %d of %d bytes are not those of seed %d", p.role, bad, size, seed)
	}
}

// Reuse wants the bytes of seed was in memory, unless it is 0, puts those of seed
// in their place at once, and watches them.
func (p *Process) Reuse(addr, size, was, seed uint64) {
	p.t.Helper()
	if bad := p.Do(command{Op: "reuse", Addr: addr, Size: size, Seed: seed, To: was}).Bad; bad > 0 {
		p.t.Errorf("%s: %d of %d bytes are not those of seed %d when the write has completed", p.role, bad, size, was)
	}
}

// Late is the most bytes that were seen changed at once so far.
func (p *Process) Late() int { p.t.Helper(); return p.Do(command{Op: "late"}).Bad }

// Unwatch ends the watch, with a last look, and returns what Late does.
func (p *Process) Unwatch() int { p.t.Helper(); return p.Do(command{Op: "unwatch"}).Bad }

// Write begins a write to a segment, with a deadline.
func (p *Process) Write(segment string, from, to, size uint64, limit time.Duration) <-chan Answer {
	p.t.Helper()
	return p.Go(command{Op: "write", Name: segment, Addr: from, To: to, Size: size, Limit: int(limit.Milliseconds())})
}

// Status asks the process how it is.
func (p *Process) Status() *Status { p.t.Helper(); return p.Do(command{Op: "status"}).Status }

// Close closes the engine, of which nothing must be left in the process.
func (p *Process) Close() {
	p.t.Helper()
	for _, left := range p.Do(command{Op: "close"}).Left {
		p.t.Errorf("%s: left behind: %s", p.role, left)
	}
}

// Stop stops the process, for certain; Continue wakes it.
func (p *Process) Stop() {
	p.t.Helper()
	if err := testkit.Stop(p.cmd.Process); err != nil {
		p.t.Fatal(err)
	}
}

func (p *Process) Continue() { p.signal(syscall.SIGCONT) }

// Kill kills the process, if it lives.
func (p *Process) Kill() { p.signal(syscall.SIGKILL) }

func (p *Process) signal(s syscall.Signal) {
	if !p.reaped {
		p.cmd.Process.Signal(s)
	}
}

// Reap waits for the end of the process.
func (p *Process) Reap() {
	if p.reaped {
		return
	}
	p.reaped = true
	p.in.Close()
	<-p.ended
	p.cmd.Wait()
}
