package railhop_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/metadata"
	"github.com/railhop/railhop/internal/pattern"
)

// wheelPython is where tools/interop/setup.sh puts Mooncake's wheel.
const wheelPython = ".cache/interop/bin/python"

// wheelRDMA has a wheel use the RDMA devices that are there, by their IPv4 addresses.
const wheelRDMA = "MC_GID_INDEX=1"

// wheel is a process that runs Mooncake's own engine.
type wheel struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   *json.Encoder
	out  *bufio.Scanner
	log  bytes.Buffer
	name string
	addr uint64
}

func startWheel(t *testing.T, host, metadata string, size int, env ...string) *wheel {
	t.Helper()
	if _, err := os.Stat(wheelPython); err != nil {
		t.Skip("no Mooncake wheel: make interop installs it")
	}
	w := &wheel{t: t}
	w.cmd = exec.Command(wheelPython, "tools/interop/peer.py", host, metadata, fmt.Sprint(size))
	w.cmd.Env = append(append(os.Environ(), "MC_FORCE_TCP=1"), env...)
	if slices.Contains(env, wheelRDMA) {
		w.cmd.Env = append(os.Environ(), env...)
	}
	w.cmd.Stderr = &w.log
	in, err := w.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		kill := time.AfterFunc(5*time.Second, func() { w.cmd.Process.Kill() })
		w.cmd.Wait()
		kill.Stop()
		if t.Failed() {
			t.Logf("the wheel's log:\n%s", tailOf(w.log.String(), 20))
		}
	})
	w.in, w.out = json.NewEncoder(in), bufio.NewScanner(out)
	hello := w.answer()
	if hello.RC != 0 {
		t.Fatalf("the wheel does not start: %d\n%s", hello.RC, w.log.String())
	}
	w.name, w.addr = hello.Name, hello.Addr
	return w
}

func tailOf(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

type wheelAnswer struct {
	RC   int
	Name string
	Addr uint64
}

func (w *wheel) answer() (a wheelAnswer) {
	w.t.Helper()
	for w.out.Scan() {
		if json.Unmarshal(w.out.Bytes(), &a) == nil {
			return a
		}
	}
	w.cmd.Wait()
	w.t.Fatalf("the wheel has ended: %v\n%s", w.cmd.ProcessState, w.log.String())
	return a
}

// do has the wheel do something and returns its code.
func (w *wheel) do(args ...any) int {
	w.t.Helper()
	if err := w.in.Encode(args); err != nil {
		w.t.Fatal(err)
	}
	return w.answer().RC
}

// move has the wheel read or write pieces: offsets into its memory, addresses in ours.
func (w *wheel) move(verb, target string, offs, remotes, lengths []uint64) {
	w.t.Helper()
	if rc := w.do(verb, target, offs, remotes, lengths); rc != 0 {
		w.t.Fatalf("the wheel's %s of %d pieces, %d bytes the first: %d", verb, len(offs), lengths[0], rc)
	}
}

// get is the wheel's memory.
func (w *wheel) get(n int) []byte {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "out")
	if rc := w.do("save", path, 0, n); rc != 0 {
		w.t.Fatalf("save: %d", rc)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		w.t.Fatal(err)
	}
	os.Remove(path)
	return b
}

// TestInterop moves bytes between our engine and Mooncake's own, by each of them.
func TestInterop(t *testing.T) {
	for _, tt := range []struct {
		name     string
		wheelEnv []string
		ours     settings
	}{
		{name: "a connection a request", wheelEnv: []string{"MC_TCP_ENABLE_CONNECTION_POOL=0"}},
		{name: "wheel with its pool", wheelEnv: []string{"MC_TCP_ENABLE_CONNECTION_POOL=1", pooledQueue}},
		{name: "version 1", wheelEnv: []string{"MC_TCP_PROTO=1", pooledQueue}, ours: settings{"MC_TCP_PROTO": "1"}},
	} {
		t.Run(tt.name, func(t *testing.T) { interoperate(t, tt.wheelEnv, tt.ours) })
	}
}

// pooledQueue makes room for a batch, which the wheel's pool would refuse.
const pooledQueue = "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER=8192"

