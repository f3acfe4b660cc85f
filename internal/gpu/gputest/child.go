package gputest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/railhop/railhop/internal/gpu"
)

// childArg, as the only argument, makes a test binary a child.
const childArg = "gputest-child"

// Child returns at once, unless the suite has started this binary as its second
// process: then it serves the suite, with a provider of its own, and exits. Call
// it first in TestMain:
//
//	func TestMain(m *testing.M) {
//		gputest.Child(func() (gpu.Provider, error) { return softgpu.New(softgpu.Options{}) })
//		os.Exit(m.Run())
//	}
func Child(provider func() (gpu.Provider, error)) {
	if len(os.Args) != 2 || os.Args[1] != childArg {
		return
	}
	if err := serve(provider, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gputest child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// request asks the child for one operation of its device; reply is the answer.
// They go over the child's standard input and output, one JSON value each.
type request struct {
	Op     string
	BusID  string // of open
	Addr   uint64
	Src    uint64
	Size   uint64 // of a slot, for watch
	Seed   uint64 // the first number, for watch
	Count  uint64
	Handle []byte
}

type reply struct {
	Err    string
	Addr   uint64
	Handle []byte
	Range  gpu.Range
}

// serve answers until its input ends.
func serve(provider func() (gpu.Provider, error), in io.Reader, out io.Writer) error {
	c := &server{provider: provider}
	requests, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q request
		if err := requests.Decode(&q); errors.Is(err, io.EOF) {
			return c.close()
		} else if err != nil {
			return err
		}
		var a reply
		if err := c.do(q, &a); err != nil {
			a.Err = fmt.Sprintf("%s: %v", q.Op, err)
		}
		if err := replies.Encode(a); err != nil {
			return err
		}
	}
}

// server is the child's side.
type server struct {
	provider func() (gpu.Provider, error)
	p        gpu.Provider
	d        gpu.Device
	words    []byte
}

func (c *server) close() error {
	if c.d == nil {
		return nil
	}
	return c.d.Close()
}

func (c *server) do(q request, a *reply) (err error) {
	switch q.Op {
	case "open":
		if c.p, err = c.provider(); err != nil {
			return err
		}
		if c.d, err = c.p.Open(q.BusID); err != nil {
			return err
		}
		c.words, err = mapPage(os.NewFile(3, "words"))
	case "alloc":
		a.Addr, err = c.d.Alloc(q.Size)
	case "free":
		err = c.d.Free(q.Addr)
	case "export":
		h, failed := c.d.Export(q.Addr)
		a.Handle, err = h[:], failed
	case "import":
		a.Addr, err = c.d.Import(gpu.Handle(q.Handle), q.Size)
	case "close import":
		err = c.d.CloseImport(q.Addr)
	case "classify":
		a.Range = c.p.Classify(q.Addr, q.Size)
	case "fill":
		err = fill(c.d, q.Addr, q.Size, q.Seed)
	case "check":
		err = check(c.d, q.Addr, q.Size, q.Seed)
	case "copy":
		err = c.copy(gpu.Copy{Dst: q.Addr, Src: q.Src, Length: q.Size})
	case "watch":
		err = watch(c.d, c.words, q.Addr, q.Size, q.Seed, q.Count, func() {
			word(c.words, 1).Store(q.Seed) // the suite starts when it sees this
		})
	default:
		err = errors.New("no such operation")
	}
	return err
}

func (c *server) copy(one gpu.Copy) error {
	s, err := c.d.NewStream()
	if err != nil {
		return err
	}
	if err := s.Copy([]gpu.Copy{one}); err != nil {
		return err
	}
	if err := eventually("stream is idle", s.Idle); err != nil {
		return err
	}
	return s.Close()
}

// child is the suite's side of a second process.
type child struct {
	r       *rig
	cmd     *exec.Cmd
	in      io.WriteCloser
	replies *json.Decoder
	stderr  bytes.Buffer
	exited  sync.Once
	guard   *time.Timer // kills a child that does not answer
}

// child starts a second process that has opened the same device and mapped words,
// and ends it with the test.
func (r *rig) child(words *os.File) *child {
	r.Helper()
	exe, err := os.Executable()
	r.must(err)
	c := &child{r: r, cmd: exec.Command(exe, childArg)}
	c.cmd.ExtraFiles = []*os.File{words}
	c.cmd.Stderr = &c.stderr
	// A race-built program else sleeps for a second before it exits.
	c.cmd.Env = append(c.cmd.Environ(), "GORACE=atexit_sleep_ms=0")
	c.in, err = c.cmd.StdinPipe()
	r.must(err)
	out, err := c.cmd.StdoutPipe()
	r.must(err)
	c.replies = json.NewDecoder(out)
	r.must(c.cmd.Start())
	c.guard = time.AfterFunc(2*patience, func() { c.cmd.Process.Kill() })
	r.Cleanup(c.exit)
	c.ask(request{Op: "open", BusID: r.d.Info().BusID})
	return c
}

// exit ends the child and waits until it is gone. Again is no harm.
func (c *child) exit() {
	c.r.Helper()
	c.exited.Do(func() {
		c.in.Close()
		if err := c.cmd.Wait(); err != nil {
			c.r.Errorf("child: %v: %s", err, c.stderr.Bytes())
		}
		c.guard.Stop()
	})
}

// kill kills the child and waits until it is gone.
func (c *child) kill() {
	c.r.Helper()
	c.exited.Do(func() {
		c.r.must(c.cmd.Process.Kill())
		c.cmd.Wait() // it says "killed", as it should
		c.guard.Stop()
	})
}

// ask has the child do one operation, which must succeed.
func (c *child) ask(q request) reply {
	c.r.Helper()
	c.send(q)
	return c.answer()
}

func (c *child) send(q request) {
	c.r.Helper()
	c.r.must(json.NewEncoder(c.in).Encode(q))
}

func (c *child) answer() reply {
	c.r.Helper()
	var a reply
	if err := c.replies.Decode(&a); err != nil {
		c.r.Fatalf("child: %v", err)
	}
	if a.Err != "" {
		c.r.Fatalf("child: %s", a.Err)
	}
	return a
}
