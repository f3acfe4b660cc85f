package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The test binary runs itself for what only another process can show.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "child" {
		children := map[string]func([]string) error{
			"robust": childRobust, "wait": childWait, "full": childFull,
		}
		if err := children[os.Args[2]](os.Args[3:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child starts a role and waits for its first line. The role ends when its
// standard input does.
func child(t *testing.T, files []*os.File, role string, args ...string) (cmd *exec.Cmd, line string) {
	t.Helper()
	cmd = exec.Command("/proc/self/exe", append([]string{"child", role}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = files
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
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	b := make([]byte, 256)
	n, err := out.Read(b)
	if err != nil {
		t.Fatalf("child %s: %v", role, err)
	}
	return cmd, strings.TrimSpace(string(b[:n]))
}

func childWait([]string) error {
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	return nil
}

func openDir(t *testing.T) *Dir {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "railhop-test-")
	if err != nil {
		path = t.TempDir()
	} else {
		t.Cleanup(func() { os.RemoveAll(path) })
	}
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func create(t *testing.T, d *Dir, name string, size int64) (*File, *Mapping) {
	t.Helper()
	f, err := d.Create(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if name != "" {
		if err := d.Link(f, name); err != nil {
			t.Fatal(err)
		}
	}
	m, err := f.Map(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Unmap() })
	return f, m
}

func TestFileAppearsWhole(t *testing.T) {
	d := openDir(t)
	f, m := create(t, d, "", 8192)
	m.Bytes()[5000] = 42
	if names, err := d.Names(); err != nil || len(names) != 0 {
		t.Fatalf("before the link: %v, %v", names, err)
	}
	if err := d.Link(f, "a"); err != nil {
		t.Fatal(err)
	}
	st, err := d.Lstat("a")
	if err != nil || st.Size != 8192 || st.Mode != unix.S_IFREG|0o600 || st.Nlink != 1 {
		t.Errorf("linked: %+v, %v", st, err)
	}
	if f.Path() != filepath.Join(d.Path(), "a") {
		t.Errorf("path %s", f.Path())
	}
	other, _ := create(t, d, "", 4096)
	if err := d.Link(other, "a"); !errors.Is(err, os.ErrExist) {
		t.Errorf("link over a file: %v, want %v", err, os.ErrExist)
	}

	again, err := d.Open("a", false)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	ro, err := again.Map(false)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Unmap()
	if len(ro.Bytes()) != 8192 || ro.Bytes()[5000] != 42 {
		t.Error("another mapping has other bytes")
	}
	m.Bytes()[5000] = 43
	if ro.Bytes()[5000] != 43 {
		t.Error("the mapping is not shared")
	}
	if err := d.Unlink("a"); err != nil {
		t.Fatal(err)
	}
	if ro.Bytes()[5000] != 43 {
		t.Error("unlinking took the memory")
	}
	if err := ro.Unmap(); err != nil {
		t.Error(err)
	}
	if err := ro.Unmap(); err != nil {
		t.Errorf("second unmap: %v", err)
	}
}

func TestOpenRefusesLinksAndNeverBlocks(t *testing.T) {
	d := openDir(t)
	if err := os.Symlink("/etc/hostname", filepath.Join(d.Path(), "link")); err != nil {
		t.Fatal(err)
	}
	if f, err := d.Open("link", false); !errors.Is(err, unix.ELOOP) {
		t.Errorf("open a symbolic link: %v, %v", f, err)
	}
	if err := unix.Mkfifo(filepath.Join(d.Path(), "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := d.Open("pipe", false)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Symlink(d.Path(), filepath.Join(d.Path(), "dir")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dir", "pipe"} {
		if _, err := OpenDir(filepath.Join(d.Path(), name)); !errors.Is(err, ErrNotDir) {
			t.Errorf("open directory %s: %v, want %v", name, err, ErrNotDir)
		}
	}
	if _, err := OpenDir(filepath.Join(d.Path(), "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open an absent directory: %v", err)
	}
}

func TestMappingIsKeptFromForkedChildren(t *testing.T) {
	d := openDir(t)
	create(t, d, "marked", 4096)
	f, err := d.Open("marked", true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := f.Map(true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	_, rest, ok := strings.Cut(string(smaps), f.Path())
	_, rest, ok2 := strings.Cut(rest, "VmFlags:")
	if !ok || !ok2 {
		t.Skip("smaps does not show the mapping")
	}
	flags, _, _ := strings.Cut(rest, "\n")
	if !strings.Contains(flags+" ", " dc ") {
		t.Errorf("flags %q lack dc (do not copy on fork)", flags)
	}
}

func TestLocksDoNotMeet(t *testing.T) {
	d := openDir(t)
	owner, m := create(t, d, "a", 4096)
	if err := owner.LockLiveness(); err != nil {
		t.Fatal(err)
	}
	open := func() *File {
		f, err := d.Open("a", true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	peer, third := open(), open()
	if err := peer.Flock(0); err != nil {
		t.Errorf("flock beside the liveness lock: %v", err)
	}
	if err := third.Flock(0); !errors.Is(err, ErrBusy) {
		t.Errorf("second flock: %v, want %v", err, ErrBusy)
	}
	if err := third.LockLiveness(); !errors.Is(err, ErrBusy) {
		t.Errorf("second liveness lock: %v, want %v", err, ErrBusy)
	}
	held := func(want bool) {
		t.Helper()
		if got, err := peer.LivenessHeld(); err != nil || got != want {
			t.Errorf("liveness held: %v, %v; want %v", got, err, want)
		}
	}
	held(true)
	if err := peer.Funlock(); err != nil {
		t.Fatal(err)
	}
	if err := third.Flock(0); err != nil {
		t.Errorf("flock after unlock: %v", err)
	}
	held(true)
	// Neither a closed descriptor nor anything but the last reference ends it.
	owner.Close()
	held(true)
	m.Unmap()
	held(false)
}

func TestLivenessLockOutlivesItsProcessInAChild(t *testing.T) {
	d := openDir(t)
	owner, m := create(t, d, "a", 4096)
	if err := owner.LockLiveness(); err != nil {
		t.Fatal(err)
	}
	peer, err := d.Open("a", false)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	cmd, _ := child(t, []*os.File{owner.f}, "wait")
	m.Unmap()
	owner.Close()
	if held, err := peer.LivenessHeld(); err != nil || !held {
		t.Errorf("while the child has the descriptor: %v, %v", held, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if held, err := peer.LivenessHeld(); err != nil || held {
		t.Errorf("after the child: %v, %v", held, err)
	}
}

func TestReopenHasItsOwnLock(t *testing.T) {
	d := openDir(t)
	f, _ := create(t, d, "", 4096)
	if err := f.Flock(0); err != nil {
		t.Fatal(err)
	}
	again, err := f.Reopen()
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Flock(0); !errors.Is(err, ErrBusy) {
		t.Errorf("flock of the other description: %v, want %v", err, ErrBusy)
	}
}

func TestMapEmpty(t *testing.T) {
	d := openDir(t)
	f, err := d.Create(0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if m, err := f.Map(true); err == nil {
		t.Errorf("mapped %d bytes of nothing", len(m.Bytes()))
	}
}

// childFull fills a small tmpfs of its own: in a mount namespace, so that nobody
// else sees it.
func childFull(args []string) error {
	path := args[0]
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=64m"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	d, err := OpenDir(path)
	if err != nil {
		return err
	}
	// The name takes a page of its own on some kernels: fill up afterwards.
	filler, err := d.Create(64 << 20)
	if err != nil {
		return err
	}
	f, err := d.Create(8 << 20)
	if err != nil {
		return err
	}
	free := func() uint64 {
		var st unix.Statfs_t
		unix.Fstatfs(f.fd(), &st)
		return st.Bavail * uint64(st.Bsize)
	}
	for off := int64(0); free() > 4096; {
		n := int64(free()) - 4096
		if err := filler.Reserve(Range{off, n}); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
		off += n
	}
	if err := f.Reserve(Pages(1, 9)); err != nil {
		return fmt.Errorf("the last page: %w", err)
	}
	err = f.Reserve(Range{4096, 4096}, Range{8192, 8<<20 - 8192})
	space, ok := errors.AsType[*SpaceError](err)
	if !ok || !errors.Is(err, ErrNoSpace) || !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("reserve on a full file system: %v", err)
	}
	if space.Need != 8<<20-4096 || space.Free != 0 || space.Path != path {
		return fmt.Errorf("error is %+v", space)
	}
	m, err := f.Map(true)
	if err != nil {
		return err
	}
	m.Bytes()[0] = 1 // reserved
	// A page that was not reserved is a fault, and the fault an error.
	if err := Guard(func() error { m.Bytes()[4096] = 1; return nil }); !errors.Is(err, ErrTruncated) {
		return fmt.Errorf("touch without space: %v", err)
	}
	fmt.Println(err, space)
	return nil
}

func TestReserveOnAFullFileSystem(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "child", "full", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWNS | unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || strings.Contains(string(out), "mount") {
		t.Skipf("no namespaces here: %v %s", err, out)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !strings.Contains(string(out), "need 8384512 bytes, 0 are free") {
		t.Errorf("message: %s", out)
	}
}
