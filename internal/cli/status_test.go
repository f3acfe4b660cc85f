package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/shmabi"
)

// sampleGroup is a group with something of everything.
func sampleGroup() *registry.Snapshot {
	owner := func(pid int32) shmabi.Identity { return shmabi.Identity{UID: 1000, PID: pid, StartTicks: 77} }
	s := &registry.Snapshot{
		Path: "/dev/shm/kv", Off: true,
		Refused: []registry.Refusal{{Name: "1000.9.9.9", Cause: registry.Empty, Detail: "0 bytes, want 8306816"}},
		Ranks: []registry.Rank{
			{
				Name: "1000.41.77.5", Owner: owner(41), Epoch: 5, Rails: []string{"mlx5_0"}, SlotSize: 8 << 20, ArenaSize: 126 * 8 << 20,
				State: shmabi.StateReady, SameNamespace: true, Life: registry.Alive, Beating: true, HeartbeatAge: 240 * time.Millisecond,
				Stats: &registry.Stats{
					Version: 1, Server: "10.0.0.1:15003", RailRule: "subnet", NICPaths: map[string]string{"mlx5_0": "10.0.0.1:15003@mlx5_0"},
					Counters: map[string]uint64{
						"submitted.bytes": 3 << 30, "submitted.ops": 4, "relayed.bytes": 2 << 30, "relayed.ops": 256, "direct_same_rail.bytes": 1 << 30, "direct_same_rail.ops": 9,
						"reason.same_rail.ops": 2, "reason.same_rail.bytes": 1 << 30, "reason.no_lane.ops": 1, "reason.no_lane.bytes": 65536, "served.bytes": 999,
					},
					MayStillLand: []string{"10.0.0.2:15004 [0x1000, 0x2000)"},
				},
			},
			{
				Name: "1000.42.77.6", Owner: owner(42), Epoch: 6, Rails: []string{"mlx5_1", "mlx5_2"}, SlotSize: 1 << 20, ArenaSize: 126 << 20,
				State: shmabi.StateReady, Off: true, SameNamespace: true, Life: registry.Alive, HeartbeatAge: 3 * time.Second, Suspected: "its heartbeat stands still",
				StatsError: "registry: stats: version 2, this build reads 1",
			},
			{
				Name: "1000.43.77.7", Owner: owner(43), Epoch: 7, Rails: []string{"mlx5_3"}, SlotSize: 256 << 10, ArenaSize: 126 * 256 << 10,
				State: shmabi.StateStopping, Life: registry.Dead, Suspected: "its process died", Sleeping: true,
			},
		},
	}
	lanes := &s.Ranks[1].Lanes
	lanes[0] = registry.Lane{
		State: shmabi.LaneReady, Attached: true, Sender: owner(41), SenderEpoch: 5, Head: 120, Doorbell: 118, Completed: 110,
		Slots: registry.SlotCounts{Free: 8, Copying: 2, Waiting: 3, Claimed: 4, Done: 1},
	}
	lanes[3] = registry.Lane{State: shmabi.LaneClaiming}
	lanes[4] = registry.Lane{State: shmabi.LaneReady, Sender: owner(99), SenderEpoch: 8, Slots: registry.SlotCounts{Free: 18}}
	lanes[6] = registry.Lane{State: shmabi.LaneReady, Sender: owner(41), Slots: registry.SlotCounts{Free: 17, Revoked: 1}}
	return s
}

func TestStatusTable(t *testing.T) {
	var b strings.Builder
	if err := showStatus(&b, "kv", sampleGroup(), nil); err != nil {
		t.Fatal(err)
	}
	golden(t, "status.txt", b.String())
}

