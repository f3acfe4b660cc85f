package railhop_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/pattern"
)

// settings are MC_* and RAILHOP_* values.
type settings map[string]string

// open starts an engine on software providers, with memory on its GPU.
type process struct {
	engine   *railhop.Engine
	cfg      railhop.Config
	gpus     *softgpu.Provider
	dev      gpu.Device
	mem      []uint64
	nicFails atomic.Bool // every operation of its NICs does
}

func open(set settings, registry string, log *slog.Logger) (*process, error) {
	return openWith(options{set: set, registry: registry, log: log})
}

func (p *process) close() error {
	err := p.engine.Close()
	for _, addr := range p.mem {
		err = errors.Join(err, p.dev.Free(addr))
	}
	return errors.Join(err, p.dev.Close())
}

// memory allocates and registers GPU memory.
func (p *process) memory(size uint64) (uint64, error) {
	addr, err := p.dev.Alloc(size)
	if err != nil {
		return 0, err
	}
	p.mem = append(p.mem, addr)
	return addr, p.engine.Register(addr, size, "")
}

// registerParts registers memory that was allocated, part by part.
func (p *process) registerParts(addr, size, part uint64) error {
	var regions []railhop.Region
	for off := uint64(0); off < size; off += part {
		regions = append(regions, railhop.Region{Addr: addr + off, Length: min(part, size-off)})
	}
	return p.engine.RegisterBatch(regions)
}

func (p *process) write(name string, src, dst, size uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	id, err := p.engine.OpenSegment(ctx, name)
	if err != nil {
		return err
	}
	return p.engine.Write(ctx, id, src, dst, size)
}

type command struct {
	Op       string
	Set      settings `json:",omitempty"`
	Registry string   `json:",omitempty"`
	Name     string   `json:",omitempty"` // of a segment
	Addr, To uint64
	Size     uint64
	Part     uint64 // of a region to be registered, or of what is compared: Part bytes of each Stride
	Stride   uint64
	Seed     uint64
	Byte     byte
	GPU      int // ordinal
}

type answer struct {
	Err   string
	Name  string
	Addr  uint64
	Bad   int
	Stats railhop.Stats
}

// serve is the life of a child process: one command a line.
func serve() {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	var p *process
	for in.Scan() {
		var c command
		var a answer
		err := json.Unmarshal(in.Bytes(), &c)
		if err == nil {
			switch c.Op {
			case "open":
				if p, err = open(c.Set, c.Registry, log); err == nil {
					a.Name = p.engine.Name()
				}
			case "memory":
				a.Addr, err = p.memoryOn(c.GPU, c.Size)
			case "alloc":
				if a.Addr, err = p.dev.Alloc(c.Size); err == nil {
					p.mem = append(p.mem, a.Addr)
				}
			case "poison":
				err = p.chunks(c.Addr, c.Size, func(addr, _ uint64, b []byte) error {
					copy(b, bytesOf(c.Byte, uint64(len(b))))
					return p.dev.CopyIn(addr, b)
				})
			case "verify":
				a.Bad, err = p.differ(c)
			case "fill":
				got := make([]byte, c.Size)
				pattern.Fill(got, c.Seed, 0)
				err = p.dev.CopyIn(c.Addr, got)
			case "register":
				err = p.registerParts(c.Addr, c.Size, c.Part)
			case "write":
				err = p.write(c.Name, c.Addr, c.To, c.Size)
			case "break nic":
				p.nicFails.Store(true)
			case "stats":
				a.Stats = p.engine.Stats()
			case "close":
				err = p.close()
			default:
				err = fmt.Errorf("no such command %q", c.Op)
			}
		}
		if err != nil {
			a.Err = err.Error()
		}
		out.Encode(a)
	}
}

func bytesOf(b byte, n uint64) []byte {
	return []byte(strings.Repeat(string([]byte{b}), int(n)))
}

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		serve()
		return
	}
	os.Exit(m.Run())
}

// child is a process of the test.
type child struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	mu  sync.Mutex
}

func start(t testing.TB, set settings, registry string) (*child, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "serve")
	cmd.Stderr = &prefixed{t: t, name: set["RAILHOP_SOFT_NICS"]}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return c, c.do(command{Op: "open", Set: set, Registry: registry}).Name
}

