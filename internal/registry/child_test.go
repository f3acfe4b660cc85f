package registry

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/proc"
	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

const group = "g"

// The test binary runs itself as the other ranks.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "child" {
		roles := map[string]func(root string, args []string) error{
			"rank": childRank, "forking": childForking, "wait": childWait,
			"claimer": childClaimer, "half": childHalfClaim, "full": childFull,
		}
		if err := roles[os.Args[2]](os.Args[3], os.Args[4:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// kid is a child process that is spoken to in lines.
type kid struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(t *testing.T, attr *syscall.SysProcAttr, role, root string, args ...string) *kid {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{"child", role, root}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		if attr != nil && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC)) {
			t.Skipf("no namespaces here: %v", err)
		}
		t.Fatal(err)
	}
	k := &kid{t, cmd, in, bufio.NewScanner(out)}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	return k
}

func (k *kid) read() string {
	k.t.Helper()
	if !k.out.Scan() {
		k.t.Fatalf("child ended: %v", k.out.Err())
	}
	line := k.out.Text()
	if strings.HasPrefix(line, "error:") {
		k.t.Fatal(line)
	}
	return line
}

func (k *kid) say(line string) {
	k.t.Helper()
	if _, err := fmt.Fprintln(k.in, line); err != nil {
		k.t.Fatal(err)
	}
}

// kill kills the child and waits until its process has ended, so that it is a
// zombie.
func (k *kid) kill() {
	k.t.Helper()
	fd, err := unix.PidfdOpen(k.cmd.Process.Pid, 0)
	if err != nil {
		k.t.Skip(err)
	}
	defer unix.Close(fd)
	k.cmd.Process.Kill()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != unix.EINTR {
			return
		}
	}
}

// reap takes the zombie away.
func (k *kid) reap() { k.cmd.Wait() }

// childRank publishes an entry on rail "kid" and lives until its input ends, or
// the line "leave" makes it withdraw.
func childRank(root string, args []string) error {
	r, e, err := publishChild(root, args...)
	if err != nil {
		return err
	}
	fmt.Println(e.Name())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if err := e.Withdraw(); err != nil {
			return err
		}
		fmt.Println("left")
	}
	return r.Close()
}

func publishChild(root string, rails ...string) (*Registry, *Entry, error) {
	r, err := Open(Options{Root: root, Group: group, LockWait: 10 * time.Second})
	if err != nil {
		return nil, nil, err
	}
	if len(rails) == 0 {
		rails = []string{"kid"}
	}
	e, err := r.Publish(EntryOptions{Rails: rails, SlotSize: 1 << 20})
	return r, e, err
}

// childForking publishes, and has a child that inherits the entry's descriptor
// as a plain fork would. It prints the name and the child's pid.
func childForking(root string, _ []string) error {
	_, e, err := publishChild(root)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", "child", "wait", root)
	cmd.Stdin = os.Stdin
	cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(e.Descriptor()), "entry")}
	if err := cmd.Start(); err != nil {
		return err
	}
	fmt.Println(e.Name(), cmd.Process.Pid)
	return unix.Pause()
}

