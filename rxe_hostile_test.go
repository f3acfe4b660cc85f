package railhop_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/wire"
)

// TestRXEHostileHandshakes has whoever finds the port say what is wrong in every way
// (cases.md D11, mooncake-wire.md 12) to an engine on real queue pairs, while a peer
// writes: that goes on, what is refused keeps no queue pair, and what is let in keeps
// those that its answer lists, until the engine is closed.
func TestRXEHostileHandshakes(t *testing.T) {
	devices := needRXE(t, 2)
	idle := queuePairs(t, devices[1]) // of nobody: a kernel has one or two for itself
	a, b := openRXE(t, nil, devices[0]), openRXE(t, nil, devices[1])
	const size = 256 << 10
	src, from := registerBytes(t, a, size)
	dst, to := registerBytes(t, b, size)
	id := openSegment(t, a, b.Name())
	seed := uint64(0)
	write := func() {
		t.Helper()
		seed++
		pattern.Fill(src, seed, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		check(t, "a write", a.Write(ctx, id, from, to, size), dst, seed)
	}
	write()
	before := queuePairs(t, devices[1])

	var d handshake.Dialer
	desc, err := d.Describe(t.Context(), b.Name())
	if err != nil {
		t.Fatal(err)
	}
	path := b.Name() + "@" + devices[1]
	no, yes := false, true
	good := wire.HandShake{LocalNICPath: "127.0.0.1:9@x", PeerNICPath: path, LocalGID: desc.Devices[0].GID, QPNum: []uint32{0x1001, 0x1002}, ReadyAck: &no}
	kept := make(map[string]int) // queue pairs, by the peer that they are for
	say := func(h wire.HandShake) (refused bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		reply, err := d.Connect(ctx, b.Name(), h)
		if ctx.Err() != nil {
			t.Fatalf("%+v: not answered in time", h)
		}
		if err == nil && reply.ReplyMsg == "" && len(reply.QPNum) > 0 {
			kept[h.LocalNICPath] = len(reply.QPNum)
			return false
		}
		return true
	}
	most := make([]uint32, wire.MaxQPs)
	for i := range most {
		most[i] = uint32(i + 1)
	}
	for _, tc := range []struct {
		name  string
		spoil func(h *wire.HandShake)
	}{
		{"no queue pairs", func(h *wire.HandShake) { h.QPNum = nil }},
		{"too many queue pairs", func(h *wire.HandShake) { h.QPNum = most }},
		{"no GID, and nobody to ask for it", func(h *wire.HandShake) { h.LocalGID = "" }},
		{"not a GID", func(h *wire.HandShake) { h.LocalGID = strings.Repeat("ff:", 4000) }},
		{"a GID that routes nowhere", func(h *wire.HandShake) { h.LocalGID = "00" + strings.Repeat(":00", 15) }},
		{"no path of its own", func(h *wire.HandShake) { h.LocalNICPath = "" }},
		{"no path of ours", func(h *wire.HandShake) { h.PeerNICPath = "" }},
		{"no device", func(h *wire.HandShake) { h.PeerNICPath = b.Name() + "@" }},
		{"another device", func(h *wire.HandShake) { h.PeerNICPath = b.Name() + "@mlx5_0" }},
		{"another host's path", func(h *wire.HandShake) { h.PeerNICPath = "10.0.0.1:1@" + devices[1] }},
		{"ready, and never heard of", func(h *wire.HandShake) { h.ReadyAck = &yes }},
		{"a path that is too long", func(h *wire.HandShake) { h.PeerNICPath = strings.Repeat("x", 500<<10) }},
	} {
		for i := range 5 {
			h := good
			h.LocalNICPath = fmt.Sprintf("127.0.0.1:%d@%s", 1+i, strings.ReplaceAll(tc.name, " ", "_"))
			tc.spoil(&h)
			if !say(h) {
				t.Errorf("%s: let in", tc.name)
			}
		}
	}
	write()
	settle := func(what string, want int) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); queuePairs(t, devices[1]) > want; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d queue pairs, want at most %d", what, queuePairs(t, devices[1]), want)
			}
		}
	}
	settle("after what was refused", before)

	// Bytes of a valid message, some of them others. What is still valid is let in.
	rnd := rand.New(rand.NewPCG(6, 11))
	lies := 1000
	if testing.Short() {
		lies = 200
	}
	for i := range lies {
		h := good
		h.LocalNICPath = fmt.Sprintf("127.0.0.1:%d@fuzz", 1+i%50)
		body := wire.AppendHandShake(nil, &h)
		for range 1 + rnd.IntN(4) {
			switch at := rnd.IntN(len(body)); rnd.IntN(3) {
			case 0:
				body[at] ^= 1 << rnd.IntN(8)
			case 1:
				body = slices.Delete(body, at, min(len(body), at+1+rnd.IntN(8)))
			default:
				body = slices.Insert(body, at, []byte(`{"9]}`)[rnd.IntN(5)])
			}
		}
		raw(t, b.Name(), wire.AppendFrame(nil, wire.Frame{Type: wire.Connection, Body: body}), func(reply []byte) {
			if hs, err := wire.DecodeHandShake(reply); err == nil && hs.ReplyMsg == "" && len(hs.QPNum) > 0 {
				kept[hs.PeerNICPath] = len(hs.QPNum)
			}
		})
		if i%100 == 0 {
			write()
		}
	}
	// And what is no message.
	long := binary.LittleEndian.AppendUint64(nil, 1<<62)
	for _, b8 := range [][]byte{
		nil, make([]byte, 8), long, long[:3], []byte("GET / HTTP/1.1\r\n\r\n"), {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc},
		wire.AppendFrame(nil, wire.Frame{Type: wire.Connection, Body: []byte("[]")}),
		wire.AppendFrame(nil, wire.Frame{Type: wire.Connection, Body: []byte(strings.Repeat("[", 100000))}),
		wire.AppendFrame(nil, wire.Frame{Type: 0xff, Body: []byte("{}")}),
	} {
		for range 10 {
			raw(t, b.Name(), b8, func([]byte) {})
		}
	}
	write()
	allowed := before
	for _, n := range kept {
		allowed += n
	}
	settle("after what was let in", allowed)
	t.Logf("queue pairs: %d before, %d for %d peers that were let in", before, queuePairs(t, devices[1])-before, len(kept))

	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	settle("after the end", idle)
}

// raw sends bytes and hands on the body of what comes back, if anything does.
func raw(t *testing.T, server string, request []byte, each func(body []byte)) {
	t.Helper()
	conn, err := net.Dial("tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write(request); err != nil {
		return // it has hung up already
	}
	conn.(*net.TCPConn).CloseWrite()
	f, err := wire.ReadFrame(conn, 1<<20)
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatalf("%.60q: neither answered nor refused", request)
	}
	if err == nil {
		each(f.Body)
	}
}
