package relay

// pool is the work slices of a relay: how many of them there are left. A slice has
// no state of its own but the request that is posted for it, whose id names its
// piece.
type pool struct{ free int }

func (p *pool) put(n int) { p.free += n }

// id is that of all work requests of a piece. The generation tells a late report
// from a fresh one; the top bit is the endpoint's.
func (j *job) id() uint64 { return uint64(j.gen&maxGen)<<32 | uint64(j.index) }

const maxGen = 1<<31 - 1

// jobOf returns the piece of an id, or nil if nothing of it is under way.
func (r *Relay) jobOf(id uint64) *job {
	i := uint32(id)
	if uint64(i) >= uint64(len(r.all)) {
		return nil
	}
	if j := r.all[i]; j.gen&maxGen == uint32(id>>32) && j.open > 0 {
		return j
	}
	return nil
}

// end gives slices of a piece back.
func (r *Relay) end(j *job, n int) {
	n = min(n, j.open)
	j.open -= n
	r.pool.put(n)
}
