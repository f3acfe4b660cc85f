package relay

import (
	"sync/atomic"
	"time"

	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

type laneState uint8

const (
	free     laneState = iota
	claiming           // somebody claims it, or has died claiming it
	adopting           // its sender is being looked up
	active
)

// claimPatience is how long a claim may take before the owner looks whether the
// claimer is still there.
const claimPatience = 2 * time.Second

// inLane is a lane of ours that a sender may hold. It belongs to the pump.
type inLane struct {
	relay  *Relay
	index  int
	rx     *lane.Relay
	state  laneState
	since  time.Duration // of claiming
	sender Sender        // nil if it could not be found

	jobs    []*job // claimed or to be completed, in order
	running int
	waiting time.Duration // since when the next piece waits for a route; 0 if it does not
	served  atomic.Uint64
	looked  time.Duration
	suspect bool
}

// attend follows the lane's owner: adopts a new one, frees what a gone one left.
func (l *inLane) attend(now time.Duration) (busy bool) {
	r := l.relay
	switch l.state {
	case free, claiming:
		switch l.rx.Adopt() {
		case shmabi.LaneReady:
			if l.rx.Epoch() == 0 {
				l.rx.Free() // released before we looked; nothing was posted for it
				return true
			}
			l.state = adopting
			l.find()
			return true
		case shmabi.LaneClaiming:
			if l.state == free {
				l.state, l.since = claiming, now
			} else if now-l.since > claimPatience {
				l.since = now
				l.clear()
			}
		default:
			l.state = free
		}
	case active:
		l.look(now)
		gone := l.sender != nil && l.sender.Gone()
		if !gone && !l.rx.Released() {
			return false
		}
		if len(l.jobs) > 0 {
			return false // drain what was posted
		}
		if gone && !l.rx.Released() {
			r.opts.Tally.Because(xfer.SenderDead, 0, "lane", l.index, "sender", l.sender.Name())
		}
		l.rx.Free()
		if l.sender != nil {
			s := l.sender
			r.wg.Add(1)
			go func() { defer r.wg.Done(); s.Close() }()
		}
		l.sender, l.state, l.waiting, l.suspect = nil, free, 0, false
		return true
	}
	return busy
}

func (l *inLane) look(now time.Duration) {
	if l.sender == nil || now-l.looked < time.Millisecond {
		return
	}
	l.looked = now
	l.suspect = l.sender.Suspected(now)
}

// find looks the lane's sender up, off the pump.
func (l *inLane) find() {
	r := l.relay
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		s, err := r.opts.FindSender(r.ctx, l.index)
		r.mail.Post(func() {
			if err != nil {
				r.log.Warn("sender of a lane not found", "lane", l.index, "err", err)
			}
			l.sender, l.state = s, active
		})
	}()
}

func (l *inLane) clear() {
	r := l.relay
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		if err := r.opts.ClearClaim(l.index); err != nil {
			r.log.Debug("claim not cleared", "lane", l.index, "err", err)
		}
	}()
}

// take takes the next piece of the lane, if there is one and it may be taken.
func (l *inLane) take(now time.Duration) bool {
	r := l.relay
	if l.state != active {
		return false
	}
	if n := len(l.jobs); n > 0 && !l.jobs[n-1].posted() {
		return l.jobs[n-1].push()
	}
	seq, offer := l.rx.Look()
	switch offer {
	case lane.Nothing:
		l.waiting = 0
		return false
	case lane.Revoked:
		l.finish(seq, xfer.ErrRevoked)
		return true
	case lane.Broken:
		l.finish(seq, xfer.ErrInvalidArgument)
		return true
	}
	if l.suspect || r.stop || r.full(l) {
		return false
	}
	j := r.newJob(l, seq)
	status := j.route(now)
	if status == wait {
		if l.waiting == 0 {
			l.waiting = max(now, 1)
		}
		if now-l.waiting <= r.opts.Credit {
			r.freeJob(j)
			return false
		}
		status = xfer.ErrMetadata
	}
	l.waiting = 0
	if !l.rx.Claim(seq) {
		r.freeJob(j)
		l.finish(seq, xfer.ErrRevoked)
		return true
	}
	l.rx.Pass()
	l.jobs = append(l.jobs, j)
	l.running++
	r.running++
	if status != xfer.OK {
		j.fail(status)
		return true
	}
	if err := l.rx.Read(seq, &j.body); err != nil {
		r.log.Warn("descriptor refused", "lane", l.index, "sequence", seq, "err", err)
		j.fail(xfer.ErrInvalidArgument)
		return true
	}
	j.begin()
	j.push()
	return true
}

// finish passes a piece that nothing was posted for.
func (l *inLane) finish(seq uint64, status xfer.Code) {
	l.rx.Pass()
	j := l.relay.newJob(l, seq)
	j.fail(status)
	j.bare = true
	l.jobs = append(l.jobs, j)
	l.waiting = 0
}

// reap completes, in order, the pieces that nothing is under way of.
func (l *inLane) reap() (busy bool) {
	r := l.relay
	for len(l.jobs) > 0 && l.jobs[0].over() {
		j := l.jobs[0]
		l.jobs = append(l.jobs[:0], l.jobs[1:]...)
		if !j.bare {
			l.running--
			r.running--
		}
		l.rx.Complete(j.status)
		if j.status == xfer.OK {
			l.served.Add(uint64(j.body.Length))
		}
		r.freeJob(j)
		busy = true
	}
	if busy && l.rx.Flush() && l.sender != nil {
		l.sender.Wake()
	}
	return busy
}