func childWait(string, []string) error {
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// childClaimer claims lanes of the first peer, for a new sender each, as often
// as there are some, whenever a line comes. It prints "lane epoch" for each and
// then "full".
func childClaimer(root string, _ []string) error {
	r, err := Open(Options{Root: root, Group: group, LockWait: 10 * time.Second})
	if err != nil {
		return err
	}
	peers, _, err := r.Scan()
	if err != nil || len(peers) != 1 {
		return fmt.Errorf("scan: %d peers, %w", len(peers), err)
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		for {
			epoch, err := newEpoch()
			if err != nil {
				return err
			}
			lane, err := peers[0].Claim(shmabi.Identity{PID: r.self.PID}, epoch)
			if errors.Is(err, ErrNoLane) {
				fmt.Println("full")
				break
			}
			if err != nil {
				return err
			}
			fmt.Println(lane, epoch)
		}
	}
	return nil
}

// childHalfClaim stops in the middle of claiming lane 2.
func childHalfClaim(root string, _ []string) error {
	r, err := Open(Options{Root: root, Group: group})
	if err != nil {
		return err
	}
	peers, _, err := r.Scan()
	if err != nil || len(peers) != 1 {
		return fmt.Errorf("scan: %d peers, %w", len(peers), err)
	}
	if err := peers[0].file.Flock(0); err != nil {
		return err
	}
	peers[0].Block().Lanes[2].Header.State.Store(shmabi.LaneClaiming)
	fmt.Println("claiming")
	return unix.Pause()
}

// childFull publishes on a file system with 4 KiB free, claims on one with none,
// and opens a group on one that is read-only, in mounts of its own. It prints
// the errors.
func childFull(root string, _ []string) error {
	if unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") != nil ||
		unix.Mount("tmpfs", root, "tmpfs", 0, "size=64m") != nil {
		fmt.Println("skip")
		return nil
	}
	r, err := Open(Options{Root: root, Group: group})
	if err != nil {
		return err
	}
	them, err := Open(Options{Root: root, Group: group, Processes: stranger{}})
	if err != nil {
		return err
	}
	e, err := them.Publish(EntryOptions{Rails: []string{"a"}, SlotSize: 1 << 20})
	if err != nil {
		return err
	}
	fill, err := os.Create(root + "/fill")
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	full := func(spare int64) error {
		size, err := fill.Seek(0, io.SeekEnd)
		if err == nil {
			err = unix.Statfs(root, &st)
		}
		if free := int64(st.Bavail)*st.Bsize - spare; err == nil && free > 0 {
			err = unix.Fallocate(int(fill.Fd()), 0, size, free)
		}
		return err
	}
	if err := full(4096); err != nil {
		return err
	}
	if e, err := r.Publish(EntryOptions{Rails: []string{"b"}, SlotSize: 1 << 20}); !errors.Is(err, shm.ErrNoSpace) {
		return fmt.Errorf("publish: %v, %w", e, err)
	} else {
		fmt.Println(err)
	}
	if err := full(0); err != nil {
		return err
	}
	peers, _, err := r.Scan()
	if err != nil || len(peers) != 1 {
		return fmt.Errorf("scan: %v, %w", peers, err)
	}
	if lane, err := peers[0].Claim(shmabi.Identity{PID: 1}, 1); !errors.Is(err, shm.ErrNoSpace) {
		return fmt.Errorf("claim: %d, %w", lane, err)
	} else {
		fmt.Println(err)
	}
	if s := e.Block().Lanes[0].Header.State.Load(); s != shmabi.LaneFree {
		return fmt.Errorf("the lane is in state %d", s)
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		return err
	}
	_, err = Open(Options{Root: root, Group: group})
	fmt.Println(err)
	return nil
}

// stranger makes this process look like another one that lives, its parent, so
// that two ranks fit into one test. A namespace other than 0 is shown instead
// of the real one.
type stranger struct {
	proc.FS
	namespace uint64
	boot      uint64 // likewise
}

func (s stranger) Self() (proc.Self, error) {
	self, err := s.FS.Self()
	if err != nil {
		return self, err
	}
	st, err := s.FS.Stat(os.Getppid())
	self.PID, self.StartTicks = int32(os.Getppid()), st.StartTicks
	if s.namespace != 0 {
		self.PIDNamespace = s.namespace
	}
	if s.boot != 0 {
		self.BootIDHash = s.boot
	}
	return self, err
}

func testRoot(t *testing.T) string {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "railhop-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	return path
}

func open(t *testing.T, o Options) *Registry {
	t.Helper()
	if o.Group == "" {
		o.Group = group
	}
	if o.LockWait == 0 {
		o.LockWait = 10 * time.Second // a loaded machine is no failure
	}
	r, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

func publish(t *testing.T, r *Registry, rails ...string) *Entry {
	t.Helper()
	e, err := r.Publish(EntryOptions{Rails: rails, SlotSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// pair is this rank and a stranger's entry, as a peer.
func pair(t *testing.T) (r *Registry, e *Entry, p *Peer) {
	t.Helper()
	root := testRoot(t)
	r = open(t, Options{Root: root})
	e = publish(t, open(t, Options{Root: root, Processes: stranger{}}), "mlx5_0", "mlx5_1")
	return r, e, onePeer(t, r)
}

func onePeer(t *testing.T, r *Registry) *Peer {
	t.Helper()
	peers, refused, err := r.Scan()
	if err != nil || len(peers) != 1 {
		t.Fatalf("scan: %d peers, refused %v, %v; want one", len(peers), refused, err)
	}
	return peers[0]
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
