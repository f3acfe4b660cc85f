package registry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/proc"
	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

func TestCheckGroup(t *testing.T) {
	for _, tc := range []struct {
		name string
		ok   bool
	}{
		{"a", true}, {"node-0.prefill_A", true}, {"...", true}, {strings.Repeat("x", 64), true},
		{"", false}, {".", false}, {"..", false}, {strings.Repeat("x", 65), false},
		{"a/b", false}, {"a b", false}, {"ä", false}, {"a\x00", false},
	} {
		if err := CheckGroup(tc.name); (err == nil) != tc.ok {
			t.Errorf("%q: %v, want ok %v", tc.name, err, tc.ok)
		}
	}
}

func TestOpenRefusesForeignDirectories(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{"open to others", func(p string) error {
			return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o755))
		}, "mode 0755"},
		{"symbolic link", func(p string) error { return os.Symlink("/tmp", p) }, "not a directory"},
		{"file", func(p string) error { return os.WriteFile(p, nil, 0o600) }, "not a directory"},
		{"another's", func(p string) error {
			return errors.Join(os.Mkdir(p, 0o700), os.Chown(p, os.Geteuid()+1, -1))
		}, "belongs to uid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := testRoot(t)
			if err := tc.make(filepath.Join(root, group)); err != nil {
				t.Skip(err)
			}
			r, err := Open(Options{Root: root, Group: group})
			if err == nil {
				r.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestOpenWithoutRoot(t *testing.T) {
	if _, err := Open(Options{Root: filepath.Join(t.TempDir(), "absent"), Group: group}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
	if _, err := Open(Options{Root: t.TempDir(), Group: "a/b"}); err == nil {
		t.Error("opened a group with a slash")
	}
}

func TestPublishAndScan(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	them := open(t, Options{Root: root, Processes: stranger{}})
	handle := [64]byte{1, 2, 3, 63: 9}
	e, err := them.Publish(EntryOptions{Rails: []string{"mlx5_0", "mlx5_1"}, SlotSize: 8 << 20, ArenaHandle: handle})
	if err != nil {
		t.Fatal(err)
	}
	mine := publish(t, r, "mlx5_2")

	p := onePeer(t, r)
	if p.Owner() != e.Identity() || p.Epoch() != e.Epoch() || p.Name() != e.Name() ||
		!slices.Equal(p.Rails(), e.Rails()) || p.SlotSize() != 8<<20 || p.ArenaSize() != 126*8<<20 || p.ArenaHandle() != handle {
		t.Errorf("peer %+v, published %+v", p.hdr, e)
	}
	if i, ok := p.HasRail("mlx5_1"); !ok || i != 1 {
		t.Errorf("mlx5_1 is %d, %v", i, ok)
	}
	if _, ok := p.HasRail("mlx5_2"); ok {
		t.Error("has a rail that it has not")
	}
	if p.Life() != Alive || p.Closed() || p.Off() || p.Stopping() || !p.HasPidfd() {
		t.Errorf("life %v, closed %v, off %v, stopping %v, pidfd %v", p.Life(), p.Closed(), p.Off(), p.Stopping(), p.HasPidfd())
	}
	// The memory is one.
	if err := e.Beat(77); err != nil {
		t.Fatal(err)
	}
	if got := p.Block().Header.Heartbeat.Load(); got != 77 {
		t.Errorf("heartbeat %d", got)
	}
	if again := onePeer(t, r); again != p {
		t.Error("a second scan made another peer")
	}
	if theirs := onePeer(t, them); theirs.Epoch() != mine.Epoch() {
		t.Errorf("they see %s", theirs.Name())
	}

	if err := e.Withdraw(); err != nil {
		t.Fatal(err)
	}
	if !p.Stopping() || p.Life() != Alive {
		t.Errorf("withdrawn: stopping %v, life %v", p.Stopping(), p.Life())
	}
	if _, err := p.Claim(mine.Identity(), mine.Epoch()); !errors.Is(err, ErrStopping) {
		t.Errorf("claim: %v, want %v", err, ErrStopping)
	}
	if peers, _, err := r.Scan(); err != nil || len(peers) != 0 {
		t.Errorf("after: %v, %v", peers, err)
	}
	if err := errors.Join(p.Close(), p.Close(), e.Close(), e.Close()); err != nil {
		t.Error(err)
	}
	if suspected, why := p.Suspected(0); !suspected || why != whyLetGo {
		t.Errorf("closed peer: suspected %v, %q", suspected, why)
	}
}

func TestScanReopensAClosedPeer(t *testing.T) {
	r, _, p := pair(t)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	again := onePeer(t, r)
	if again == p || again.Life() != Alive {
		t.Errorf("got the closed peer back, %v", again.Life())
	}
}

func TestPublishChecksItsOptions(t *testing.T) {
	r := open(t, Options{Root: testRoot(t)})
	for _, tc := range []struct {
		name string
		o    EntryOptions
		want string
	}{
		{"no rail", EntryOptions{SlotSize: 1 << 20}, "0 rails"},
		{"17 rails", EntryOptions{Rails: make([]string, 17), SlotSize: 1 << 20}, "17 rails"},
		{"empty name", EntryOptions{Rails: []string{""}, SlotSize: 1 << 20}, "empty"},
		{"NUL", EntryOptions{Rails: []string{"a\x00b"}, SlotSize: 1 << 20}, "NUL"},
		{"twice", EntryOptions{Rails: []string{"a", "b", "a"}, SlotSize: 1 << 20}, "twice"},
		{"do not fit", EntryOptions{Rails: []string{strings.Repeat("a", 128), strings.Repeat("b", 127)}, SlotSize: 1 << 20}, "257 bytes"},
		{"slot size 0", EntryOptions{Rails: []string{"a"}}, "slot size is 0"},
		{"slot size odd", EntryOptions{Rails: []string{"a"}, SlotSize: 3 << 20}, "slot size is 3145728"},
		{"slot size large", EntryOptions{Rails: []string{"a"}, SlotSize: 16 << 20}, "slot size is 16777216"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := r.Publish(tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	if _, err := r.Publish(EntryOptions{Rails: []string{strings.Repeat("a", 128), strings.Repeat("b", 126)}, SlotSize: 1 << 20}); err != nil {
		t.Errorf("256 bytes of rails: %v", err)
	}
}

func TestGroupHoldsEight(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	them := open(t, Options{Root: root, Processes: stranger{}})
	for i := range MaxRanks {
		publish(t, them, fmt.Sprint("rail", i))
	}
	if _, err := r.Publish(EntryOptions{Rails: []string{"late"}, SlotSize: 1 << 20}); !errors.Is(err, ErrGroupFull) {
		t.Errorf("the ninth: %v, want %v", err, ErrGroupFull)
	}
	if peers, _, err := r.Scan(); err != nil || len(peers) != MaxRanks {
		t.Errorf("%d peers, %v", len(peers), err)
	}
}

func TestOwnProcessIsNoPeer(t *testing.T) {
	root := testRoot(t)
	a, b := open(t, Options{Root: root}), open(t, Options{Root: root})
	publish(t, a, "a")
	publish(t, b, "b")
	for _, r := range []*Registry{a, b} {
		if peers, refused, err := r.Scan(); err != nil || len(peers)+len(refused) != 0 {
			t.Errorf("peers %v, refused %v, %v", peers, refused, err)
		}
	}
}

func TestBusyDirectory(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root, LockWait: time.Millisecond})
	other := open(t, Options{Root: root, Processes: stranger{}})
	e := publish(t, r, "a")
	lock, err := other.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Scan(); !errors.Is(err, ErrBusy) {
		t.Errorf("scan: %v, want %v", err, ErrBusy)
	}
	if _, err := r.Publish(EntryOptions{Rails: []string{"b"}, SlotSize: 1 << 20}); !errors.Is(err, ErrBusy) {
		t.Errorf("publish: %v, want %v", err, ErrBusy)
	}
	if err := e.Withdraw(); !errors.Is(err, ErrBusy) {
		t.Errorf("withdraw: %v, want %v", err, ErrBusy)
	}
	lock.Close()
	if err := e.Withdraw(); err != nil {
		t.Errorf("withdraw after: %v", err)
	}
	if got := r.Counters().Busy; got != 3 {
		t.Errorf("counted %d", got)
	}
}

// A lock file that was removed and made anew must not let two in.
func TestLockFileReplaced(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root, LockWait: time.Millisecond})
	path := filepath.Join(root, group, lockName)
	old, err := r.lock()
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	first, err := r.lock()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := r.lock(); !errors.Is(err, ErrBusy) {
		t.Errorf("second lock on the new file: %v, want %v", err, ErrBusy)
	}
}

func TestWake(t *testing.T) {
	_, e, p := pair(t)
	word := &e.Block().Header.Wake
	if p.Wake() {
		t.Error("woke one that is awake")
	}
	word.Store(1)
	if !p.Wake() || word.Load() != 0 {
		t.Errorf("did not wake the sleeper; word %d", word.Load())
	}
	word.Store(7)
	if p.Wake() || word.Load() != 7 {
		t.Error("took a word that means nothing")
	}
}

func TestSuspectedByHeartbeat(t *testing.T) {
	_, e, p := pair(t)
	p.look.timeout = 3 * time.Second
	for _, step := range []struct {
		now  time.Duration // on the reader's clock
		beat uint64        // 0: none
		want bool
	}{
		{100 * time.Second, 0, false}, // first look
		{102999 * time.Millisecond, 0, false},
		{103 * time.Second, 0, true},
		{104 * time.Second, 5, false}, // it moves again, whatever the value
		{106 * time.Second, 4, false}, // backwards is a change, too
		{108999 * time.Millisecond, 0, false},
		{109 * time.Second, 0, true},
	} {
		if step.beat != 0 {
			if err := e.Beat(time.Duration(step.beat)); err != nil {
				t.Fatal(err)
			}
		}
		if got, why := p.Suspected(step.now); got != step.want || got && why != whyStale {
			t.Errorf("at %v: %v, %q; want %v", step.now, got, why, step.want)
		}
	}
	if p.Life() != Alive || p.Closed() {
		t.Error("a heartbeat decided over life")
	}
}

// What the pump calls every turn costs no allocation.
func TestHotCallsAllocateNothing(t *testing.T) {
	_, e, p := pair(t)
	now := time.Duration(0)
	for name, f := range map[string]func(){
		"beat":      func() { now++; e.Beat(now) },
		"suspected": func() { p.Suspected(now) },
		"wake":      func() { e.Block().Header.Wake.Store(1); p.Wake() },
		"off":       func() { p.Off(); e.Off() },
		"sweep":     func() { e.SweepClaims() },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestDescriptors(t *testing.T) {
	r, _, p := pair(t)
	mine := publish(t, r, "mine")
	fds := r.Descriptors()
	for _, want := range []int{r.dir.Descriptor(), mine.Descriptor(), p.file.Descriptor(), p.pidfd} {
		if !slices.Contains(fds, want) {
			t.Errorf("%v lacks %d", fds, want)
		}
	}
	if len(fds) != 4 {
		t.Errorf("%v, want 4", fds)
	}
}

// Nothing is left open or mapped, whichever way it went.
func TestCloseLeavesNothing(t *testing.T) {
	root := testRoot(t)
	count := func() (n int) {
		t.Helper()
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		for _, fd := range fds {
			to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
			if strings.Contains(to, root) || strings.Contains(to, "pidfd") {
				n++
			}
		}
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skip(err)
		}
		return n + strings.Count(string(maps), root)
	}
	before := count()
	r, err := Open(Options{Root: root, Group: group})
	if err != nil {
		t.Fatal(err)
	}
	them, err := Open(Options{Root: root, Group: group, Processes: stranger{}})
	if err != nil {
		t.Fatal(err)
	}
	e := publish(t, them, "a")
	publish(t, r, "b")
	if _, err := r.Watch(func(*Peer, Event) {}); err != nil {
		t.Fatal(err)
	}
	name, header := living(t, 3)
	header[0] = 'x'
	writeEntry(t, r.Path(), name, header)
	onePeer(t, r)
	if _, err := r.LaneOwner(e.Identity(), e.Epoch()); err != nil {
		t.Fatal(err)
	}
	if _, err := View(Options{Root: root, Group: group}, 0); err != nil {
		t.Fatal(err)
	}
	if count() == before {
		t.Fatal("the count sees nothing")
	}
	if err := errors.Join(r.Close(), them.Close()); err != nil {
		t.Fatal(err)
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors and mappings, were %d", after, before)
	}
}

// The directory may be on a file system without room.
func TestPublishReservesBeforeItTouches(t *testing.T) {
	_, e, p := pair(t)
	st, err := e.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	before := st.Blocks * 512
	if before < int64(shmabi.Lanes*4096) || before > 1<<20 {
		t.Errorf("%d bytes reserved by the owner", before)
	}
	if _, err := p.Claim(shmabi.Identity{PID: 1}, 1); err != nil {
		t.Fatal(err)
	}
	if st, err = e.file.Stat(); err != nil || st.Blocks*512 < before+shmabi.LaneBytes-2*4096 {
		t.Errorf("%d bytes after a claim, were %d; %v", st.Blocks*512, before, err)
	}
	if !errors.Is(&shm.SpaceError{}, shm.ErrNoSpace) {
		t.Error("a SpaceError is no ErrNoSpace")
	}
}

// nameless is /proc where the pid namespace cannot be read.
type nameless struct{ proc.FS }

func (n nameless) Self() (proc.Self, error) {
	self, err := n.FS.Self()
	self.PIDNamespace = 0
	return self, err
}

// A process that has joined a group twice is no peer of itself.
func TestOwnEntries(t *testing.T) {
	for name, procs := range map[string]Processes{"namespace known": proc.FS{}, "namespace unknown": nameless{}} {
		t.Run(name, func(t *testing.T) {
			root := testRoot(t)
			publish(t, open(t, Options{Root: root, Processes: procs}), "a")
			peers, _, err := open(t, Options{Root: root, Processes: procs}).Scan()
			if err != nil || len(peers) != 0 {
				t.Errorf("%d peers, %v, want none", len(peers), err)
			}
		})
	}
}
