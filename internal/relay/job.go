package relay

import (
	"errors"
	"time"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/lane"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/xfer"
)

var errShort = errors.New("relay: a queue pair took fewer requests than it had room for")

// wait is not a status of a completion: the piece must be looked at again.
const wait xfer.Code = 1

// job is a piece from its claim to its completion.
type job struct {
	relay  *Relay
	index  uint32 // in Relay.all
	gen    uint32
	lane   *inLane
	seq    uint64
	body   lane.Body
	to     Route
	rail   *Rail
	ep     *endpoint.Endpoint // the one that was ready when the piece was claimed
	status xfer.Code
	open   int  // slices under way
	bare   bool // nothing was claimed for it

	hop    Hop    // the way of the last slice
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
		j = &job{relay: r, index: uint32(len(r.all))}
		r.all = append(r.all, j)
	}
	j.lane, j.seq = l, seq
	return j
}

func (r *Relay) freeJob(j *job) {
	b := j.body
	*j = job{relay: r, index: j.index, gen: j.gen + 1}
	j.body.Session, j.body.Plans = b.Session[:0], b.Plans[:0]
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
func (j *job) posted() bool { return j.failed || j.span == len(j.body.Plans) }

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
	first := j.body.Plans[0]
	hop, err := j.to.Pick(first.Dest, j.rail.Name)
	if err != nil {
		if !rt.asking && now >= rt.again {
			r.ask(now, rt)
		}
		return wait
	}
	ep, err := j.rail.Set.Get(hop.Path)
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
		j.cut(room)
		n, err := j.ep.PostRuns(r.wrs)
		j.open += n
		r.pool.put(len(r.wrs) - n) // not taken
		if err == nil && n < len(r.wrs) {
			err = errShort // Room promised more
		}
		if err != nil {
			j.fail(xfer.ErrEndpoint)
			j.ep.Fail(err) // the end of the last run may be missing: nothing else would report it
		}
		busy = busy || n > 0 || j.failed
	}
	return busy
}

// cut fills the chain with the next slices, up to room of them, or fails the piece.
func (j *job) cut(room int) {
	r, plans := j.relay, j.body.Plans
	room = min(room, cap(r.wrs))
	wrs := r.wrs[:room]
	budget := min(room, r.pool.free)
	size, slot, hop, offset := uint64(r.opts.SliceSize), j.slot, j.hop, j.offset
	id, lkey := j.id(), j.rail.LKey
	k, i := 0, j.span
	for k < room && i < len(plans) {
		sp := &plans[i]
		at, left := sp.Dest+offset, sp.Length-offset
		if at < hop.Start || at >= hop.End {
			var err error
			hop, err = j.to.Pick(at, j.rail.Name)
			if err != nil || hop.Path != j.ep.Path() || at < hop.Start || at >= hop.End {
				j.fail(xfer.ErrAddressNotFound)
				break
			}
		}
		if k == budget {
			j.fail(xfer.ErrTooManyRequests)
			break
		}
		n := min(left, size, hop.End-at)
		w := &wrs[k] // field by field: copying what was just put together stalls
		w.ID, w.Op, w.Signaled, w.LKey, w.RKey = id, nic.OpWrite, false, lkey, hop.RKey
		w.Length, w.LocalAddr, w.RemoteAddr = uint32(n), slot, at
		k++
		slot += n
		if n < left {
			offset += n
		} else {
			i, offset = i+1, 0
		}
	}
	r.pool.free -= k
	j.span, j.offset, j.slot, j.hop = i, offset, slot, hop
	r.wrs = wrs[:k]
}