func interoperate(t *testing.T, wheelEnv []string, ours settings) {
	sizes := []int{1, 7, 8, 4096, 65535, 65536, 65537, 1 << 20, 256 << 20}
	if testing.Short() || wheelEnv[0] != "MC_TCP_ENABLE_CONNECTION_POOL=1" {
		sizes[len(sizes)-1] = 16 << 20
	}
	most := sizes[len(sizes)-1]
	w := startWheel(t, "127.0.0.1", "P2PHANDSHAKE", most, wheelEnv...)
	e := openTCP(t, func(c *railhop.Config) { c.Settings = loadSettings(t, ours) })
	mem, addr := registerBytes(t, e, most)
	id := openSegment(t, e, w.name)

	for i, n := range sizes {
		seed := uint64(i + 1)
		pattern.Fill(mem[:n], seed, 0)
		check(t, "our write", e.Write(t.Context(), id, addr, w.addr, uint64(n)), w.get(n), seed)
		clear(mem[:n])
		check(t, "our read", e.Read(t.Context(), id, addr, w.addr, uint64(n)), mem[:n], seed)
		one := []uint64{uint64(n)}
		pattern.Fill(mem[:n], seed+100, 0)
		w.move("read", e.Name(), []uint64{0}, []uint64{addr}, one)
		check(t, "its read", nil, w.get(n), seed+100)
		clear(mem[:n])
		w.move("write", e.Name(), []uint64{0}, []uint64{addr}, one)
		eventuallyEqual(t, "its write", mem[:n], seed+100)
	}

	const n, size = 4000, 1000
	var offs, remotes, lengths []uint64
	reqs := make([]railhop.Request, n)
	for i := range n {
		at := uint64(i * size)
		offs, remotes, lengths = append(offs, at), append(remotes, addr+at), append(lengths, size)
		reqs[i] = railhop.Request{Op: railhop.Write, Source: addr + at, Target: id, TargetAddr: w.addr + at, Length: size}
	}
	batch := func(op railhop.Opcode) error {
		for i := range reqs {
			reqs[i].Op = op
		}
		b := e.NewBatch(n)
		return errors.Join(b.Submit(reqs), b.Wait(t.Context()))
	}
	pattern.Fill(mem[:n*size], 31, 0)
	check(t, "our batch of writes", batch(railhop.Write), w.get(n*size), 31)
	clear(mem[:n*size])
	check(t, "our batch of reads", batch(railhop.Read), mem[:n*size], 31)
	pattern.Fill(mem[:n*size], 32, 0)
	w.move("read", e.Name(), offs, remotes, lengths)
	check(t, "its batch of reads", nil, w.get(n*size), 32)
	clear(mem[:n*size])
	w.move("write", e.Name(), offs, remotes, lengths)
	eventuallyEqual(t, "its batch of writes", mem[:n*size], 32)

	// Memory that is not registered, at either end.
	if err := e.Write(t.Context(), id, addr, w.addr+uint64(most)-1, 2); !errors.Is(err, railhop.ErrAddressNotFound) {
		t.Errorf("our write past its end: got %v, want %v", err, railhop.ErrAddressNotFound)
	}
	if rc := w.do("read", e.Name(), []uint64{0}, []uint64{addr + uint64(most) - 1}, []uint64{2}); rc == 0 {
		t.Error("its read past our end succeeded")
	}
	if rc := w.do("probe", e.Name()); rc != 0 {
		t.Errorf("its probe: %d", rc)
	}
}

func loadSettings(t *testing.T, set settings) config.Env {
	t.Helper()
	env, warnings := config.Load(func(name string) (string, bool) { v, ok := set[name]; return v, ok })
	if len(warnings) > 0 {
		t.Fatal(warnings)
	}
	return env
}

func check(t *testing.T, what string, err error, got []byte, seed uint64) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s of %d bytes: %v", what, len(got), err)
	}
	if first, n := pattern.Mismatch(got, seed, 0); n > 0 {
		t.Fatalf("%s of %d bytes: %d bytes differ, the first at %d", what, len(got), n, first)
	}
}

// eventuallyEqual is check for writes of version 1, which nobody acknowledges.
func eventuallyEqual(t *testing.T, what string, got []byte, seed uint64) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, n := pattern.Mismatch(got, seed, 0); n == 0 {
			return
		}
	}
	check(t, what, nil, got, seed)
}

// TestInteropByServer has the two kinds of engine meet by metadata servers.
func TestInteropByServer(t *testing.T) {
	for _, tt := range []struct {
		name   string
		server func(*testing.T) string
	}{
		{"http", func(t *testing.T) string {
			s := httptest.NewServer(metadata.NewServer())
			t.Cleanup(s.Close)
			return s.URL + "/metadata"
		}},
		{"etcd", startEtcd},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := os.Stat(wheelPython); err != nil {
				t.Skip("no Mooncake wheel: make interop installs it")
			}
			const size = 1 << 20
			server := tt.server(t)
			w := startWheel(t, "wheel:1", server, size, "MC_TCP_BIND_ADDRESS=127.0.0.1")
			e := openTCP(t, func(c *railhop.Config) {
				c.Host, c.Metadata = "ours:1", server
				c.Settings = loadSettings(t, settings{"MC_TCP_BIND_ADDRESS": "127.0.0.1"})
			})
			mem, addr := registerBytes(t, e, size)
			id := openSegment(t, e, "wheel:1")
			pattern.Fill(mem, 1, 0)
			check(t, "our write", e.Write(t.Context(), id, addr, w.addr, size), w.get(size), 1)
			pattern.Fill(mem, 2, 0)
			w.move("read", "ours:1", []uint64{0}, []uint64{addr}, []uint64{size})
			check(t, "its read", nil, w.get(size), 2)
			clear(mem)
			check(t, "our read", e.Read(t.Context(), id, addr, w.addr, size), mem, 2)
			if rc := w.do("probe", "ours:1"); rc != 0 {
				t.Errorf("its probe: %d", rc)
			}
			if err := e.Probe(t.Context(), "wheel:1"); err != nil {
				t.Errorf("our probe: %v", err)
			}
		})
	}
}

// startEtcd starts a server for the time of the test and returns its connection string.
func startEtcd(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("no etcd: tools/setup.sh installs it")
	}
	var ports [2]string
	for i := range ports {
		ln, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = ln.Addr().String()
		ln.Close()
	}
	client, peer := "http://"+ports[0], "http://"+ports[1]
	cmd := exec.Command(path, "--data-dir", t.TempDir(), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		conn, err := net.Dial("tcp4", ports[0])
		if err == nil {
			conn.Close()
			return "etcd://" + ports[0]
		}
		if time.Now().After(deadline) {
			t.Fatalf("etcd does not answer: %v", err)
		}
	}
}
