package faulttest

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
)

// Wire stands between a relay's NIC and its target's, and outlives the relay. It
// reads whatever comes at once and passes it on in order, but for what is held.
type Wire struct {
	lis    net.Listener
	target string
	wg     sync.WaitGroup

	mu     sync.Mutex
	cond   sync.Cond
	limit  int // bytes of data that still pass; -1 means all
	held   int // bytes that wait
	frozen bool
	ended  bool
	conns  []net.Conn
}

// NewWire returns a wire to the NIC that listens at target.
func NewWire(t testing.TB, target string) *Wire {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{lis: lis, target: target, limit: -1}
	w.cond.L = &w.mu
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		lis.Close()
		w.mu.Lock()
		w.ended = true
		for _, c := range w.conns {
			c.Close()
		}
		w.cond.Broadcast()
		w.mu.Unlock()
		w.wg.Wait()
	})
	return w
}

// Addr is where the wire begins.
func (w *Wire) Addr() string { return w.lis.Addr().String() }

// Hold lets n more bytes of data pass and keeps what comes after them.
func (w *Wire) Hold(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit = n
}

// Freeze keeps everything, both ways: data, acks, requests to close and ends of
// connections.
func (w *Wire) Freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen, w.limit = true, 0
}

// Release lets everything pass.
func (w *Wire) Release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit, w.held, w.frozen = -1, 0, false
	w.cond.Broadcast()
}

// AwaitHeld waits until n bytes are kept, or the test has ended.
func (w *Wire) AwaitHeld(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.held < n && !w.ended {
		w.cond.Wait()
	}
}

func (w *Wire) accept() {
	for {
		c, err := w.lis.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() { w.carry(c) })
	}
}

// thaw waits until the wire is not frozen.
func (w *Wire) thaw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.frozen && !w.ended {
		w.cond.Wait()
	}
}

// keep makes a connection end with the test.
func (w *Wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	return !w.ended
}

// carry joins a connection to one to the target.
func (w *Wire) carry(near net.Conn) {
	defer near.Close()
	if !w.keep(near) {
		return
	}
	far, err := net.Dial("tcp", w.target)
	if err != nil {
		return
	}
	defer far.Close()
	if !w.keep(far) {
		return
	}
	// A hello says what the connection is for: requests to close are not held.
	const helloBytes, kindData = 176, 1
	hello := make([]byte, helloBytes)
	if _, err := io.ReadFull(near, hello); err != nil {
		return
	}
	w.thaw()
	if _, err := far.Write(hello); err != nil {
		return
	}
	w.wg.Go(func() {
		b := make([]byte, 4<<10)
		for {
			n, err := far.Read(b)
			w.thaw()
			if n > 0 {
				near.Write(b[:n])
			}
			if err != nil {
				near.(*net.TCPConn).CloseWrite()
				return
			}
		}
	})
	if binary.LittleEndian.Uint16(hello[6:]) != kindData {
		io.Copy(far, near)
		return
	}
	w.data(far, near)
}

// data passes on what a queue pair sends. The reader never waits for the writer,
// so that the sending process can end with all its bytes under way.
func (w *Wire) data(far, near net.Conn) {
	var mu sync.Mutex
	var pending []byte
	var eof bool
	more := sync.NewCond(&mu)
	w.wg.Go(func() {
		b := make([]byte, 64<<10)
		for {
			n, err := near.Read(b)
			mu.Lock()
			pending = append(pending, b[:n]...)
			eof = err != nil
			more.Signal()
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	for {
		mu.Lock()
		for len(pending) == 0 && !eof {
			more.Wait()
		}
		chunk := pending
		pending = nil
		mu.Unlock()
		if len(chunk) == 0 {
			return
		}
		for len(chunk) > 0 {
			n := w.pass(len(chunk))
			if n == 0 {
				return
			}
			if _, err := far.Write(chunk[:n]); err != nil {
				return
			}
			chunk = chunk[n:]
		}
	}
}

// pass says how many of n bytes may pass now. It waits until some may, and
// returns 0 once the test has ended.
func (w *Wire) pass(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.limit == 0 {
		w.held += n
		w.cond.Broadcast()
	}
	for w.limit == 0 && !w.ended {
		w.cond.Wait()
	}
	if w.ended {
		return 0
	}
	if w.limit > 0 {
		n = min(n, w.limit)
		w.limit -= n
	}
	return n
}
