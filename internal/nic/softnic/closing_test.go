package softnic

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

// underway returns a rig with n writes that a scripted peer has taken in and
// not acknowledged.
func underway(t *testing.T, n int) (*rig, *script, *net.TCPConn) {
	t.Helper()
	s, r := newScript(t), newRig(t, DeviceConfig{Name: "a"}, 1<<16)
	r.connect(s.end())
	for i := range n {
		r.post(r.wr(nic.OpWrite, uint64(i), 1000))
	}
	c := s.next(kindData)
	s.reply(c, verdictOK)
	b := make([]byte, batchBytes)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	return r, s, c
}

// TestNoReportBeforeClosed is rule 8.4: whatever ends a queue pair, its operations are
// reported only once the peer has closed its end, or is gone.
func TestNoReportBeforeClosed(t *testing.T) {
	flushed := []nic.Status{nic.StatusFlushed, nic.StatusFlushed}
	retry := []nic.Status{nic.StatusRetryExceeded, nic.StatusFlushed}
	toErr := func(r *rig, c *net.TCPConn) {
		if err := r.q.Modify(nic.QPAttr{State: nic.Err}); err != nil {
			r.t.Fatal(err)
		}
	}
	answer := func(s *script, c *net.TCPConn) { s.reply(c, verdictOK) }
	for _, tc := range []struct {
		name string
		end  func(r *rig, c *net.TCPConn)
		then func(s *script, ask *net.TCPConn)
		want []nic.Status
	}{
		{"moved to ERR", toErr, answer, flushed},
		{"connection lost", func(r *rig, c *net.TCPConn) { c.Close() }, answer, retry},
		{"port down", func(r *rig, c *net.TCPConn) { r.d.SetPort(nic.PortDown) }, answer, retry},
		{"malformed frame", func(r *rig, c *net.TCPConn) { c.Write(make([]byte, frameBytes)) }, answer, retry},
		{"region taken away", func(r *rig, c *net.TCPConn) {
			ack := make([]byte, frameBytes)
			putFrame(ack, frame{kind: frameAck, seq: 2})
			c.Write(ack)
			r.want(nic.StatusSuccess, nic.StatusSuccess)
			r.mr.Close()
			r.post(r.wr(nic.OpWrite, 9, 1))
		}, answer, []nic.Status{nic.StatusLocalProtection}},
		{"peer dies", toErr, func(s *script, ask *net.TCPConn) {
			s.lis.Close()
			ask.Close()
		}, flushed},
		{"answer is lost", toErr, func(s *script, ask *net.TCPConn) {
			ask.Close()
			s.reply(s.next(kindClose), verdictOK)
		}, flushed},
		{"another program took the port", toErr, func(s *script, ask *net.TCPConn) {
			io.WriteString(ask, strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 20))
		}, flushed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, s, c := underway(t, 2)
			tc.end(r, c)
			ask := s.next(kindClose)
			r.quiet()
			tc.then(s, ask)
			r.want(tc.want...)
			r.post(r.wr(nic.OpWrite, 3, 1))
			r.want(nic.StatusFlushed)
		})
	}
}

// TestNakIsClosed: a nak is the peer's word that it has closed its end.
func TestNakIsClosed(t *testing.T) {
	r, s, c := underway(t, 3)
	s.frame(c, frame{kind: frameNak, status: nic.StatusRemoteAccess, seq: 1})
	r.want(nic.StatusSuccess, nic.StatusRemoteAccess, nic.StatusFlushed)
}

