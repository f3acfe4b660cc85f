package railhop_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/wire"
)

// publish serves a descriptor's bytes until the end of the test, and says where.
func publish(t *testing.T, desc []byte) (name string) {
	t.Helper()
	s, err := handshake.Listen(handshake.Options{PortMin: 17001, PortMax: 19000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.Handle(handshake.Handlers{Describe: func() []byte { return desc }})
	return wire.ServerName("127.0.0.1", s.Port())
}

// members is a JSON object.
type members = map[string]any

// TestInteropDescriptors has descriptors that are wrong, each in one way, opened by
// Mooncake's engine and by ours: both refuse the same. What is no object, or has members
// of another type, is left out, for it ends Mooncake's process (mooncake-wire.md 2.5).
func TestInteropDescriptors(t *testing.T) {
	const addr = 0x7f0000000000
	w := startWheel(t, "127.0.0.1", "P2PHANDSHAKE", 4096)
	e := openTCP(t, nil)
	tcp := func() members {
		return members{
			"name": "127.0.0.1:1", "protocol": "tcp", "tcp_data_port": 1, "tcp_proto_version": 2, "timestamp": "2026-12-01 00:00:00.000000",
			"buffers": []any{members{"name": "127.0.0.1:1", "addr": uint64(addr), "length": 4096}},
		}
	}
	rdma := func() members {
		gid := "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:63:00:01"
		return members{
			"name": "127.0.0.1:1", "protocol": "rdma", "tcp_data_port": 0, "tcp_proto_version": 1, "timestamp": "2026-12-01 00:00:00.000000",
			"devices":         []any{members{"name": "a", "gid": gid, "lid": 0}, members{"name": "b", "gid": gid, "lid": 0}},
			"buffers":         []any{members{"name": "cpu:0", "addr": uint64(addr), "length": 4096, "rkey": []int{1, 2}, "lkey": []int{3, 4}}},
			"priority_matrix": members{"cpu:0": [][]string{{"a"}, {"b"}}},
		}
	}
	buffer := func(d members) members { return d["buffers"].([]any)[0].(members) }
	device := func(d members) members { return d["devices"].([]any)[1].(members) }
	for _, tc := range []struct {
		name  string
		desc  func() members
		spoil func(d members)
		taken bool
	}{
		{"tcp", tcp, func(members) {}, true},
		{"tcp, no version and no time", tcp, func(d members) { delete(d, "tcp_proto_version"); delete(d, "timestamp") }, true},
		{"tcp, members that nobody knows", tcp, func(d members) { d["x"], buffer(d)["y"] = 1, "z" }, true},
		{"tcp, unknown protocol", tcp, func(d members) { d["protocol"] = "carrier pigeon" }, false},
		{"tcp, a buffer without a name", tcp, func(d members) { buffer(d)["name"] = "" }, false},
		{"tcp, a buffer at 0", tcp, func(d members) { buffer(d)["addr"] = 0 }, false},
		{"tcp, a buffer of no bytes", tcp, func(d members) { buffer(d)["length"] = 0 }, false},

		{"rdma", rdma, func(members) {}, true},
		{"rdma, no keys", rdma, func(d members) { buffer(d)["rkey"], buffer(d)["lkey"] = []int{}, []int{} }, true},
		{"rdma, no matrix", rdma, func(d members) { delete(d, "priority_matrix") }, true},
		{"rdma, a malformed matrix", rdma, func(d members) { d["priority_matrix"] = members{"cpu:0": []string{"a"}} }, true},
		{"rdma, a device without a name", rdma, func(d members) { device(d)["name"] = "" }, false},
		{"rdma, a device without a GID", rdma, func(d members) { device(d)["gid"] = "" }, false},
		{"rdma, a buffer without a name", rdma, func(d members) { buffer(d)["name"] = "" }, false},
		{"rdma, a buffer at 0", rdma, func(d members) { buffer(d)["addr"] = 0 }, false},
		{"rdma, a buffer of no bytes", rdma, func(d members) { buffer(d)["length"] = 0 }, false},
		{"rdma, fewer keys than devices", rdma, func(d members) { buffer(d)["rkey"], buffer(d)["lkey"] = []int{1}, []int{3} }, false},
		{"rdma, keys of one kind alone", rdma, func(d members) { buffer(d)["lkey"] = []int{3} }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := tc.desc()
			tc.spoil(d)
			encoded, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			w.t = t
			name := publish(t, encoded)
			if at := w.do("first", name); (at == addr) != tc.taken || !tc.taken && at != 0 {
				t.Errorf("the wheel finds the first buffer at %#x; want it to take the descriptor: %v", at, tc.taken)
			}
			if _, err := e.OpenSegment(t.Context(), name); (err == nil) != tc.taken {
				t.Errorf("ours: %v; want it to take the descriptor: %v", err, tc.taken)
			}
		})
	}
	w.t = t
}

var (
	longest = flag.Uint64("longest", 16<<20, "bytes of the longest transfer of TestInteropLongest")
	idle    = flag.Duration("idle", time.Second, "how long connections are left alone by TestInteropIdle")
)

// TestInteropLongest moves as much at once as -longest says, and nothing at all.
func TestInteropLongest(t *testing.T) {
	most := *longest
	for _, env := range [][]string{nil, {"MC_TCP_PROTO=1"}} {
		t.Run(fmt.Sprint(env), func(t *testing.T) {
			w := startWheel(t, "127.0.0.1", "P2PHANDSHAKE", int(most), env...)
			var ours settings
			if env != nil {
				ours = settings{"MC_TCP_PROTO": "1"}
			}
			e := openTCP(t, func(c *railhop.Config) { c.Settings = loadSettings(t, ours) })
			mem, addr := registerBytes(t, e, int(most))
			id := openSegment(t, e, w.name)
			for i, n := range []uint64{0, most} {
				seed := uint64(i + 1)
				pattern.Fill(mem[:n], seed, 0)
				check(t, "our write", e.Write(t.Context(), id, addr, w.addr, n), w.get(int(n)), seed)
				clear(mem[:n])
				check(t, "our read", e.Read(t.Context(), id, addr, w.addr, n), mem[:n], seed)
				pattern.Fill(mem[:n], seed+100, 0)
				w.move("read", e.Name(), []uint64{0}, []uint64{addr}, []uint64{n})
				check(t, "its read", nil, w.get(int(n)), seed+100)
				clear(mem[:n])
				w.move("write", e.Name(), []uint64{0}, []uint64{addr}, []uint64{n})
				eventuallyEqual(t, "its write", mem[:n], seed+100)
			}
		})
	}
}

// TestInteropIdle leaves connections alone between two transfers.
func TestInteropIdle(t *testing.T) {
	for _, env := range []string{"MC_TCP_ENABLE_CONNECTION_POOL=0", "MC_TCP_ENABLE_CONNECTION_POOL=1"} {
		t.Run(env, func(t *testing.T) {
			t.Parallel()
			const n = 65537
			w := startWheel(t, "127.0.0.1", "P2PHANDSHAKE", n, env)
			e := openTCP(t, nil)
			mem, addr := registerBytes(t, e, n)
			id := openSegment(t, e, w.name)
			both := func(seed uint64) {
				t.Helper()
				pattern.Fill(mem, seed, 0)
				check(t, "our write", e.Write(t.Context(), id, addr, w.addr, n), w.get(n), seed)
				clear(mem)
				w.move("write", e.Name(), []uint64{0}, []uint64{addr}, []uint64{n})
				check(t, "its write", nil, mem, seed)
			}
			both(1)
			time.Sleep(*idle)
			both(2)
		})
	}
}
