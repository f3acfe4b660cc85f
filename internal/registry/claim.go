package registry

import (
	"errors"
	"fmt"

	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/shmabi"
)

// Claim takes a lane of the peer for a sender, under the entry's flock, and
// returns its index. A ready lane that the sender has already is returned as it
// is: one lane per sender and relay. The lane's pages are reserved before it is
// touched. The peer's memory stays until [Peer.Close].
//
// It returns [ErrBusy] if the lock was not to be had in time, [ErrNoLane] if
// none is free, [ErrOff], [ErrStopping] or [ErrGone] by the peer's state, and an
// error that wraps [shm.ErrNoSpace] if the file system is full. It may sleep:
// not for a pump.
func (p *Peer) Claim(sender shmabi.Identity, epoch uint64) (int, error) {
	if epoch == 0 {
		return 0, errors.New("registry: claim: epoch 0")
	}
	if p.r == nil || !p.hold() {
		return 0, fmt.Errorf("%w: %s", ErrGone, p.name)
	}
	defer p.drop()
	p.claim.Lock()
	defer p.claim.Unlock()
	if p.Life() != Alive || p.Truncated() {
		return 0, fmt.Errorf("%w: %s is %v", ErrGone, p.name, p.Life())
	}
	if err := p.file.Flock(p.r.opts.LockWait); err != nil {
		return 0, p.r.asBusy(err)
	}
	lane, err := 0, error(nil)
	fault := shm.Guard(func() error { lane, err = p.claimLocked(sender, epoch); return nil })
	if fault != nil {
		p.cut()
		err = fmt.Errorf("%w: %s: %w", ErrGone, p.name, fault)
	}
	err = errors.Join(err, p.file.Funlock())
	if err == nil {
		p.mu.Lock()
		p.claims++
		p.refs++
		p.mu.Unlock()
	}
	return lane, err
}

func (p *Peer) claimLocked(sender shmabi.Identity, epoch uint64) (int, error) {
	switch h := &p.block.Header; {
	case h.State.Load() != shmabi.StateReady:
		return 0, fmt.Errorf("%w: %s", ErrStopping, p.name)
	case h.Flags.Load()&shmabi.FlagOff != 0:
		return 0, fmt.Errorf("%w: %s", ErrOff, p.name)
	}
	free := -1
	for i := range shmabi.Lanes {
		h := &p.block.Lanes[i].Header
		switch h.State.Load() {
		case shmabi.LaneReady:
			if h.SenderEpoch.Load() == epoch && h.Sender == sender {
				return i, nil
			}
		case shmabi.LaneFree:
			if free < 0 {
				free = i
			}
		}
	}
	if free < 0 {
		return 0, fmt.Errorf("%w: %s", ErrNoLane, p.name)
	}
	if err := p.file.Reserve(shm.Pages(shmabi.LaneOffset(free), shmabi.LaneBytes)); err != nil {
		return 0, fmt.Errorf("registry: claim lane %d of %s: %w", free, p.name, err)
	}
	h := &p.block.Lanes[free].Header
	if !h.State.CompareAndSwap(shmabi.LaneFree, shmabi.LaneClaiming) {
		return 0, fmt.Errorf("%w: %s: lane %d changed under the lock", ErrNoLane, p.name, free)
	}
	h.Sender = sender
	h.SenderEpoch.Store(epoch)
	h.ArenaAttached.Store(0)
	h.State.Store(shmabi.LaneReady)
	return free, nil
}
