package softnic

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

// gone checks that the device has closed c. What it says before is returned.
func gone(t *testing.T, c net.Conn) []byte {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(c)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Error("the connection is still open")
	}
	return b
}

func TestHelloRefused(t *testing.T) {
	r := newRig(t, DeviceConfig{Name: "b"}, 4096)
	me := end{r.d.gid, 9, 99}
	good := hello{kind: kindData, src: me, dstQPN: r.q.num, name: "a", rail: "a"}
	if _, v := say(t, r.d, good); v != verdictNotReady {
		t.Errorf("in state RESET: verdict %d, want not ready", v)
	}
	r.connect(me)
	for _, tc := range []struct {
		name  string
		spoil func(h *hello)
	}{
		{"other queue pair here", func(h *hello) { h.dstQPN++ }},
		{"other queue pair there", func(h *hello) { h.src.qpn++ }},
		{"other port", func(h *hello) { h.src.port++ }},
		{"other address", func(h *hello) { h.src.gid[15]++ }},
	} {
		h := good
		tc.spoil(&h)
		if _, v := say(t, r.d, h); v != verdictRefused {
			t.Errorf("%s: verdict %d, want refused", tc.name, v)
		}
	}
	if _, v := say(t, r.d, good); v != verdictOK {
		t.Errorf("the right one: verdict %d, want accepted", v)
	}
	if _, v := say(t, r.d, good); v != verdictRefused {
		t.Errorf("a second one: verdict %d, want refused", v)
	}
}

func TestGarbage(t *testing.T) {
	r := newRig(t, DeviceConfig{Name: "b"}, 4096)
	rnd := rand.NewChaCha8([32]byte{1})
	for i := range 100 {
		c, err := net.Dial("tcp", addrOf(r.d.gid, r.d.lid).String())
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, helloBytes)
		rnd.Read(b)
		switch i % 3 {
		case 1: // a head that is right
			copy(b, (&hello{kind: kindData}).encode()[:8])
		case 2: // names that are too long
			copy(b, (&hello{kind: kindClose}).encode()[:40])
			b[40] = 65
		}
		c.Write(b)
		gone(t, c)
		c.Close()
	}
}

// TestBadBatch sends a correct write and then something malformed: the first is
// applied, the second answered with a nak, and the queue pair is in ERR.
func TestBadBatch(t *testing.T) {
	for _, tc := range []struct {
		name   string
		bytes  []byte
		status nic.Status
	}{
		{"zeroes", make([]byte, batchBytes), nic.StatusRemoteInvalid},
		{"no operations", batchOf(0), nic.StatusRemoteInvalid},
		{"too many operations", batchOf(maxBatch + 1), nic.StatusRemoteInvalid},
		{"unknown operation", writeBatch(op{3, 1, 1, 1}, nil), nic.StatusRemoteInvalid},
		{"no such key", writeBatch(op{nic.OpWrite, 1, 1, 1}, []byte{1}), nic.StatusRemoteAccess},
		{"length wraps", writeBatch(op{nic.OpWrite, 1, ^uint64(0), ^uint32(0)}, []byte{1}), nic.StatusRemoteAccess},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, DeviceConfig{Name: "b"}, 4096)
			me := end{r.d.gid, 9, 99}
			r.connect(me)
			c, _ := say(t, r.d, hello{kind: kindData, src: me, dstQPN: r.q.num})
			c.Write(append(writeBatch(op{nic.OpWrite, r.mr.RKey(), r.addr, 4}, []byte("word")), tc.bytes...))
			c.CloseWrite()
			said := gone(t, c)
			if len(said) < frameBytes {
				t.Fatalf("got % x, want a nak", said)
			}
			f, err := parseFrame(said[len(said)-frameBytes:])
			if err != nil || f.kind != frameNak || f.status != tc.status || f.seq != 1 {
				t.Errorf("frame %+v, %v; want a nak of 1 with %v", f, err, tc.status)
			}
			if r.q.State() != nic.Err {
				t.Errorf("state %v, want ERR", r.q.State())
			}
			if !bytes.Equal(r.mem[:5], []byte("word\x00")) {
				t.Errorf("memory % x", r.mem[:5])
			}
			if e := <-r.d.Events(); e.Type != nic.QPFatal || e.QPN != r.q.num {
				t.Errorf("event %+v", e)
			}
		})
	}
}

func batchOf(n int) []byte {
	b := make([]byte, batchBytes)
	putBatch(b, n)
	return b
}

