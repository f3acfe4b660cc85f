package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/xfer"
)

// request is a header as bytes, with padding that says nothing.
func request(size, addr uint64, op byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, size)
	b = binary.LittleEndian.AppendUint64(b, addr)
	return append(b, op, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
}

var (
	okFrame       = []byte{0, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d}
	rejectedFrame = []byte{1, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d}
)

func dialServer(t *testing.T, s *Server) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c.(*net.TCPConn)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// TestServer compares what a server answers, byte for byte.
func TestServer(t *testing.T) {
	t.Parallel()
	const n = 64
	for _, tt := range []struct {
		name   string
		send   func(addr uint64) []byte
		want   func(mem []byte) []byte
		after  func(mem []byte) bool // what the memory is then
		closes bool
	}{
		{
			name: "v2 write", send: func(a uint64) []byte { return join(request(5, a, 0x81), []byte("hello")) },
			want:  func([]byte) []byte { return okFrame },
			after: func(m []byte) bool { return string(m[:5]) == "hello" && m[5] == 5 },
		},
		{
			name: "v2 read", send: func(a uint64) []byte { return request(n, a, 0x80) },
			want: func(m []byte) []byte { return join(okFrame, m) },
		},
		{
			name: "v1 write, read back", send: func(a uint64) []byte { return join(request(5, a, 1), []byte("hello"), request(1, a+4, 0)) },
			want:  func([]byte) []byte { return []byte("o") },
			after: func(m []byte) bool { return string(m[:5]) == "hello" },
		},
		{
			name: "v1 read", send: func(a uint64) []byte { return request(3, a+1, 0) },
			want: func(m []byte) []byte { return m[1:4] },
		},
		{
			name: "unknown opcodes read", send: func(a uint64) []byte { return join(request(3, a, 2), request(2, a, 0xff)) },
			want: func(m []byte) []byte { return join(m[:3], okFrame, m[:2]) },
		},
		{
			name: "many at once, in order",
			send: func(a uint64) []byte {
				return join(request(1, a, 0x80), request(2, a, 0x81), []byte("xy"), request(2, a, 0x80), request(1, a+2, 1), []byte("z"), request(3, a, 0))
			},
			want: func(m []byte) []byte { return join(okFrame, m[:1], okFrame, okFrame, []byte("xy"), []byte("xyz")) },
		},
		{name: "v2 refused", send: func(a uint64) []byte { return request(2, a+n-1, 0x81) }, want: func([]byte) []byte { return rejectedFrame }, closes: true},
		{name: "v2 refused read", send: func(a uint64) []byte { return request(2, a+n-1, 0x80) }, want: func([]byte) []byte { return rejectedFrame }, closes: true},
		{name: "v1 refused", send: func(a uint64) []byte { return request(2, a+n-1, 1) }, want: func([]byte) []byte { return nil }, closes: true},
		{name: "nothing", send: func(a uint64) []byte { return request(0, a, 0x81) }, want: func([]byte) []byte { return rejectedFrame }, closes: true},
		{name: "over the end of the address space", send: func(a uint64) []byte { return request(^uint64(0), a, 0x81) }, want: func([]byte) []byte { return rejectedFrame }, closes: true},
		{
			name: "refused after others",
			send: func(a uint64) []byte {
				return join(request(1, a, 0x80), request(1, a-1, 0x81), []byte("x"), request(1, a, 0x80))
			},
			want: func(m []byte) []byte { return join(okFrame, m[:1], rejectedFrame) }, closes: true,
		},
	} {
		for _, pieces := range []bool{false, true} {
			t.Run(tt.name+"/"+map[bool]string{false: "whole", true: "byte by byte"}[pieces], func(t *testing.T) {
				t.Parallel()
				var m registered
				mem := m.buffer(n)
				for i := range mem {
					mem[i] = byte(i)
				}
				s, _ := serve(t, &m)
				want := bytes.Clone(tt.want(mem))
				c := dialServer(t, s)
				send := tt.send(addressOf(mem))
				for len(send) > 0 {
					k := len(send)
					if pieces {
						k = 1
					}
					if _, err := c.Write(send[:k]); err != nil && !tt.closes {
						t.Fatal(err)
					}
					send = send[k:]
				}
				got := make([]byte, len(want))
				if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("got % x, %v; want % x", got, err, want)
				}
				if tt.after != nil && !tt.after(mem) {
					t.Errorf("the memory is %q", mem)
				}
				if tt.closes {
					if k, err := c.Read(got[:min(1, len(got))]); err == nil && len(got) > 0 {
						t.Errorf("it goes on with %d bytes", k)
					}
					return
				}
				// It goes on.
				if _, err := c.Write(request(1, addressOf(mem), 0x80)); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(c, make([]byte, 9)); err != nil {
					t.Errorf("the next request: %v", err)
				}
			})
		}
	}
}

