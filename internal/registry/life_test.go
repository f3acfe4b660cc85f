package registry

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/proc"
	"github.com/railhop/railhop/internal/shmabi"
)

func TestKilledRank(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	k := start(t, nil, "rank", root)
	name := k.read()
	p := onePeer(t, r)
	if p.Name() != name || p.Life() != Alive || p.Closed() {
		t.Fatalf("%s is %v, closed %v", p.Name(), p.Life(), p.Closed())
	}
	k.kill()
	// Not reaped yet: a zombie is dead.
	if life := p.Block().Header.Life.Load(); life&shmabi.LifeOwnerDied == 0 {
		t.Errorf("life word %#x without OWNER_DIED", life)
	}
	if suspected, why := p.Suspected(0); !suspected || why != whyDied {
		t.Errorf("suspected %v, %q", suspected, why)
	}
	if p.Life() != Dead || !p.Closed() {
		t.Errorf("life %v, closed %v", p.Life(), p.Closed())
	}
	if _, err := p.Claim(shmabi.Identity{PID: 1}, 1); !errors.Is(err, ErrGone) {
		t.Errorf("claim: %v, want %v", err, ErrGone)
	}
	k.reap()
	if peers, refused, err := r.Scan(); err != nil || len(peers)+len(refused) != 0 {
		t.Errorf("scan: %v, %v, %v", peers, refused, err)
	}
	if _, err := os.Stat(filepath.Join(r.Path(), name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its entry: %v", err)
	}
	if c := r.Counters(); c.Reclaimed != 1 {
		t.Errorf("counters %+v", c)
	}
	if !p.Closed() || p.Close() != nil || p.Life() != Dead || !p.Closed() {
		t.Error("a closed peer forgot")
	}
}

// Each fact decides by itself, without the stronger ones.
func TestFactsOfADeadRank(t *testing.T) {
	for _, tc := range []struct {
		name   string
		procs  Processes
		reap   bool
		life   Liveness
		closed bool
	}{
		{"pidfd", procsWith{}, false, Dead, true},
		{"zombie in /proc", procsWith{noPidfd: true}, false, Dead, true},
		{"gone from /proc", procsWith{noPidfd: true}, true, Dead, true},
		{"pid used again", procsWith{noPidfd: true, edit: func(s *proc.Stat) { s.StartTicks++ }}, true, Dead, true},
		{"unreadable /proc", procsWith{noPidfd: true, err: errors.New("hidden")}, true, Unknown, false},
		{"line cut off", procsWith{noPidfd: true, err: proc.ErrShort}, true, Unknown, false},
		{"leader gone, threads there", procsWith{noPidfd: true, edit: func(s *proc.Stat) { s.State, s.Threads = 'Z', 3 }}, false, Unknown, false},
		{"lock, across namespaces", procsWith{namespace: 7}, true, Dead, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := testRoot(t)
			r := open(t, Options{Root: root, Processes: tc.procs})
			k := start(t, nil, "rank", root)
			name := k.read()
			peers, _, err := r.Scan()
			want := Alive
			if tc.life == Unknown || tc.name == "pid used again" {
				want = tc.life // what /proc will say, it says now
			}
			if want != Dead {
				if err != nil || len(peers) != 1 || peers[0].Life() != want {
					t.Fatalf("%v, %v; want one that is %v", peers, err, want)
				}
			} else if len(peers) != 0 || r.Counters().Reclaimed != 1 {
				t.Fatalf("%v, %+v; want none and one reclaimed", peers, r.Counters())
			} else {
				return
			}
			k.kill()
			if tc.reap {
				k.reap()
			}
			p := peers[0]
			// As if the thread's death had left no trace.
			p.Block().Header.Life.Store(0)
			if got := p.Life(); got != tc.life {
				t.Errorf("life %v, want %v", got, tc.life)
			}
			if got := p.Closed(); got != tc.closed {
				t.Errorf("closed %v, want %v", got, tc.closed)
			}
			if _, _, err := r.Scan(); err != nil {
				t.Fatal(err)
			}
			_, err = os.Stat(filepath.Join(r.Path(), name))
			if gone := errors.Is(err, os.ErrNotExist); gone != (tc.life == Dead) {
				t.Errorf("entry gone: %v, life %v", gone, tc.life)
			}
			if _, err := p.Claim(shmabi.Identity{PID: 1}, 1); !errors.Is(err, ErrGone) {
				t.Errorf("claim of one that is %v: %v", tc.life, err)
			}
		})
	}
}

// procsWith is /proc with something else in it.
type procsWith struct {
	proc.FS
	noPidfd   bool
	edit      func(*proc.Stat)
	err       error
	namespace uint64
}

func (p procsWith) Self() (proc.Self, error) {
	self, err := p.FS.Self()
	if p.namespace != 0 {
		self.PIDNamespace = p.namespace
	}
	return self, err
}

func (p procsWith) Pidfd(pid int) (int, error) {
	if p.noPidfd {
		return -1, unix.ENOSYS
	}
	return p.FS.Pidfd(pid)
}

func (p procsWith) Stat(pid int) (proc.Stat, error) {
	if p.err != nil {
		return proc.Stat{}, p.err
	}
	st, err := p.FS.Stat(pid)
	if p.edit != nil {
		p.edit(&st)
	}
	return st, err
}

