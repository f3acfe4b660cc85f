package endpoint

// store keeps endpoints by key and in the order of their making.
type store struct {
	byKey          map[key]*Endpoint
	oldest, newest *Endpoint
	fifo           bool
	hand           *Endpoint // where SIEVE looks next; nil means at the oldest
}

func (t *store) put(k key, e *Endpoint) {
	t.byKey[k] = e
	e.stored = true
	e.older = t.newest
	if t.newest != nil {
		t.newest.newer = e
	} else {
		t.oldest = e
	}
	t.newest = e
}

// remove takes e out and reports whether it was there.
func (t *store) remove(e *Endpoint) bool {
	if !e.stored {
		return false
	}
	e.stored = false
	delete(t.byKey, key{e.epoch, e.path})
	if t.hand == e {
		t.hand = e.newer
	}
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		t.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		t.newest = e.older
	}
	e.older, e.newer = nil, nil
	return true
}

func (t *store) all() []*Endpoint {
	all := make([]*Endpoint, 0, len(t.byKey))
	for e := t.oldest; e != nil; e = e.newer {
		all = append(all, e)
	}
	return all
}

// idle reports whether nobody here uses e or waits for it.
func (e *Endpoint) idle() bool {
	switch e.State() {
	case Connected:
		return e.open.Load() == 0
	case WaitReadyAck:
		return !e.wanted.Load()
	}
	return false
}

// evict takes an idle endpoint out: the oldest, or, by SIEVE, the first from the
// hand on that was not used since the hand last passed. It returns nil if none is
// idle.
func (t *store) evict() *Endpoint {
	if t.fifo {
		for e := t.oldest; e != nil; e = e.newer {
			if e.idle() {
				t.remove(e)
				return e
			}
		}
		return nil
	}
	e := t.hand
	// Twice round: the first may only clear the bits.
	for range 2 * len(t.byKey) {
		if e == nil {
			e = t.oldest
		}
		if e.idle() && !e.visited.Swap(false) {
			t.hand = e.newer
			t.remove(e)
			return e
		}
		e = e.newer
	}
	t.hand = e
	return nil
}

// evictWaiting takes the endpoint out that waits longest before its dial. It returns
// nil if none waits.
func (t *store) evictWaiting() *Endpoint {
	var last *Endpoint
	for e := t.oldest; e != nil; e = e.newer {
		if e.State() == Unconnected && e.dialAt != 0 && (last == nil || e.dialAt > last.dialAt) {
			last = e
		}
	}
	if last != nil {
		t.remove(last)
	}
	return last
}
