package workload

import (
	"container/list"

	"github.com/railhop/railhop/internal/trace"
)

// jobs works out what is sent of each request: all its input, or what the decode
// side does not hold yet.
func jobs(o *Options) []job {
	held := blockCache{limit: o.ReuseBlocks, at: map[uint64]*list.Element{}}
	all := make([]job, len(o.Requests))
	page := o.Model.PageTokens
	for i := range o.Requests {
		r := &o.Requests[i]
		skip := 0 // pages
		if o.Reuse {
			tokens := min(held.prefix(r.HashIDs)*trace.BlockTokens, r.InputLength)
			skip = tokens / page
			if tokens == r.InputLength {
				skip = ceilDiv(tokens, page)
			}
			held.add(r.HashIDs)
		}
		all[i] = job{request: i, pages: ceilDiv(r.InputLength, page) - skip, held: min(skip*page, r.InputLength)}
	}
	return all
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// blockCache holds the ids of blocks, and drops those that were used longest ago.
// What it models is that a prefix is found; the pages of a run are recycled
// without regard to it.
type blockCache struct {
	limit int // blocks; 0: none
	order list.List
	at    map[uint64]*list.Element
}

// prefix is how many of the leading ids are held.
func (c *blockCache) prefix(ids []uint64) int {
	for i, id := range ids {
		if c.at[id] == nil {
			return i
		}
	}
	return len(ids)
}

// add puts the ids in front, the last of them to be dropped first: a prefix is
// worth more than what follows it.
func (c *blockCache) add(ids []uint64) {
	for i := len(ids) - 1; i >= 0; i-- {
		if e := c.at[ids[i]]; e != nil {
			c.order.MoveToFront(e)
			continue
		}
		c.at[ids[i]] = c.order.PushFront(ids[i])
	}
	for c.limit > 0 && c.order.Len() > c.limit {
		delete(c.at, c.order.Remove(c.order.Back()).(uint64))
	}
}