func TestPidOfAnotherProcess(t *testing.T) {
	r := open(t, Options{Root: testRoot(t)})
	self, err := stranger{}.Self()
	if err != nil {
		t.Fatal(err)
	}
	self.StartTicks--
	name, header := madeHeader(self, 1)
	writeEntry(t, r.Path(), name, header)
	p, bad := r.find(name)
	if bad != nil {
		t.Fatal(bad)
	}
	defer p.drop()
	if p.pidfd >= 0 || p.Life() != Dead || !p.Closed() {
		t.Errorf("pidfd %d, life %v, closed %v", p.pidfd, p.Life(), p.Closed())
	}
}

// A child that was forked keeps the dead rank's descriptors: dead, not closed.
func TestForkedChildKeepsTheDeadOpen(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	k := start(t, nil, "forking", root)
	name, pid, _ := strings.Cut(k.read(), " ")
	p := onePeer(t, r)
	grandchild := atoi(t, pid)
	pidfd, err := unix.PidfdOpen(grandchild, 0)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Close(pidfd)
	defer unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	k.kill()
	if p.Life() != Dead || p.Closed() {
		t.Errorf("life %v, closed %v; want dead, not closed", p.Life(), p.Closed())
	}
	if _, _, err := r.Scan(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(r.Path(), name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its entry: %v", err)
	}
	if p.Closed() {
		t.Error("closed by being reclaimed")
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != unix.EINTR {
			break
		}
	}
	if !p.Closed() {
		t.Error("not closed when the child, too, is dead")
	}
}

func TestStoppedRankIsNeitherDeadNorClosed(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	k := start(t, nil, "rank", root)
	k.read()
	p := onePeer(t, r)
	if err := k.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(k.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("not stopped: %v, %v", status, err)
	}
	p.Suspected(0)
	suspected, why := p.Suspected(p.look.timeout)
	if !suspected || why != whyStale || p.Life() != Alive || p.Closed() {
		t.Errorf("suspected %v, %q, life %v, closed %v", suspected, why, p.Life(), p.Closed())
	}
	onePeer(t, r) // and it stays listed
	if err := k.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// A rank in another pid namespace has a pid that means nothing here.
func TestRankInAnotherNamespace(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	k := start(t, &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWPID | unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
	}, "rank", root)
	name := k.read()
	p := onePeer(t, r)
	if p.Owner().PID != 1 || p.sameNS || p.HasPidfd() {
		t.Fatalf("pid %d, same namespace %v, pidfd %v", p.Owner().PID, p.sameNS, p.HasPidfd())
	}
	if p.Life() != Alive {
		t.Fatalf("life %v while it holds its lock", p.Life())
	}
	if _, err := p.Claim(shmabi.Identity{PID: 1}, 1); err != nil {
		t.Errorf("claim: %v", err)
	}
	k.kill()
	k.reap()
	if suspected, why := p.Suspected(0); !suspected || why != whyDied {
		t.Errorf("suspected %v, %q: the life word works across namespaces", suspected, why)
	}
	if p.Life() != Dead || p.Closed() {
		t.Errorf("life %v, closed %v: nothing proves the end of a process elsewhere", p.Life(), p.Closed())
	}
	if _, _, err := r.Scan(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(r.Path(), name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its entry: %v", err)
	}
}

func TestLaneOwner(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	publish(t, r, "mine")
	k := start(t, nil, "rank", root)
	id, epoch, _ := parseName(k.read())
	o, err := r.LaneOwner(id, epoch)
	if err != nil || !o.Known() || o.Life() != Alive || o.Closed() {
		t.Fatalf("%+v, %v", o, err)
	}
	if suspected, why := o.Suspected(0); suspected {
		t.Errorf("suspected: %s", why)
	}
	// It withdraws, and those who scan let go of it; its lane's owner must not.
	onePeer(t, r)
	k.say("leave")
	k.read()
	if err := o.peer.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Scan(); err != nil {
		t.Fatal(err)
	}
	if o.Life() != Alive {
		t.Errorf("withdrawn: life %v", o.Life())
	}
	again, err := r.LaneOwner(id, epoch)
	if err != nil || again.peer != o.peer {
		t.Errorf("another look: %+v, %v", again, err)
	}
	if err := errors.Join(again.Close(), again.Close()); err != nil {
		t.Fatal(err)
	}
	k.kill()
	if o.Life() != Dead || !o.Closed() {
		t.Errorf("killed: life %v, closed %v", o.Life(), o.Closed())
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if !o.peer.unmapped {
		t.Error("the entry is still mapped after its last user")
	}

	late, err := r.LaneOwner(id, epoch)
	if err != nil || late.Known() || late.Life() != Unknown || late.Closed() || late.Wake() {
		t.Errorf("after it was reclaimed: %+v, %v", late, err)
	}
	if suspected, why := late.Suspected(0); !suspected || why != whyUnlisted {
		t.Errorf("suspected %v, %q", suspected, why)
	}
	self := r.Self()
	unlisted, err := r.LaneOwner(shmabi.Identity{UID: r.uid, PID: self.PID, StartTicks: self.StartTicks}, 1)
	if err != nil || unlisted.Life() != Alive {
		t.Errorf("a process that lives, without an entry: %v, %v", unlisted.Life(), err)
	}
}
