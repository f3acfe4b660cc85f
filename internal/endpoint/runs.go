package endpoint

import "github.com/railhop/railhop/internal/nic"

// RunEnd is the bit in a request's id that marks the last of a run.
const RunEnd = 1 << 63

// runs is the lengths of the runs on a queue pair that have not ended, oldest first.
type runs struct {
	ring  []int
	first int
	n     int
}

func (r *runs) push(k int) {
	r.ring[(r.first+r.n)%len(r.ring)] = k
	r.n++
}

// mark cuts requests for queue pair i into runs and signals the last of each. A run is
// a quarter of the queue at most, so that there is room before all of it has ended.
func (e *Endpoint) mark(i int, wrs []nic.WR, counted bool) {
	r := &e.runs[i]
	if counted && r.ring == nil {
		r.ring = make([]int, e.set.opts.MaxWR)
	}
	most := max(e.set.opts.MaxWR/4, 1)
	for len(wrs) > 0 {
		k := min(most, len(wrs))
		end := &wrs[k-1]
		end.Signaled = true
		if counted {
			end.ID |= RunEnd
			r.push(k)
		}
		wrs = wrs[k:]
	}
}

// Ended accounts for a report of a queue pair that [Endpoint.PostRuns] posted to, and
// returns how many requests of the report's id have ended by it: a run, when its end is
// reported, or the one that failed. Requests on a queue pair end in their order, and
// after one that failed all are reported.
func (e *Endpoint) Ended(c *nic.Completion) (n int) {
	for i, num := range e.nums {
		if num != c.QPN {
			continue
		}
		n = 1
		if r := &e.runs[i]; r.n > 0 {
			left := &r.ring[r.first]
			switch {
			case c.ID&RunEnd != 0:
				n = *left
				r.first, r.n = (r.first+1)%len(r.ring), r.n-1
			case *left > 1:
				*left--
			}
		}
		n = min(n, e.used[i])
		e.count(i, -n)
		e.settle(int64(n))
		return n
	}
	return 0
}