func TestStatusOfNobody(t *testing.T) {
	var b strings.Builder
	if err := showStatus(&b, "kv", &registry.Snapshot{Path: "/dev/shm/kv"}, nil); err != nil {
		t.Fatal(err)
	}
	if want := "group kv  /dev/shm/kv, 0 ranks, relays on\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// What a rank wrote does not steer the terminal, and words that contradict each
// other are shown as such.
func TestStatusOfOddRank(t *testing.T) {
	s := sampleGroup()
	s.Ranks = s.Ranks[1:2]
	s.Ranks[0].Rails = []string{"\x1b[31mred\n"}
	s.Ranks[0].Stats = &registry.Stats{Server: "a\x1b]0;b", MayStillLand: []string{"\r"}}
	s.Ranks[0].Lanes[0].Slots = registry.SlotCounts{Broken: 18}
	var b strings.Builder
	if err := showStatus(&b, "kv", s, nil); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(b.String(), "\x1b\r") || !strings.Contains(b.String(), "?[31mred?") || !strings.Contains(b.String(), "broken") {
		t.Errorf("%q", b.String())
	}
}

func TestStatusJSON(t *testing.T) {
	b, err := json.MarshalIndent(statusOf("kv", sampleGroup()), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "status.json", string(b)+"\n")
	empty, err := json.Marshal(statusOf("kv", &registry.Snapshot{}))
	if err != nil || !strings.Contains(string(empty), `"ranks":[],"refused":[]`) {
		t.Errorf("an empty group has lists too: %s, %v", empty, err)
	}
}

func TestStatusRates(t *testing.T) {
	s := sampleGroup()
	var r statusRates
	now := time.Unix(0, 0)
	key := laneKey(&s.Ranks[1], 0)
	r.update(s, now)
	if len(r.perSecond) != 0 {
		t.Errorf("rates after one look: %v", r.perSecond)
	}
	s.Ranks[1].Lanes[0].Completed += 50
	r.update(s, now.Add(2*time.Second))
	if got := r.perSecond[key]; got != 25 {
		t.Errorf("50 pieces in 2 s: %v/s, want 25", got)
	}
	// The lane is another sender's by now.
	s.Ranks[1].Lanes[0].SenderEpoch = 99
	s.Ranks[1].Lanes[0].Completed = 1000
	r.update(s, now.Add(3*time.Second))
	if got, ok := r.perSecond[laneKey(&s.Ranks[1], 0)]; ok {
		t.Errorf("a new sender's lane has a rate: %v/s", got)
	}
}

func TestHumanBytes(t *testing.T) {
	for _, tc := range []struct {
		n    uint64
		want string
	}{
		{0, "0 B"}, {999, "999 B"}, {1000, "1.00 kB"}, {9994, "9.99 kB"}, {9996, "10.0 kB"}, {99949, "99.9 kB"}, {99951, "100 kB"},
		{999499, "999 kB"}, {999500, "1.00 MB"}, {1 << 30, "1.07 GB"}, {1<<64 - 1, "18.4 EB"},
	} {
		if got := humanBytes(tc.n); got != tc.want {
			t.Errorf("humanBytes(%d) = %q, want %q", tc.n, got, tc.want)
		}
	}
}

// liveGroup is a group of this process, with one rank.
func liveGroup(t *testing.T) (root string, e *registry.Entry) {
	t.Helper()
	root = t.TempDir()
	r, err := registry.Open(registry.Options{Root: root, Group: "kv"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	e, err = r.Publish(registry.EntryOptions{Rails: []string{"mlx5_0"}, SlotSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.WriteStats(registry.Stats{Server: "10.0.0.1:15003", Counters: map[string]uint64{"relayed.bytes": 7}}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "kv", "0.1.2.3"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return root, e
}

func TestStatusOfLiveGroup(t *testing.T) {
	root, e := liveGroup(t)
	block := append([]byte(nil), e.Bytes()...)
	status, out, errOut := runMain("status", "kv", "--registry", root, "--no-wait", "--json")
	if status != 0 || errOut != "" {
		t.Fatalf("exit status %d, %s", status, errOut)
	}
	var g groupStatus
	if err := json.Unmarshal([]byte(out), &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Ranks) != 1 || g.Ranks[0].PID != int32(os.Getpid()) || g.Ranks[0].Condition != "alive" || g.Ranks[0].Server != "10.0.0.1:15003" ||
		g.Ranks[0].Counters["relayed.bytes"] != 7 || len(g.Refused) != 1 || g.Refused[0].Cause != "empty" {
		t.Errorf("%+v", g)
	}
	if string(block) != string(e.Bytes()) {
		t.Error("status wrote to the block")
	}

	// It waits for a heartbeat, and no longer.
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for now := time.Duration(1); ; now++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				e.Beat(now)
			}
		}
	}()
	status, out, errOut = runMain("status", "kv", "--registry", root, "--json")
	close(stop)
	<-done
	if err := json.Unmarshal([]byte(out), &g); err != nil || status != 0 {
		t.Fatalf("exit status %d, %s, %v", status, errOut, err)
	}
	if !g.Ranks[0].Beating || g.Ranks[0].Suspected != "" {
		t.Errorf("%+v, want a rank that beats", g.Ranks[0])
	}
}

func TestStatusOfSilentRank(t *testing.T) {
	root, _ := liveGroup(t)
	t.Setenv("MC_PXN_HEARTBEAT_TIMEOUT_MS", "150")
	status, out, errOut := runMain("status", "kv", "--registry", root)
	if status != 0 || !strings.Contains(out, "suspected") || !strings.Contains(out, "its heartbeat stands still") {
		t.Errorf("exit status %d, %s\n%s", status, errOut, out)
	}
}

func TestListGroups(t *testing.T) {
	root, _ := liveGroup(t)
	for _, dir := range []string{"foreign", "with space"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "open"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "open", ".lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(root, "open"), 0o777); err != nil {
		t.Fatal(err)
	}
	status, out, errOut := runMain("status", "--registry", root, "--json")
	if status != 0 {
		t.Fatalf("exit status %d, %s", status, errOut)
	}
	var l groupList
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		t.Fatal(err)
	}
	if len(l.Groups) != 2 || l.Groups[0] != (groupLine{Group: "kv", Ranks: 1, Refused: 1}) || l.Groups[1].Group != "open" || !strings.Contains(l.Groups[1].Error, "0777") {
		t.Errorf("%+v", l)
	}
	if status, out, _ = runMain("status", "--registry", root); status != 0 || !strings.Contains(out, "kv") || !strings.Contains(out, "want 0700") {
		t.Errorf("exit status %d\n%s", status, out)
	}
	if status, out, _ = runMain("status", "--registry", t.TempDir()); status != 0 || !strings.HasPrefix(out, "no group in ") {
		t.Errorf("exit status %d\n%s", status, out)
	}
}

func TestSwitch(t *testing.T) {
	root, e := liveGroup(t)
	for _, tc := range []struct {
		word    string
		changed int
	}{{"off", 1}, {"off", 0}, {"on", 1}, {"on", 0}} {
		status, out, errOut := runMain("pxn", tc.word, "kv", "--registry", root, "--json")
		var s switched
		if err := json.Unmarshal([]byte(out), &s); err != nil || status != 0 {
			t.Fatalf("pxn %s: exit status %d, %s, %v", tc.word, status, errOut, err)
		}
		off := tc.word == "off"
		if s.Group != "kv" || s.Off != off || s.Changed != tc.changed || len(s.Refused) != 1 {
			t.Errorf("pxn %s: %+v, want %d changed and one file left alone", tc.word, s, tc.changed)
		}
		if e.Off() != off {
			t.Errorf("pxn %s: the rank is off: %v", tc.word, e.Off())
		}
		if _, err := os.Stat(filepath.Join(root, "kv", ".off")); (err == nil) != off {
			t.Errorf("pxn %s: the marker for ranks to come: %v", tc.word, err)
		}
	}
	status, out, errOut := runMain("pxn", "off", "kv", "--registry", root)
	if status != 0 || !strings.HasPrefix(out, "group kv: relays are off: 1 rank changed") || !strings.Contains(errOut, "left alone: 0.1.2.3: empty") {
		t.Errorf("exit status %d\n%s%s", status, out, errOut)
	}
}

// A group that is not there yet can be switched off for ranks to come, and
// switching it on makes nothing.
func TestSwitchBeforeRanks(t *testing.T) {
	root := t.TempDir()
	if status, out, errOut := runMain("pxn", "on", "kv", "--registry", root); status != 0 {
		t.Errorf("exit status %d: %s%s", status, out, errOut)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("pxn on made %v, %v", left, err)
	}
	if status, out, errOut := runMain("pxn", "off", "kv", "--registry", root); status != 0 {
		t.Errorf("exit status %d: %s%s", status, out, errOut)
	}
	r, err := registry.Open(registry.Options{Root: root, Group: "kv"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	e, err := r.Publish(registry.EntryOptions{Rails: []string{"a"}, SlotSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if !e.Off() {
		t.Error("a rank that came after pxn off is on")
	}
}
