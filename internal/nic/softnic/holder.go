package softnic

import (
	"sync"

	"github.com/railhop/railhop/internal/nic"
)

// holder is the list of regions that one goroutine is moving bytes from or to.
// A region is looked up and listed in one step under mu, and Close takes it out
// of the table before it looks at the lists, so it misses none.
type holder struct {
	keys *keys
	// interrupt makes the goroutine let go. It is called under mu and does not wait.
	interrupt func()
	// done tells how many requests have ended; what they used is not held any
	// more, listed or not. Nil where nobody can know before release.
	done func() uint64

	mu      sync.Mutex
	let     sync.Cond
	held    []hold // at most maxBatch
	waiting int
	revoked bool
}

type hold struct {
	m     *mr
	index uint64 // of the request
}

func newHolder(k *keys, interrupt func(), done func() uint64) *holder {
	h := &holder{keys: k, interrupt: interrupt, done: done, held: make([]hold, 0, maxBatch)}
	h.let.L = &h.mu
	return h
}

// local lists the region of request index, w, of p. It reports false if the key is
// not valid for it.
func (h *holder) local(p *pd, w *nic.WR, index uint64) bool {
	if w.Length == 0 {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys.mu.RLock()
	m := h.keys.local[w.LKey]
	h.keys.mu.RUnlock()
	if m == nil || m.pd != p || !m.covers(w.LocalAddr, w.Length) {
		return false
	}
	if w.Op == nic.OpRead && m.access&nic.LocalWrite == 0 {
		return false
	}
	h.held = append(h.held, hold{m, index})
	return true
}

// remote lists the region that a peer's operation names, for a queue pair of p
// that grants access. It reports false if the peer may not do that.
func (h *holder) remote(p *pd, access nic.Access, o *op) bool {
	need := nic.RemoteWrite
	if o.kind == nic.OpRead {
		need = nic.RemoteRead
	}
	if access&need == 0 {
		return false
	}
	if o.length == 0 {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys.mu.RLock()
	m := h.keys.remote[o.rkey]
	h.keys.mu.RUnlock()
	if m == nil || m.pd != p || m.access&need == 0 || !m.covers(o.addr, o.length) {
		return false
	}
	h.held = append(h.held, hold{m, 0})
	return true
}

// release empties the list. It reports whether the goroutine was interrupted
// since the last release.
func (h *holder) release() (revoked bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.held)
	h.held = h.held[:0]
	if h.waiting > 0 {
		h.let.Broadcast()
	}
	revoked, h.revoked = h.revoked, false
	return revoked
}

// revoke waits until m is not held.
func (h *holder) revoke(m *mr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.holds(m) {
		if !h.revoked {
			h.revoked = true
			h.interrupt()
		}
		h.waiting++
		h.let.Wait()
		h.waiting--
	}
}

func (h *holder) holds(m *mr) bool {
	for _, x := range h.held {
		if x.m == m && (h.done == nil || x.index >= h.done()) {
			return true
		}
	}
	return false
}
