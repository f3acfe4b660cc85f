package softnic

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/nic"
)

var asChild = flag.Bool("softnic.child", false, "be the other process of a test")

const childMemory = 256 << 10

// TestChild is the other process: a target that tells where it is, and does what it is
// told on its standard input.
func TestChild(t *testing.T) {
	if !*asChild {
		t.Skip("only as another test's process")
	}
	r := newRig(t, DeviceConfig{Name: "child", Rail: "r1"}, childMemory)
	fmt.Printf("at %d %d %d %d\n", r.d.lid, r.q.num, r.mr.RKey(), r.addr)
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		var from end
		switch {
		case strings.HasPrefix(line, "connect"):
			if _, err := fmt.Sscanf(line, "connect %d %d\n", &from.port, &from.qpn); err != nil {
				t.Fatal(err)
			}
			from.gid = r.d.gid
			r.connect(from)
			fmt.Println("connected")
		case line == "watch\n": // nothing may change from here on
			for i := range r.mem {
				r.mem[i] = 0xee
			}
			time.Sleep(50 * time.Millisecond)
			changed := 0
			for i := range r.mem {
				if r.mem[i] != 0xee {
					changed++
				}
			}
			fmt.Println("changed", changed)
		case line == "close\n":
			if err := r.q.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			fmt.Println("closed")
		}
	}
}

// child is the running other process.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	at   end
	rkey uint32
	addr uint64
}

func startChild(t *testing.T, r *rig) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(exe, "-test.run=^TestChild$", "-softnic.child")}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	})
	c.hear("at %d %d %d %d\n", &c.at.port, &c.at.qpn, &c.rkey, &c.addr)
	c.at.gid = r.d.gid
	fmt.Fprintf(c.in, "connect %d %d\n", r.d.lid, r.q.num)
	c.hear("connected\n")
	r.connect(c.at)
	return c
}

