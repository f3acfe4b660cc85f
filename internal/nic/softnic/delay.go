package softnic

import "time"

const delayRoom = 1 << 10

// delay holds completions back for the configured round trip.
type delay struct {
	q    *qp
	trip time.Duration
	due  chan dueAck
	end  chan struct{}
}

type dueAck struct {
	n  uint64
	at time.Time
}

func newDelay(q *qp) *delay {
	l := &delay{q: q, trip: 2 * q.d.cfg.Latency}
	if l.trip > 0 {
		l.due, l.end = make(chan dueAck, delayRoom), make(chan struct{})
		q.d.wg.Go(l.run)
	}
	return l
}

func (l *delay) pass(n uint64) {
	if l.due == nil {
		l.q.complete(n)
		return
	}
	l.due <- dueAck{n, time.Now().Add(l.trip)}
}

func (l *delay) run() {
	defer close(l.end)
	timer := time.NewTimer(time.Hour)
	for a := range l.due {
		timer.Reset(time.Until(a.at))
		select {
		case <-timer.C:
		case <-l.q.stop:
			timer.Stop()
		}
		l.q.complete(a.n)
	}
	timer.Stop()
}

// close waits until all has been passed on. It may be called twice.
func (l *delay) close() {
	if l.due != nil {
		close(l.due)
		<-l.end
		l.due = nil
	}
}
