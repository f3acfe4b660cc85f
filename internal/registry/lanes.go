package registry

import (
	"errors"
	"fmt"

	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

// Only the owner makes a lane free: a claimer could otherwise reuse a slot that
// the NIC still reads.

// freeLane zeroes the words of a lane that was never ready, and stores state free last.
// Its commit words are zero already, unless somebody scribbles. A lane that was ready is
// freed by lane.Relay, which knows what is under way. A free lane stays as it is.
func (e *Entry) freeLane(i int) error {
	if i < 0 || i >= shmabi.Lanes {
		return fmt.Errorf("registry: lane %d, valid are 0 to %d", i, shmabi.Lanes-1)
	}
	err := shm.Guard(func() error {
		lane := &e.block.Lanes[i]
		if lane.Header.State.Load() == shmabi.LaneFree {
			return nil
		}
		for s := range shmabi.Slots {
			lane.Descriptors[s].Commit.Store(0)
			lane.Completions[s].Commit.Store(0)
		}
		h := &lane.Header
		h.ArenaAttached.Store(0)
		h.Sender = shmabi.Identity{}
		h.SenderEpoch.Store(0)
		h.Head.Store(0)
		h.Doorbell.Store(0)
		h.Completed.Store(0)
		h.State.Store(shmabi.LaneFree)
		return nil
	})
	if err != nil {
		return fmt.Errorf("registry: free lane %d of %s: %w", i, e.name, err)
	}
	return nil
}

// SweepClaims frees lanes whose claimer died halfway, and returns how many. A
// claim is made under the entry's flock, which outlives the claimer's memory:
// who gets the lock sees no claim underway. Without such lanes it costs seven
// loads; if a claim is underway it does nothing. It does not block.
func (e *Entry) SweepClaims() (int, error) {
	claiming, err := e.claiming()
	if err != nil || claiming == 0 {
		return 0, err
	}
	// A description of its own: closing it is what unlocks.
	f, err := e.reopen()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := f.Flock(0); err != nil {
		if errors.Is(err, shm.ErrBusy) {
			return 0, nil
		}
		return 0, fmt.Errorf("registry: sweep %s: %w", e.name, err)
	}
	if claiming, err = e.claiming(); err != nil {
		return 0, err
	}
	n := 0
	for i := range shmabi.Lanes {
		if claiming&(1<<i) == 0 {
			continue
		}
		if err := e.freeLane(i); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// claiming is the set of lanes in state claiming.
func (e *Entry) claiming() (set uint, err error) {
	err = shm.Guard(func() error {
		for i := range shmabi.Lanes {
			if e.block.Lanes[i].Header.State.Load() == shmabi.LaneClaiming {
				set |= 1 << i
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("registry: lanes of %s: %w", e.name, err)
	}
	return set, nil
}

// reopen opens the entry's file once more, whatever its name is by now.
func (e *Entry) reopen() (*shm.File, error) {
	f, err := e.file.Reopen()
	if err != nil {
		return nil, fmt.Errorf("registry: sweep %s: %w", e.name, err)
	}
	return f, nil
}