// A writer of version 1 closes right behind its last byte, and counts on it.
func TestV1WriteAndGone(t *testing.T) {
	t.Parallel()
	var m registered
	const n = 300_000
	mem := m.buffer(n)
	s, _ := serve(t, &m)
	want := make([]byte, n)
	fill(want, 1)
	c := dialServer(t, s)
	if _, err := c.Write(join(request(n, addressOf(mem), 1), want)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	eventually(t, "the write is in place", func() bool { return s.Stats().WriteBytes == n })
	if !bytes.Equal(mem, want) {
		t.Error("it is not as written")
	}
}

// gate holds a server's look-ups, as a process that does not get to run would.
type gate struct {
	registered
	entered, open chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) pass() {
	g.entered <- struct{}{}
	<-g.open
}

// A peer that is gone counts on it that its write does not land.
func TestStaleWriteDoesNotLand(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"end of file", "reset"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			g := newGate()
			mem := g.buffer(4096)
			s, _ := serveGate(t, g)
			c := dialServer(t, s)
			if _, err := c.Write(join(request(4096, addressOf(mem), 0x81), bytes.Repeat([]byte{7}, 4096))); err != nil {
				t.Fatal(err)
			}
			<-g.entered
			if how == "reset" {
				c.SetLinger(0)
			}
			c.Close()
			time.Sleep(2 * checkEvery)
			close(g.open)
			eventually(t, "the session ends", func() bool { return s.Stats().Open == 0 })
			if st := s.Stats(); st.Stale != 1 || bytes.Count(mem, []byte{0}) != len(mem) {
				t.Errorf("stale %d, and %d bytes have landed", st.Stale, len(mem)-bytes.Count(mem, []byte{0}))
			}
		})
	}
}

// Once Revoke has returned, no peer reads or writes the memory.
func TestRevoke(t *testing.T) {
	t.Parallel()
	for _, op := range []byte{0x81, 1} {
		var m registered
		mem, other := m.buffer(1<<20), m.buffer(64)
		s, _ := serve(t, &m)
		user, bystander := dialServer(t, s), dialServer(t, s)
		if _, err := user.Write(join(request(1<<20, addressOf(mem), op), make([]byte, 1000))); err != nil {
			t.Fatal(err)
		}
		if _, err := bystander.Write(join(request(64, addressOf(other), op), make([]byte, 10))); err != nil {
			t.Fatal(err)
		}
		eventually(t, "both writes have begun", func() bool { return s.Stats().Writes == 2 })
		m.remove(addressOf(mem))
		s.Revoke(addressOf(mem), uint64(len(mem)))
		if _, err := user.Read(make([]byte, 1)); err == nil {
			t.Error("the connection that used the memory goes on")
		}
		user.Write(bytes.Repeat([]byte{9}, 1000))
		if bytes.Count(mem, []byte{0}) != len(mem) {
			t.Error("something has landed")
		}
		if _, err := bystander.Write(make([]byte, 54)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the other write is in place", func() bool { return s.Stats().WriteBytes == 64 })
	}
}

// Memory that is registered and not there costs its connection.
func TestMemoryThatIsNotThere(t *testing.T) {
	t.Parallel()
	var m registered
	page, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(page)
	m.add(addressOf(page), 4096, nil)
	good := m.buffer(4096)
	_, to := serve(t, &m)
	near := heap(4096)
	r := newRig(t, Options{})
	for _, op := range []xfer.Opcode{xfer.Read, xfer.Write} {
		w := Work{Op: op, Local: addressOf(near), Remote: addressOf(page), Length: 4096, Target: to}
		if got := r.run(w)[0]; !errors.Is(got.err, xfer.ErrSocket) {
			t.Errorf("remote, %v: got %v, want %v", op, got.err, xfer.ErrSocket)
		}
		w = Work{Op: op, Local: addressOf(page), Remote: addressOf(good), Length: 4096, Target: to}
		if got := r.run(w)[0]; !errors.Is(got.err, xfer.ErrInvalidArgument) {
			t.Errorf("local, %v: got %v, want %v", op, got.err, xfer.ErrInvalidArgument)
		}
		r.mustRun(Work{Op: op, Local: addressOf(near), Remote: addressOf(good), Length: 4096, Target: to})
	}
}

// FuzzServer sends a server what it likes; the server answers or closes.
func FuzzServer(f *testing.F) {
	var m registered
	mem := m.buffer(4096)
	s, err := Listen(ServerOptions{})
	if err != nil {
		f.Fatal(err)
	}
	s.Serve(&m)
	defer s.Close()
	for _, seed := range [][]byte{nil, {0x81}, request(5, 0, 0x81), join(request(3, 1, 1), []byte("abc"), request(1, 1, 0x80))} {
		f.Add(seed, uint16(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		// Addresses are offsets here, so that some of them are valid.
		for i := 0; i+headerSize <= len(b) && i < 4*headerSize; i += headerSize {
			binary.LittleEndian.PutUint64(b[i+8:], addressOf(mem)+binary.LittleEndian.Uint64(b[i+8:])%5000)
			binary.LittleEndian.PutUint64(b[i:], binary.LittleEndian.Uint64(b[i:])%5000)
		}
		c, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port())))
		if err != nil {
			t.Skip(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		k := min(int(cut), len(b))
		c.Write(b[:k])
		c.Write(b[k:])
		c.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, c); errors.Is(err, syscall.ETIMEDOUT) {
			t.Fatal("it neither answers nor closes")
		}
	})
}