func (c *child) do(cmd command) answer {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	b, _ := json.Marshal(cmd)
	if _, err := c.in.Write(append(b, '\n')); err != nil {
		c.t.Fatalf("%s: %v", cmd.Op, err)
	}
	if !c.out.Scan() {
		c.t.Fatalf("%s: the child has ended", cmd.Op)
	}
	var a answer
	if err := json.Unmarshal(c.out.Bytes(), &a); err != nil {
		c.t.Fatalf("%s: %v in %q", cmd.Op, err, c.out.Bytes())
	}
	if a.Err != "" {
		c.t.Fatalf("%s: %s", cmd.Op, a.Err)
	}
	return a
}

type prefixed struct {
	t    testing.TB
	name string
}

func (p *prefixed) Write(b []byte) (int, error) {
	p.t.Logf("[%s] %s", p.name, strings.TrimSpace(string(b)))
	return len(b), nil
}

// rankSettings are those of rank i of a group on a fabric with a NIC per rail.
func rankSettings(group string, i int) settings {
	return settings{
		"RAILHOP_PROVIDERS": "soft",
		"RAILHOP_SOFT_NICS": fmt.Sprintf("m%d=127.0.1.%d", i, i+1),
		"RAILHOP_SOFT_GPUS": fmt.Sprintf("0000:a%d:00.0", i),
		"MC_PXN_ENABLE":     "1",
		"MC_PXN_GROUP_ID":   group,
		"MC_PXN_SLOT_SIZE":  "1MiB",
	}
}

func targetSettings() settings {
	return settings{
		"RAILHOP_PROVIDERS": "soft",
		"RAILHOP_SOFT_NICS": "m1=127.0.2.2",
		"RAILHOP_SOFT_GPUS": "0000:b1:00.0",
	}
}

func TestDirect(t *testing.T) {
	a, err := open(settings{"RAILHOP_PROVIDERS": "soft", "RAILHOP_SOFT_NICS": "m0=127.0.1.1", "RAILHOP_SOFT_GPUS": "1"}, t.TempDir(), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	b, err := open(targetSettings(), t.TempDir(), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	const size = 8 << 20
	src, err := a.memory(size)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := b.memory(size)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, size)
	pattern.Fill(buf, 7, 0)
	if err := a.dev.CopyIn(src, buf); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	id, err := a.engine.OpenSegment(ctx, b.engine.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.engine.Write(ctx, id, src, dst, size); err != nil {
		t.Fatal(err)
	}
	clear(buf)
	if err := b.dev.CopyOut(buf, dst); err != nil {
		t.Fatal(err)
	}
	if _, n := pattern.Mismatch(buf, 7, 0); n > 0 {
		t.Errorf("%d bytes differ after a write", n)
	}
	if err := a.engine.Read(ctx, id, src, dst, size/2); err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", a.engine.Stats().DirectCrossRail)
}

func TestRelayed(t *testing.T) {
	registry := t.TempDir()
	relay, _ := start(t, rankSettings("g", 1), registry)
	target, name := start(t, targetSettings(), registry)
	const size = 32 << 20
	dst := target.do(command{Op: "memory", Size: size}).Addr
	target.do(command{Op: "poison", Addr: dst, Size: size, Byte: 0xa5})
	log := slog.New(slog.NewTextHandler(&prefixed{t, "sender"}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := open(rankSettings("g", 0), registry, log)
	if err != nil {
		t.Fatal(err)
	}
	src, err := s.memory(size)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, size)
	pattern.Fill(buf, 9, 0)
	if err := s.dev.CopyIn(src, buf); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	id, err := s.engine.OpenSegment(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := s.engine.Write(ctx, id, src, dst, size); err != nil {
		t.Fatal(err)
	}
	t.Logf("%.2f GB/s the first time", float64(size)/1e9/time.Since(start).Seconds())
	start = time.Now()
	if err := s.engine.Write(ctx, id, src, dst, size); err != nil {
		t.Fatal(err)
	}
	t.Logf("%.2f GB/s the second time", float64(size)/1e9/time.Since(start).Seconds())
	if bad := target.do(command{Op: "verify", Addr: dst, Size: size, Seed: 9}).Bad; bad > 0 {
		t.Errorf("%d bytes differ", bad)
	}
	st := s.engine.Stats()
	if st.Relayed.Bytes != 2*size || len(st.Fallbacks) > 0 {
		t.Errorf("relayed %d of %d bytes, fallbacks %v", st.Relayed.Bytes, 2*size, st.Fallbacks)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	relay.do(command{Op: "close"})
	if left, _ := filepath.Glob(registry + "/g/*"); len(left) > 1 {
		t.Errorf("left behind: %q", left)
	}
}
