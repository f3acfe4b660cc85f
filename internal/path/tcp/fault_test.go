package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

// peerOf serves each connection by a script, and returns a target that reaches it.
func peerOf(t *testing.T, script func(c *net.TCPConn)) *target {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				script(c.(*net.TCPConn))
			}()
		}
	}()
	return &target{route: Route{Host: "127.0.0.1", Port: ln.Addr().(*net.TCPAddr).Port, Version: 2, Proves: true}}
}

// take reads n bytes.
func take(c *net.TCPConn, n int) []byte {
	b := make([]byte, n)
	io.ReadFull(c, b)
	return b
}

// drop reads until the peer closes.
func drop(c *net.TCPConn) { io.Copy(io.Discard, c) }

func write(to Target, mem []byte, n int) Work {
	return Work{Op: xfer.Write, Local: addressOf(mem), Remote: 1 << 20, Length: uint64(n), Target: to}
}

func read(to Target, mem []byte, n int) Work {
	return Work{Op: xfer.Read, Local: addressOf(mem), Remote: 1 << 20, Length: uint64(n), Target: to}
}

func TestRudePeers(t *testing.T) {
	t.Parallel()
	mem := heap(1 << 20)
	for _, tt := range []struct {
		name   string
		script func(c *net.TCPConn)
		work   func(to Target) Work
		want   string
		is     error
	}{
		{
			name: "a status that is none", work: func(to Target) Work { return write(to, mem, 16) },
			script: func(c *net.TCPConn) { take(c, 40); c.Write([]byte("HTTP/1.1")); drop(c) },
			want:   "does not speak the protocol", is: xfer.ErrSocket,
		},
		{
			name: "payload for a status", work: func(to Target) Work { return read(to, mem, 100) },
			script: func(c *net.TCPConn) { take(c, 24); c.Write(make([]byte, 100)); drop(c) },
			want:   "does not speak the protocol", is: xfer.ErrSocket,
		},
		{
			name: "another refusal", work: func(to Target) Work { return write(to, mem, 16) },
			script: func(c *net.TCPConn) { take(c, 40); c.Write([]byte{9, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d}); drop(c) },
			want:   "status 9", is: xfer.ErrAddressNotFound,
		},
		{
			name: "an answer before the whole request", work: func(to Target) Work { return write(to, heap(64<<20), 64<<20) },
			script: func(c *net.TCPConn) { take(c, 100); c.Write(okFrame); drop(c) },
			want:   "before it has the whole of it",
		},
		{
			name: "hangs up at once", work: func(to Target) Work { return read(to, mem, 16) },
			script: func(c *net.TCPConn) {},
			is:     xfer.ErrSocket,
		},
		{
			name: "hangs up in an answer", work: func(to Target) Work { return read(to, mem, 16) },
			script: func(c *net.TCPConn) { take(c, 24); c.Write(okFrame); c.Write([]byte("half")) },
			want:   "closed the connection", is: xfer.ErrSocket,
		},
		{
			name: "never answers", work: func(to Target) Work { return read(to, mem, 16) },
			script: drop,
			want:   "no answer", is: xfer.ErrSocket,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			to := peerOf(t, tt.script)
			r := newRig(t, Options{StatusTimeout: 300 * time.Millisecond, CloseWait: 100 * time.Millisecond})
			got := r.run(tt.work(to))[0]
			if got.err == nil || !strings.Contains(got.err.Error(), tt.want) || tt.is != nil && !errors.Is(got.err, tt.is) {
				t.Errorf("got error %v, want %q and %v", got.err, tt.want, tt.is)
			}
		})
	}
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	ln.Close()
	mem := heap(16)
	for _, tt := range []struct {
		name  string
		route Route
		want  error
	}{
		{"no listener", Route{Host: "127.0.0.1", Port: port, Version: 2}, xfer.ErrSocket},
		{"no such host", Route{Host: "no-such-host.invalid", Port: 1, Version: 2}, xfer.ErrDNS},
		{"no data port", Route{Host: "127.0.0.1", Version: 2}, xfer.ErrMetadata},
	} {
		to := &target{route: tt.route}
		r := newRig(t, Options{})
		for i, got := range r.run(write(to, mem, 16), read(to, mem, 16)) {
			if !errors.Is(got.err, tt.want) {
				t.Errorf("%s, request %d: got %v, want %v", tt.name, i, got.err, tt.want)
			}
		}
		if to.fetches.Load() == 0 {
			t.Errorf("%s: the descriptor was not fetched anew", tt.name)
		}
	}
}

