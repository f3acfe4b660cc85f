package registry

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/shmabi"
)

func TestView(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root, Processes: stranger{}})
	e := publish(t, r, "mlx5_0", "mlx5_1")
	k := start(t, nil, "rank", root)
	dead := k.read()
	k.kill()
	if err := os.WriteFile(filepath.Join(r.Path(), "0.1.2.3"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.WriteStats(Stats{Server: "here", Counters: map[string]uint64{"relayed": 4}}); err != nil {
		t.Fatal(err)
	}
	lane := &e.Block().Lanes[2]
	p, bad := openPeer(r.dir, r.looker(), r.uid, e.Name(), true)
	if bad != nil {
		t.Fatal(bad)
	}
	p.r = r
	defer p.drop()
	for i := range uint64(3) {
		if _, err := p.Claim(shmabi.Identity{PID: 9}, 100+i); err != nil {
			t.Fatal(err)
		}
	}
	// Sequences 20 to 26 are underway: one in each state.
	lane.Header.Completed.Store(19)
	lane.Header.Doorbell.Store(25)
	lane.Header.Head.Store(26)
	commit := func(seq, word uint64) { lane.Descriptors[(seq-1)%shmabi.Slots].Commit.Store(word) }
	commit(20, 20|shmabi.Claimed)
	lane.Completions[(20-1)%shmabi.Slots].Commit.Store(20)
	commit(21, 21|shmabi.Claimed)
	commit(22, 0)
	commit(23, 5)
	commit(24, 24)
	commit(25, 25)
	commit(26, 26)

	var now time.Duration
	v, err := OpenView(Options{Root: root, Group: group, Now: func() time.Duration { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	block := append([]byte(nil), e.Bytes()...)
	look := func() (Rank, *Snapshot) {
		t.Helper()
		s, err := v.Look()
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Ranks) != 2 || len(s.Refused) != 1 || s.Refused[0].Cause != Empty {
			t.Fatalf("%+v", s)
		}
		for _, rank := range s.Ranks {
			if rank.Name == e.Name() {
				return rank, s
			}
			if rank.Name != dead || rank.Life != Dead || rank.Suspected != whyDied {
				t.Errorf("the dead one: %+v", rank)
			}
		}
		t.Fatal("the living one is missing")
		return Rank{}, nil
	}
	rank, s := look()
	if s.Off || rank.Life != Alive || rank.Suspected != "" || rank.Beating || rank.HeartbeatAge != 0 || !rank.SameNamespace ||
		rank.State != shmabi.StateReady || rank.Off || rank.Sleeping || rank.Owner != e.Identity() || rank.Epoch != e.Epoch() || rank.SlotSize != 1<<20 {
		t.Errorf("%+v", rank)
	}
	if rank.Stats == nil || rank.Stats.Counters["relayed"] != 4 || rank.StatsError != "" {
		t.Errorf("stats %+v, %s", rank.Stats, rank.StatsError)
	}
	want := SlotCounts{Free: 11, Copying: 1, Waiting: 2, Claimed: 1, Done: 1, Revoked: 1, Broken: 1}
	l := rank.Lanes[2]
	if l.Slots != want || l.Sender.PID != 9 || l.Head != 26 || l.Doorbell != 25 || l.Completed != 19 || l.State != shmabi.LaneReady {
		t.Errorf("lane %+v, want slots %+v", l, want)
	}
	if rank.Lanes[6].State != shmabi.LaneFree || rank.Lanes[6].Slots != (SlotCounts{}) {
		t.Errorf("free lane %+v", rank.Lanes[6])
	}
	if string(block) != string(e.Bytes()) {
		t.Error("the view wrote")
	}

	now = 2 * time.Second
	if rank, _ = look(); rank.HeartbeatAge != 2*time.Second || rank.Suspected != "" {
		t.Errorf("age %v, suspected %q", rank.HeartbeatAge, rank.Suspected)
	}
	now = 3 * time.Second
	if rank, _ = look(); rank.Suspected != whyStale {
		t.Errorf("suspected %q", rank.Suspected)
	}
	if err := e.Beat(12345); err != nil {
		t.Fatal(err)
	}
	e.Block().Header.Wake.Store(1)
	lane.Header.Head.Store(19 + 19)
	if _, _, err := r.SetOff(true); err != nil {
		t.Fatal(err)
	}
	rank, s = look()
	if !rank.Beating || rank.HeartbeatAge != 0 || rank.Suspected != "" || !rank.Sleeping || !rank.Off || !s.Off {
		t.Errorf("%+v", rank)
	}
	if rank.Lanes[2].Slots.Broken != shmabi.Slots {
		t.Errorf("19 pieces in 18 slots: %+v", rank.Lanes[2].Slots)
	}
	// It took no lock and left nothing, not even of the dead.
	if _, err := os.Stat(filepath.Join(r.Path(), dead)); err != nil {
		t.Errorf("the dead entry: %v", err)
	}
}

func TestViewTakesNoLock(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	publish(t, r, "a")
	lock, err := r.lock()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	s, err := View(Options{Root: root, Group: group}, 0)
	if err != nil || len(s.Ranks) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestViewMakesNothing(t *testing.T) {
	root := testRoot(t)
	if _, err := OpenView(Options{Root: root, Group: group}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("made %v, %v", left, err)
	}
	if err := os.Mkdir(filepath.Join(root, group), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenView(Options{Root: root, Group: group}); err == nil || !strings.Contains(err.Error(), "mode") {
		t.Errorf("got %v", err)
	}
}

// A free lane's pages are not there, and a view must not bring them.
func TestViewTakesNoSpace(t *testing.T) {
	root := testRoot(t)
	e := publish(t, open(t, Options{Root: root}), "a")
	before, err := e.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := View(Options{Root: root, Group: group}, 0); err != nil {
		t.Fatal(err)
	}
	after, err := e.file.Stat()
	if err != nil || after.Blocks != before.Blocks {
		t.Errorf("%d blocks, were %d, %v", after.Blocks, before.Blocks, err)
	}
}