func (c *child) hear(format string, args ...any) {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscanf(line, format, args...)
	}
	if err != nil {
		c.t.Fatalf("the other process said %q: %v", line, err)
	}
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
	for s == syscall.SIGSTOP { // until all its threads have stopped
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		if err != nil {
			c.t.Fatal(err)
		}
		if fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])); fields[0] == "T" {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// checkQuiet checks that nothing lands in the other process any more.
func (c *child) checkQuiet() {
	c.t.Helper()
	changed := -1
	io.WriteString(c.in, "watch\n")
	c.hear("changed %d\n", &changed)
	if changed != 0 {
		c.t.Errorf("%d bytes changed after the report", changed)
	}
}

// flood posts writes until the queue is full and the other process has taken some.
func (c *child) flood(r *rig) (outstanding int) {
	c.t.Helper()
	w := r.wr(nic.OpWrite, 1, childMemory)
	w.RKey, w.RemoteAddr = c.rkey, c.addr
	for done := 0; done < 50; {
		n, err := r.q.Post([]nic.WR{w, w, w, w})
		if err != nil {
			c.t.Fatal(err)
		}
		outstanding += n
		var comps [64]nic.Completion
		k, _ := r.cq.Poll(comps[:])
		for _, x := range comps[:k] {
			if x.Status != nic.StatusSuccess {
				c.t.Fatalf("completion: %v", x.Status)
			}
		}
		done += k
		outstanding -= k
		if n == 0 && k == 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	for {
		n, err := r.q.Post([]nic.WR{w})
		if err != nil {
			c.t.Fatal(err)
		}
		if n == 0 {
			return outstanding
		}
		outstanding++
	}
}

// settle takes the successes that are already on their way, until there are none
// for a while, and returns how many they were.
func settle(t *testing.T, r *rig) int {
	t.Helper()
	total := 0
	for idle := 0; idle < 20; idle++ {
		var comps [64]nic.Completion
		k, _ := r.cq.Poll(comps[:])
		for _, x := range comps[:k] {
			if x.Status != nic.StatusSuccess {
				t.Fatalf("reported %v while the other process is stopped", x.Status)
			}
		}
		if total += k; k > 0 {
			idle = 0
		}
		time.Sleep(5 * time.Millisecond)
	}
	return total
}

func finish(t *testing.T, r *rig, left int, first nic.Status) {
	t.Helper()
	failed := false
	for _, c := range r.wait(left) {
		switch {
		case c.Status == nic.StatusSuccess && !failed:
		case c.Status == first && !failed:
			failed = true
		case c.Status != nic.StatusFlushed || !failed:
			t.Fatalf("status %v, after a failure: %v", c.Status, failed)
		}
	}
	if !failed {
		t.Errorf("no operation failed; want %v", first)
	}
}

func TestStoppedResponder(t *testing.T) {
	t.Run("ERR, then it goes on", func(t *testing.T) {
		r := newRig(t, DeviceConfig{Name: "a"}, childMemory)
		c := startChild(t, r)
		left := c.flood(r)
		c.signal(syscall.SIGSTOP)
		left -= settle(t, r)
		if err := r.q.Modify(nic.QPAttr{State: nic.Err}); err != nil {
			t.Fatal(err)
		}
		left -= settle(t, r)
		c.signal(syscall.SIGCONT)
		finish(t, r, left, nic.StatusFlushed)
		c.checkQuiet()
	})
	t.Run("ERR, then it dies", func(t *testing.T) {
		r := newRig(t, DeviceConfig{Name: "a"}, childMemory)
		c := startChild(t, r)
		left := c.flood(r)
		c.signal(syscall.SIGSTOP)
		r.q.fail(nic.StatusFlushed)
		left -= settle(t, r)
		c.signal(syscall.SIGKILL)
		finish(t, r, left, nic.StatusFlushed)
	})
	t.Run("left alone, then it goes on", func(t *testing.T) {
		r := newRig(t, DeviceConfig{Name: "a"}, childMemory)
		c := startChild(t, r)
		left := c.flood(r)
		c.signal(syscall.SIGSTOP)
		left -= settle(t, r)
		c.signal(syscall.SIGCONT)
		for range left {
			r.want(nic.StatusSuccess)
		}
	})
	t.Run("Close, then it goes on", func(t *testing.T) {
		r := newRig(t, DeviceConfig{Name: "a"}, childMemory)
		c := startChild(t, r)
		c.flood(r)
		c.signal(syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := r.q.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close while the other process is stopped: %v", err)
		}
		c.signal(syscall.SIGCONT)
		if err := r.q.Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.checkQuiet()
	})
}

func TestResponderDies(t *testing.T) {
	r := newRig(t, DeviceConfig{Name: "a"}, childMemory)
	c := startChild(t, r)
	left := c.flood(r)
	c.signal(syscall.SIGKILL)
	finish(t, r, left, nic.StatusRetryExceeded)
}

func TestResponderCloses(t *testing.T) {
	r := newRig(t, DeviceConfig{Name: "a"}, childMemory)
	c := startChild(t, r)
	left := c.flood(r)
	io.WriteString(c.in, "close\n")
	c.hear("closed\n")
	c.checkQuiet()
	finish(t, r, left, nic.StatusRetryExceeded)
}

// TestRequesterDies: what a dead process has left in the network stops at the
// latest when the queue pair that it wrote to is closed.
func TestRequesterDies(t *testing.T) {
	r := newRig(t, DeviceConfig{Name: "b"}, 1<<20)
	me := end{r.d.gid, 9, 99}
	r.connect(me)
	c, _ := say(t, r.d, hello{kind: kindData, src: me, dstQPN: r.q.num})
	c.Write(writeBatch(op{nic.OpWrite, r.mr.RKey(), r.addr, 1 << 20}, bytesOf(1<<20, 1)))
	c.Close()
	if err := r.q.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	clear(r.mem)
	time.Sleep(20 * time.Millisecond)
	for i := range r.mem {
		if r.mem[i] != 0 {
			t.Fatalf("byte %d changed after Close", i)
		}
	}
}

func bytesOf(n int, b byte) []byte { return []byte(strings.Repeat(string(rune(b)), n)) }
