package relay

import (
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/xfer"
)

// wait is not a status of a completion: the piece must be looked at again.
const wait xfer.Code = 1

// job is a piece from its claim to its completion.
type job struct {
	relay  *Relay
	lane   *inLane
	seq    uint64
	body   lane.Body
	to     Route
	rail   *Rail
	ep     *endpoint.Endpoint // the one that was ready when the piece was claimed
	status xfer.Code
	open   int  // slices under way
	bare   bool // nothing was claimed for it

	span   int    // next to be cut
	offset uint64 // in it
	slot   uint64 // address of its next byte in the arena
	failed bool
}

func (r *Relay) newJob(l *inLane, seq uint64) *job {
	var j *job
	if n := len(r.jobs); n > 0 {
		j = r.jobs[n-1]
		r.jobs = r.jobs[:n-1]
	} else {
		j = &job{relay: r}
	}
	j.lane, j.seq = l, seq
	return j
}

func (r *Relay) freeJob(j *job) {
	b := j.body
	*j = job{relay: r}
	j.body.Session, j.body.Spans = b.Session[:0], b.Spans[:0]
	r.jobs = append(r.jobs, j)
}

// fail makes the piece end with an error completion; the first status is kept.
func (j *job) fail(status xfer.Code) {
	if !j.failed {
		j.failed, j.status = true, status
	}
}

// posted reports whether all of the piece's slices have been handed to the NIC,
// or will not be.
func (j *job) posted() bool { return j.failed || j.span == len(j.body.Spans) }

// over reports whether nothing is under way and nothing will be.
func (j *job) over() bool { return j.open == 0 && j.posted() }

// route finds, before the claim, where the piece goes and whether its queue
// pairs are ready. It looks at the descriptor, which may still change: what
// counts is read again after the claim.
func (j *job) route(now time.Duration) xfer.Code {
	r := j.relay
	if !j.lane.rx.Peek(j.seq, &j.body) || int(j.body.RailIndex) >= len(r.opts.Rails) {
		return xfer.OK // to be claimed and refused
	}
	rt := r.resolve(now, j.body.Session)
	if rt.to == nil {
		return wait
	}
	j.to, j.rail = rt.to, &r.opts.Rails[j.body.RailIndex]
	if !j.to.Fences() && !r.opts.DeathCloses {
		return xfer.ErrMetadata
	}
	first := j.body.Spans[0]
	path, _, _, err := j.to.Pick(first.Dest, 1, j.rail.Name)
	if err != nil {
		if !rt.asking && now >= rt.again {
			r.ask(now, rt, true)
		}
		return wait
	}
	ep, err := j.rail.Set.Get(path)
	if err != nil {
		return wait
	}
	if !ep.Ready() {
		return wait
	}
	j.ep = ep
	return xfer.OK
}

// begin checks that what was claimed is what was looked at.
func (j *job) begin() {
	r := j.relay
	rt := r.routes[string(j.body.Session)]
	if rt == nil || rt.to == nil || rt.to != j.to || j.rail != &r.opts.Rails[j.body.RailIndex] || j.ep == nil {
		j.fail(xfer.ErrInvalidArgument)
		return
	}
	slot := r.opts.Geometry.Slot(j.seq)
	j.slot = r.opts.Arena + r.opts.Geometry.Offset(j.lane.index, slot)
}

// push posts as many slices as the queue pairs take. It reports whether it
// posted any.
func (j *job) push() (busy bool) {
	r := j.relay
	for !j.posted() {
		room := min(j.ep.Room(), cap(r.wrs))
		if room == 0 {
			if !j.ep.Ready() {
				j.fail(xfer.ErrEndpoint)
				return true
			}
			return busy // a full queue is back-pressure
		}
		r.wrs = r.wrs[:0]
		for len(r.wrs) < room && !j.posted() {
			if !j.cut() {
				break
			}
		}
		n, err := j.ep.Post(r.wrs)
		if err != nil {
			j.fail(xfer.ErrEndpoint)
		}
		j.open += n
		for i := n; i < len(r.wrs); i++ {
			r.pool.put(r.pool.get(r.wrs[i].ID)) // not taken
		}
		if n < len(r.wrs) {
			j.fail(xfer.ErrEndpoint) // Room promised more
		}
		busy = busy || n > 0 || j.failed
	}
	return busy
}

// cut adds the next slice to the chain. It reports false if the piece failed.
func (j *job) cut() bool {
	r := j.relay
	sp := &j.body.Spans[j.span]
	at, left := sp.Dest+j.offset, sp.Length-j.offset
	path, rkey, end, err := j.to.Pick(at, 1, j.rail.Name)
	if err != nil || path != j.ep.Path() {
		j.fail(xfer.ErrAddressNotFound)
		return false
	}
	n := min(left, uint64(r.opts.SliceSize), end-at)
	s := r.pool.take(j, j.ep)
	if s == nil {
		j.fail(xfer.ErrTooManyRequests)
		return false
	}
	r.wrs = append(r.wrs, nic.WR{
		ID: s.id(), Op: nic.OpWrite, Signaled: true,
		LKey: j.rail.LKey, RKey: rkey,
		Length: uint32(n), LocalAddr: j.slot, RemoteAddr: at,
	})
	j.slot += n
	if j.offset += n; j.offset == sp.Length {
		j.span, j.offset = j.span+1, 0
	}
	return true
}