// A target that comes back on another port is found by its new descriptor.
func TestTargetMoves(t *testing.T) {
	t.Parallel()
	var m registered
	far, near := m.buffer(4096), heap(4096)
	first, to := serve(t, &m)
	second, next := serve(t, &m)
	r := newRig(t, Options{})
	w := Work{Op: xfer.Write, Local: addressOf(near), Remote: addressOf(far), Length: 4096, Target: to}
	r.mustRun(w)
	first.Close()
	to.mu.Lock()
	to.next = &next.route
	to.mu.Unlock()
	fill(near, 9)
	r.mustRun(w, w, w)
	if !bytes.Equal(near, far) || to.fetches.Load() == 0 || second.Stats().Writes == 0 {
		t.Errorf("equal %v, fetches %d, writes at the new port %d", bytes.Equal(near, far), to.fetches.Load(), second.Stats().Writes)
	}
}

// Memory that the target registers while its descriptor is fetched, or just after, is
// found by another fetch, and what is in no buffer costs no more than that.
func TestRegisteredSince(t *testing.T) {
	t.Parallel()
	for _, during := range []bool{true, false} {
		t.Run(fmt.Sprintf("while it is fetched %v", during), func(t *testing.T) {
			var m registered
			early, late, later, near := m.buffer(4096), heap(4096), heap(4096), heap(4096)
			fill(near, 3)
			_, to := serve(t, &m)
			begun, goOn := make(chan struct{}), make(chan struct{})
			to.known = new(registered)
			to.fetch = func() *registered {
				if to.fetches.Load() > 1 {
					return &m
				}
				known := new(registered)
				known.add(addressOf(early), 4096, nil)
				close(begun)
				<-goOn
				return known
			}
			r := newRig(t, Options{})
			write := func(far []byte) Work {
				return Work{Op: xfer.Write, Local: addressOf(near), Remote: addressOf(far), Length: 4096, Target: to}
			}
			first, firstDone := r.start(write(early))
			<-begun
			if !during {
				close(goOn)
				firstDone.Wait()
			}
			m.add(addressOf(late), 4096, nil)
			m.add(addressOf(later), 4096, nil)
			rest, restDone := r.start(write(late), write(later), write(heap(4096)))
			if during {
				close(goOn)
			}
			firstDone.Wait()
			restDone.Wait()
			if err := errors.Join(first[0].err, rest[0].err, rest[1].err); err != nil {
				t.Error(err)
			}
			if !bytes.Equal(near, early) || !bytes.Equal(near, late) || !bytes.Equal(near, later) {
				t.Error("the target's memory is not as written")
			}
			if !errors.Is(rest[2].err, xfer.ErrAddressNotFound) {
				t.Errorf("memory in no buffer: %v", rest[2].err)
			}
			if n := to.fetches.Load(); n != 2 {
				t.Errorf("fetched %d times, want twice", n)
			}
		})
	}
}

// Connections that are lost under a batch, again and again, end in bytes that are in
// place or in an error, and leave nothing behind.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	var m registered
	const n, size = 2000, 3000
	far, near := m.buffer(n*size), heap(n*size)
	s, to := serve(t, &m)
	r := newRig(t, Options{Lanes: 3})
	ctx, cancel := context.WithCancel(t.Context())
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		// Each connection is given the time to answer something.
		for due := uint64(100); ctx.Err() == nil; time.Sleep(100 * time.Microsecond) {
			st := s.Stats()
			if st.Reads+st.Writes < due {
				continue
			}
			due = st.Reads + st.Writes + 400
			s.mu.Lock()
			for x := range s.sessions {
				x.cut()
				break
			}
			s.mu.Unlock()
		}
	}()
	run := func(round uint64) (failed int) {
		op := xfer.Opcode(round & 1)
		works := make([]Work, n)
		for i := range works {
			at := uint64(i * size)
			works[i] = Work{Op: op, Local: addressOf(near) + at, Remote: addressOf(far) + at, Length: size, Target: to}
		}
		want := far
		if op == xfer.Write {
			want = near
		}
		fill(want, round)
		for i, got := range r.run(works...) {
			if got.err != nil {
				failed++
				if !errors.Is(got.err, xfer.ErrSocket) {
					t.Fatalf("round %d, request %d: %v", round, i, got.err)
				}
				continue
			}
			if at := i * size; !bytes.Equal(near[at:at+size], far[at:at+size]) {
				t.Fatalf("round %d, request %d: not in place", round, i)
			}
		}
		return failed
	}
	for round := range uint64(6) {
		run(round)
	}
	cancel()
	<-cut
	run(6) // may still find connections that were cut
	if failed := run(7); failed > 0 {
		t.Errorf("%d requests fail although nothing is cut any more: %+v", failed, r.path.Stats())
	}
}

// A status that comes late, but in time, is taken.
func TestLateStatus(t *testing.T) {
	t.Parallel()
	const timeout = 400 * time.Millisecond
	mem := heap(16)
	for _, tt := range []struct {
		delay time.Duration
		ok    bool
	}{{timeout / 4, true}, {4 * timeout, false}} {
		to := peerOf(t, func(c *net.TCPConn) {
			take(c, 40)
			time.Sleep(tt.delay)
			c.Write(okFrame)
			drop(c)
		})
		r := newRig(t, Options{StatusTimeout: timeout, CloseWait: 10 * time.Millisecond})
		if got := r.run(write(to, mem, 16))[0]; (got.err == nil) != tt.ok {
			t.Errorf("status after %v of %v: error %v", tt.delay, timeout, got.err)
		}
	}
}

