package faulttest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/config"
	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/gpufault"
	"github.com/railhop/railhop/internal/gpu/softgpu"
	"github.com/railhop/railhop/internal/nic/nicfault"
	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/testkit"
)

// role is the argument that makes the binary a child.
const role = "faulttest-child"

// Serve lives the life of a child process if this is one, and reports whether
// it was.
func Serve() bool {
	if len(os.Args) != 2 || os.Args[1] != role {
		return false
	}
	c := new(child)
	c.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: &c.level}))
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var cmd command
		if err := json.Unmarshal(in.Bytes(), &cmd); err != nil {
			c.tell(&Answer{Err: err.Error()})
			continue
		}
		go func() {
			a := Answer{ID: cmd.ID}
			if err := c.do(&cmd, &a); err != nil {
				a.Err = err.Error()
			}
			c.tell(&a)
		}()
	}
	return true
}

// child is a process of a test, seen from the inside.
type child struct {
	log   *slog.Logger
	level slog.LevelVar
	out   sync.Mutex

	options Options
	gate    *gate
	fences  atomic.Int64
	before  int // goroutines before the engine was opened
	nics    *listening
	dev     gpu.Device
	engine  *railhop.Engine

	mu       sync.Mutex
	mem      []uint64
	segments map[string]railhop.SegmentID
	watching *watching

	touched []byte
	marks   marks
	nicHeld nicHeld
	sink    *sink
	stream  *stream
}

func (c *child) tell(a *Answer) {
	c.out.Lock()
	defer c.out.Unlock()
	os.Stdout.Write(a.line())
}

func (c *child) do(cmd *command, a *Answer) error {
	switch cmd.Op {
	case "open":
		return c.open(cmd.Options, a)
	case "arm":
		c.gate.armed.Store(true)
	case "release":
		c.gate.release()
	case "memory":
		return c.memory(cmd.Size, a)
	case "fill":
		return c.fill(cmd)
	case "verify":
		bad, err := c.compare(cmd.Addr, cmd.Size, cmd.Seed)
		a.Bad = bad
		return err
	case "reuse":
		return c.reuse(cmd, a)
	case "late":
		c.mu.Lock()
		w := c.watching
		c.mu.Unlock()
		a.Bad = int(w.worst.Load())
	case "unwatch":
		return c.unwatch(a)
	case "write":
		return c.write(cmd, a)
	case "status":
		a.Status = &Status{Stats: c.engine.Stats(), Imports: c.imports(), Fences: int(c.fences.Load()), Maps: len(mapped(c.options.Registry))}
	case "fork", "fork bare":
		var err error
		a.PID, err = fork(cmd.Op == "fork bare")
		return err
	case "held":
		var err error
		a.Held, err = c.held()
		return err
	case "sink":
		return c.openSink(cmd)
	case "park":
		c.sink.park(cmd.Slots)
	case "settle":
		return c.settle(a)
	case "stream":
		return c.startStream(cmd)
	case "stop stream":
		return c.stopStream(a)
	case "mark":
		c.mark()
	case "measure":
		return c.measure(cmd.At, a)
	case "close":
		return c.close(a)
	default:
		return fmt.Errorf("no such command %q", cmd.Op)
	}
	return nil
}