// TestBadFrames has the responder lie: the requester drops it, and completes
// nothing it should not.
func TestBadFrames(t *testing.T) {
	for _, tc := range []struct {
		name   string
		frames []frame
		good   int // operations that are done first
	}{
		{"unknown kind", []frame{{kind: 9}}, 0},
		{"ack of what was not sent", []frame{{kind: frameAck, seq: 4}}, 0},
		{"ack that skips a read", []frame{{kind: frameAck, seq: 3}}, 0},
		{"ack that goes back", []frame{{kind: frameAck, seq: 1}, {kind: frameAck}}, 1},
		{"ack with a length", []frame{{kind: frameAck, seq: 1, length: 1}}, 0},
		{"data for a write", []frame{{kind: frameData, count: 1, length: 8}}, 0},
		{"data of another length", []frame{{kind: frameData, count: 1, seq: 1, length: 9}}, 0},
		{"data from nowhere", []frame{{kind: frameData, count: 1, seq: 1 << 60, length: 8}}, 0},
		{"data for nothing", []frame{{kind: frameData, seq: 1}}, 0},
		{"data for a read and a write", []frame{{kind: frameData, count: 2, seq: 1, length: 16}}, 0},
		{"data for too many", []frame{{kind: frameData, count: 3, seq: 1, length: 8}}, 0},
		{"data twice", []frame{{kind: frameData, count: 1, seq: 1}, {kind: frameData, count: 1, seq: 1}}, 2},
		{"nak without a cause", []frame{{kind: frameNak}}, 0},
		{"nak of what was not sent", []frame{{kind: frameNak, seq: 3, status: nic.StatusRemoteAccess}}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, r := newScript(t), newRig(t, DeviceConfig{Name: "a"}, 64)
			r.connect(s.end())
			n := 8
			if tc.good == 2 {
				n = 0
			}
			r.post(r.wr(nic.OpWrite, 0, 8), r.wr(nic.OpRead, 1, n), r.wr(nic.OpWrite, 2, 8))
			c := s.next(kindData)
			s.reply(c, verdictOK)
			io.ReadFull(c, make([]byte, batchBytes+3*opBytes+16))
			for _, f := range tc.frames {
				s.frame(c, f)
			}
			s.reply(s.next(kindClose), verdictOK)
			want := []nic.Status{0, 0, 0}
			for i := tc.good; i < 3; i++ {
				want[i] = nic.StatusFlushed
			}
			want[tc.good] = nic.StatusRetryExceeded
			r.want(want...)
		})
	}
}

// TestHalfOpenFlood opens many connections that say nothing: the oldest are
// dropped, and an honest peer gets in.
func TestHalfOpenFlood(t *testing.T) {
	r := newRig(t, DeviceConfig{Name: "b"}, 64)
	me := end{r.d.gid, 9, 99}
	r.connect(me)
	var flood []net.Conn
	for range maxHalf + 20 {
		c, err := net.Dial("tcp", addrOf(r.d.gid, r.d.lid).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		flood = append(flood, c)
	}
	gone(t, flood[0])
	if _, v := say(t, r.d, hello{kind: kindData, src: me, dstQPN: r.q.num}); v != verdictOK {
		t.Errorf("verdict %d, want accepted", v)
	}
	r.d.mu.Lock()
	if n := len(r.d.half); n > maxHalf {
		t.Errorf("%d half-open connections are kept, want at most %d", n, maxHalf)
	}
	r.d.mu.Unlock()
}

func TestPortInUse(t *testing.T) {
	r := newRig(t, DeviceConfig{Name: "a"}, 64)
	p, err := New(Options{Devices: []DeviceConfig{{Name: "b", Addr: netip.MustParseAddr("127.0.0.1"), Port: r.d.lid}}})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := p.Open("b"); err == nil {
		d.Close()
		t.Error("two devices on one port")
	}
}

func FuzzHello(f *testing.F) {
	f.Add((&hello{kind: kindData, src: end{qpn: 5}, dstQPN: 7, name: "mlx5_0", rail: "r0"}).encode())
	f.Add((&hello{kind: kindClose}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseHello(b); err == nil {
			h2, err := parseHello(h.encode())
			if err != nil || h2 != h {
				t.Errorf("%+v became %+v, %v", h, h2, err)
			}
		}
		if r, err := parseReply(b); err == nil {
			r2, err := parseReply(r.encode())
			if err != nil || r2 != r {
				t.Errorf("%+v became %+v, %v", r, r2, err)
			}
		}
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add(writeBatch(op{nic.OpRead, 1, 2, 3}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= batchBytes {
			if n, err := parseBatch(b); err == nil && (n < 1 || n > maxBatch) {
				t.Errorf("batch of %d", n)
			}
		}
		if len(b) >= opBytes {
			if o, err := parseOp(b); err == nil && o.kind != nic.OpWrite && o.kind != nic.OpRead {
				t.Errorf("operation %+v", o)
			}
		}
		if len(b) >= frameBytes {
			if f, err := parseFrame(b); err == nil {
				c := make([]byte, frameBytes)
				putFrame(c, f)
				if !bytes.Equal(b[:frameBytes], c) {
					t.Errorf("% x became % x", b[:frameBytes], c)
				}
			}
		}
	})
}