// What is aborted ends with the cause once nothing of it can land, and what others
// had under way on the same connection is done all the same.
func TestAbort(t *testing.T) {
	t.Parallel()
	g := newGate()
	far, near := g.buffer(8192), heap(8192)
	fill(near, 4)
	s, to := serveGate(t, g)
	r := newRig(t, Options{Lanes: 1, CloseWait: time.Minute})
	at := func(op xfer.Opcode, off uint64) Work {
		return Work{Op: op, Local: addressOf(near) + off, Remote: addressOf(far) + off, Length: 4096, Target: to}
	}
	tasks, wg := r.start(at(xfer.Write, 0), at(xfer.Write, 4096))
	<-g.entered // the server looks the first up
	r.abort(tasks[0], errEnough)
	go func() {
		g.open <- struct{}{} // the stale one
		for {
			select {
			case <-g.entered:
				g.open <- struct{}{}
			case <-t.Context().Done():
				return
			}
		}
	}()
	wg.Wait()
	if !errors.Is(tasks[0].err, errEnough) {
		t.Errorf("the aborted: got %v, want %v", tasks[0].err, errEnough)
	}
	if _, ok := errors.AsType[*UnprovenError](tasks[0].err); ok {
		t.Errorf("the target has confirmed, and yet: %v", tasks[0].err)
	}
	if tasks[1].err != nil || !bytes.Equal(near[4096:], far[4096:]) {
		t.Errorf("the other: %v", tasks[1].err)
	}
	if st := s.Stats(); st.Stale == 1 && bytes.Count(far[:4096], []byte{0}) != 4096 {
		t.Error("a stale write has landed")
	}
}

// A target that does not confirm that it has stopped is said to, and does not take the
// write afterwards.
func TestAbortUnproven(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		proves bool
		want   string
	}{{"our kind, frozen", true, "has not confirmed"}, {"another kind", false, "does not confirm"}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := newGate()
			far, near := g.buffer(4096), heap(4096)
			fill(near, 4)
			s, to := serveGate(t, g)
			to.route.Proves = tt.proves
			r := newRig(t, Options{CloseWait: 50 * time.Millisecond})
			tasks, wg := r.start(Work{Op: xfer.Write, Local: addressOf(near), Remote: addressOf(far), Length: 4096, Target: to})
			<-g.entered
			r.abort(tasks[0], errEnough)
			wg.Wait()
			u, ok := errors.AsType[*UnprovenError](tasks[0].err)
			if !ok || !errors.Is(u, errEnough) || u.Addr != addressOf(far) || u.Length != 4096 || !strings.Contains(u.Error(), tt.want) {
				t.Errorf("got %v, want what may still land, and %q", tasks[0].err, tt.want)
			}
			close(g.open)
			eventually(t, "the session ends", func() bool { return s.Stats().Open == 0 })
			if n := len(far) - bytes.Count(far, []byte{0}); n > 0 {
				t.Errorf("%d bytes have landed after the end", n)
			}
		})
	}
}

// What was not sent is aborted at once, and a read needs nobody's confirmation.
func TestAbortAtOnce(t *testing.T) {
	t.Parallel()
	to := peerOf(t, drop)
	mem := heap(1 << 20)
	r := newRig(t, Options{Lanes: 1, CloseWait: time.Minute, Window: 2})
	tasks, wg := r.start(read(to, mem, 16), read(to, mem, 16), write(to, mem, 1<<20), write(to, mem, 16))
	eventually(t, "the first is sent", func() bool { return r.path.Stats().Sends > 0 })
	for _, task := range []*task{tasks[3], tasks[2], tasks[0], tasks[1]} {
		r.abort(task, errEnough)
	}
	wg.Wait()
	for i, task := range tasks {
		if task.err != errEnough {
			t.Errorf("request %d: got %v, want %v", i, task.err, errEnough)
		}
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	to := peerOf(t, drop)
	far := &target{route: Route{Host: "127.0.0.1", Port: 1}, known: &registered{}}
	mem := heap(1 << 20)
	r := newRig(t, Options{})
	tasks, wg := r.start(read(to, mem, 16), write(to, mem, 16), write(far, mem, 16))
	eventually(t, "the first is sent", func() bool { return r.path.Stats().Sends > 0 })
	r.loop.Remove(r.path)
	if err := r.path.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for i, task := range tasks {
		if task.err == nil {
			t.Errorf("request %d has no error", i)
		}
	}
	if !errors.Is(tasks[0].err, ErrClosed) {
		t.Errorf("read: got %v, want %v", tasks[0].err, ErrClosed)
	}
	w := read(to, mem, 16)
	if err := r.path.Submit(&w); !errors.Is(err, ErrClosed) {
		t.Errorf("submit: got %v, want %v", err, ErrClosed)
	}
}