func (c *child) open(o *Options, a *Answer) error {
	c.options = *o
	if o.Quiet {
		c.level.Set(slog.LevelError)
	}
	var err error
	if c.touched, err = touch(o.Touch); err != nil {
		return err
	}
	c.segments = make(map[string]railhop.SegmentID)
	c.gate = newGate(o.Stage, o.Nth, func(s Stage) { c.tell(&Answer{Reached: s}) })
	env, warnings := config.Load(func(name string) (string, bool) { v, ok := o.Set[name]; return v, ok })
	if len(warnings) > 0 {
		return fmt.Errorf("settings: %v", warnings)
	}
	gpuConfigs, err := softgpu.ParseDevices(env.Providers.SoftGPUs)
	if err != nil {
		return err
	}
	gpus, err := softgpu.New(softgpu.Options{Devices: gpuConfigs})
	if err != nil {
		return err
	}
	nics, err := testkit.NICs(env.Providers.SoftNICs, c.log)
	if err != nil {
		return err
	}
	var wire netip.AddrPort
	if o.Wire != "" {
		if wire, err = netip.ParseAddrPort(o.Wire); err != nil {
			return err
		}
	}
	if c.dev, err = gpus.Open(gpuConfigs[0].BusID); err != nil {
		return err
	}
	c.nics = &listening{Provider: nics}
	c.before = runtime.NumGoroutine()
	c.engine, err = railhop.Open(railhop.Config{
		Host: "127.0.0.1", Settings: env, Registry: o.Registry, Logger: c.log,
		NICs:  nicfault.Wrap(c.nics, nicfault.All(onNIC(c.gate, wire), c.marks.onPost, c.nicHeld.count)),
		GPUs:  gpufault.New(gpus, onGPU(c.gate)),
		Hooks: c.hooks(),
	})
	if err != nil {
		return err
	}
	a.Name, a.NIC = c.engine.Name(), c.nics.at.Load().String()
	return nil
}

// memory allocates and registers GPU memory.
func (c *child) memory(size uint64, a *Answer) error {
	addr, err := c.dev.Alloc(size)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.mem = append(c.mem, addr)
	c.mu.Unlock()
	a.Addr = addr
	return c.engine.Register(addr, size, "")
}

// forget frees memory.
func (c *child) forget(addr uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mem = slices.DeleteFunc(c.mem, func(a uint64) bool { return a == addr })
	return c.dev.Free(addr)
}

func (c *child) fill(cmd *command) error {
	b := make([]byte, cmd.Size)
	pattern.Fill(b, cmd.Seed, 0)
	return c.dev.CopyIn(cmd.Addr, b)
}

func (c *child) compare(addr, size, seed uint64) (bad int, err error) {
	got := make([]byte, size)
	if err := c.dev.CopyOut(got, addr); err != nil {
		return 0, err
	}
	_, bad = pattern.Mismatch(got, seed, 0)
	return bad, nil
}

func (c *child) write(cmd *command, a *Answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(cmd.Limit)*time.Millisecond)
	defer cancel()
	c.mu.Lock()
	id, known := c.segments[cmd.Name]
	c.mu.Unlock()
	if !known {
		var err error
		if id, err = c.engine.OpenSegment(ctx, cmd.Name); err != nil {
			return err
		}
		c.mu.Lock()
		c.segments[cmd.Name] = id
		c.mu.Unlock()
	}
	err := c.engine.Write(ctx, id, cmd.Addr, cmd.To, cmd.Size)
	var land *railhop.MayLandError
	a.Late = errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &land)
	return err
}

func (c *child) imports() int {
	return c.dev.(*softgpu.Device).Counts().Imports
}

// close closes the engine and says what of it is left.
func (c *child) close(a *Answer) error {
	if c.sink != nil {
		c.sink.close()
	}
	err := c.engine.Close()
	if n := c.imports(); n > 0 {
		a.Left = append(a.Left, fmt.Sprintf("%d imports", n))
	}
	c.mu.Lock()
	for _, addr := range c.mem {
		err = errors.Join(err, c.dev.Free(addr))
	}
	c.mem = nil
	c.mu.Unlock()
	a.Left = append(a.Left, mapped(c.options.Registry)...)
	// The command's own goroutine came after the count, and Go's timers and
	// pollers end a moment late.
	want := c.before + 1
	for end := time.Now().Add(3 * time.Second); runtime.NumGoroutine() > want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			a.Left = append(a.Left, fmt.Sprintf("%d goroutines:\n%s", runtime.NumGoroutine()-want, stacks))
			break
		}
	}
	return err
}

// mapped lists the mappings of files below a directory.
func mapped(dir string) []string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, dir+"/") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}
