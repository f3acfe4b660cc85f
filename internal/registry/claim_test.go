package registry

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/railhop/railhop/internal/shmabi"
)

func TestClaim(t *testing.T) {
	_, e, p := pair(t)
	sender := func(pid int32) shmabi.Identity { return shmabi.Identity{UID: 1, PID: pid, StartTicks: 9} }
	for i := range shmabi.Lanes {
		lane, err := p.Claim(sender(int32(i+1)), uint64(i+100))
		if err != nil || lane != i {
			t.Fatalf("claim %d: lane %d, %v", i, lane, err)
		}
		h := &e.Block().Lanes[i].Header
		if h.State.Load() != shmabi.LaneReady || h.Sender != sender(int32(i+1)) || h.SenderEpoch.Load() != uint64(i+100) {
			t.Errorf("lane %d: state %d, sender %+v, epoch %d", i, h.State.Load(), h.Sender, h.SenderEpoch.Load())
		}
	}
	if lane, err := p.Claim(sender(4), 103); err != nil || lane != 3 {
		t.Errorf("a sender's second claim: lane %d, %v; want its own, 3", lane, err)
	}
	if _, err := p.Claim(sender(4), 104); !errors.Is(err, ErrNoLane) {
		t.Errorf("same process, other epoch: %v, want %v", err, ErrNoLane)
	}
	if _, err := p.Claim(sender(5), 0); err == nil {
		t.Error("claimed for epoch 0")
	}

	lane := &e.Block().Lanes[3]
	lane.Header.Head.Store(5)
	lane.Header.Doorbell.Store(5)
	lane.Header.Completed.Store(5)
	lane.Header.ArenaAttached.Store(1)
	for s := range shmabi.Slots {
		lane.Descriptors[s].Commit.Store(uint64(s) | shmabi.Claimed)
		lane.Completions[s].Commit.Store(uint64(s))
	}
	if err := e.freeLane(3); err != nil {
		t.Fatal(err)
	}
	for _, b := range e.Bytes()[shmabi.LaneOffset(3) : shmabi.LaneOffset(3)+64] {
		if b != 0 {
			t.Fatal("a word of a free lane is not 0")
		}
	}
	for s := range shmabi.Slots {
		if lane.Descriptors[s].Commit.Load() != 0 || lane.Completions[s].Commit.Load() != 0 {
			t.Errorf("slot %d: a commit word is left", s)
		}
	}
	if lane, err := p.Claim(sender(4), 104); err != nil || lane != 3 {
		t.Errorf("after the lane was freed: lane %d, %v", lane, err)
	}
	for _, i := range []int{-1, shmabi.Lanes} {
		if err := e.freeLane(i); err == nil {
			t.Errorf("freed lane %d", i)
		}
	}
}

func TestClaimIsBusyUnderTheFlock(t *testing.T) {
	_, e, p := pair(t)
	p.r.opts.LockWait = 1
	other, err := e.file.Reopen()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Flock(0); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Claim(e.Identity(), 1); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v, want %v", err, ErrBusy)
	}
	e.Block().Lanes[0].Header.State.Store(shmabi.LaneClaiming)
	if n, err := e.SweepClaims(); n != 0 || err != nil {
		t.Errorf("swept %d under another's claim, %v", n, err)
	}
	if err := other.Funlock(); err != nil {
		t.Fatal(err)
	}
	if n, err := e.SweepClaims(); n != 1 || err != nil {
		t.Errorf("swept %d, %v; want 1", n, err)
	}
	if n, err := e.SweepClaims(); n != 0 || err != nil {
		t.Errorf("swept %d again, %v", n, err)
	}
	if _, err := p.Claim(e.Identity(), 1); err != nil {
		t.Error(err)
	}
}

func TestClaimerDiesHalfway(t *testing.T) {
	root := testRoot(t)
	r := open(t, Options{Root: root})
	e := publish(t, r, "a")
	k := start(t, nil, "half", root)
	if k.read() != "claiming" {
		t.Fatal("child")
	}
	if n, err := e.SweepClaims(); n != 0 || err != nil {
		t.Errorf("swept %d lanes of a claimer that lives, %v", n, err)
	}
	k.kill()
	if n, err := e.SweepClaims(); n != 1 || err != nil {
		t.Errorf("swept %d lanes, %v; want 1", n, err)
	}
	if s := e.Block().Lanes[2].Header.State.Load(); s != shmabi.LaneFree {
		t.Errorf("state %d", s)
	}
}

// Processes that claim at the same time never get the same lane.
func TestClaimersRace(t *testing.T) {
	root := testRoot(t)
	e := publish(t, open(t, Options{Root: root}), "a")
	var kids []*kid
	for range 3 {
		k := start(t, nil, "claimer", root)
		if got := k.read(); got != "ready" {
			t.Fatal(got)
		}
		kids = append(kids, k)
	}
	for round := range 40 {
		for _, k := range kids {
			k.say("go")
		}
		taken := map[int]uint64{}
		for _, k := range kids {
			for line := k.read(); line != "full"; line = k.read() {
				l, ep, _ := strings.Cut(line, " ")
				epoch, err := strconv.ParseUint(ep, 10, 64)
				if err != nil {
					t.Fatal(line)
				}
				lane := atoi(t, l)
				if taken[lane] != 0 {
					t.Fatalf("round %d: lane %d was given twice", round, lane)
				}
				taken[lane] = epoch
			}
		}
		if len(taken) != shmabi.Lanes {
			t.Fatalf("round %d: %d lanes taken", round, len(taken))
		}
		for lane, epoch := range taken {
			h := &e.Block().Lanes[lane].Header
			if h.State.Load() != shmabi.LaneReady || h.SenderEpoch.Load() != epoch {
				t.Fatalf("round %d: lane %d is in state %d, of %d; want ready, of %d", round, lane, h.State.Load(), h.SenderEpoch.Load(), epoch)
			}
			if err := e.freeLane(lane); err != nil {
				t.Fatal(err)
			}
		}
	}
}