// TestNothingSentNothingToClose: as long as the peer has not accepted the connection,
// nothing of an operation was sent, so that it can fail at once.
func TestNothingSentNothingToClose(t *testing.T) {
	t.Run("no answer to hello", func(t *testing.T) {
		s, r := newScript(t), newRig(t, DeviceConfig{Name: "a"}, 1<<16)
		r.connect(s.end())
		r.q.budget = 50 * time.Millisecond
		r.post(r.wr(nic.OpWrite, 1, 10), r.wr(nic.OpWrite, 2, 10))
		r.want(nic.StatusRetryExceeded, nic.StatusFlushed)
	})
	t.Run("moved to ERR meanwhile", func(t *testing.T) {
		s, r := newScript(t), newRig(t, DeviceConfig{Name: "a"}, 1<<16)
		r.connect(s.end())
		r.post(r.wr(nic.OpWrite, 1, 10))
		s.next(kindData)
		r.q.fail(nic.StatusFlushed)
		r.want(nic.StatusFlushed)
	})
	t.Run("refused for good", func(t *testing.T) {
		s, r := newScript(t), newRig(t, DeviceConfig{Name: "a"}, 1<<16)
		r.connect(s.end())
		r.post(r.wr(nic.OpWrite, 1, 10))
		s.reply(s.next(kindData), verdictNotReady)
		s.reply(s.next(kindData), verdictRefused)
		r.want(nic.StatusRetryExceeded)
	})
}

func TestCloseWaitsForPeer(t *testing.T) {
	r, s, _ := underway(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := r.q.Close(ctx)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "may still land") {
		t.Errorf("Close with a peer that does not answer: %v", err)
	}
	ask := s.next(kindClose)
	s.reply(ask, verdictOK)
	if err := r.q.Close(t.Context()); err != nil {
		t.Error(err)
	}
	r.quiet() // dropped without a report
}

func TestDeviceCloseGivesUp(t *testing.T) {
	r, s, _ := underway(t, 2)
	err := r.d.Close()
	if err == nil || !strings.Contains(err.Error(), "may still land") {
		t.Errorf("Close with a peer that does not answer: %v", err)
	}
	if err2 := r.d.Close(); !errors.Is(err2, err) && err2.Error() != err.Error() {
		t.Errorf("second Close: %v, want %v", err2, err)
	}
	s.next(kindClose)
}

// TestResponderAnswersOnceLeft asks a device to close while its reader is in the
// middle of an operation, and checks that the bytes that were sent on stay out.
func TestResponderAnswersOnceLeft(t *testing.T) {
	r := newRig(t, DeviceConfig{Name: "b"}, 1<<16)
	me := end{r.d.gid, 9, 99}
	r.connect(me)
	c, verdict := say(t, r.d, hello{kind: kindData, src: me, dstQPN: r.q.num})
	if verdict != verdictOK {
		t.Fatalf("verdict %d", verdict)
	}
	half := writeBatch(op{nic.OpWrite, r.mr.RKey(), r.addr, 1 << 16}, make([]byte, 1<<15))
	for i := range half[batchBytes+opBytes:] {
		half[batchBytes+opBytes+i] = 1
	}
	c.Write(half)
	for end := time.Now().Add(patience); !said(r, 1<<15-1) && time.Now().Before(end); {
		time.Sleep(100 * time.Microsecond)
	}
	for _, what := range []string{"close", "close again"} {
		if _, verdict := say(t, r.d, hello{kind: kindClose, src: me, dstQPN: r.q.num}); verdict != verdictOK {
			t.Errorf("%s: verdict %d", what, verdict)
		}
		clear(r.mem)
		c.Write(half[batchBytes+opBytes:])
		time.Sleep(5 * time.Millisecond)
		if said(r, 0) || said(r, 1<<15) {
			t.Errorf("%s: bytes landed after the answer", what)
		}
	}
	if _, verdict := say(t, r.d, hello{kind: kindData, src: me, dstQPN: r.q.num}); verdict != verdictRefused {
		t.Errorf("hello after the close: verdict %d, want refused", verdict)
	}
	if r.q.State() != nic.RTS {
		t.Errorf("state %v: a peer's close is no error here", r.q.State())
	}
}

// said reads a byte that the kernel writes meanwhile.
//
//go:norace
func said(r *rig, i int) bool { return r.mem[i] == 1 }

func writeBatch(o op, payload []byte) []byte {
	b := make([]byte, batchBytes+opBytes, batchBytes+opBytes+len(payload))
	putBatch(b, 1)
	putOp(b[batchBytes:], o)
	return append(b, payload...)
}
