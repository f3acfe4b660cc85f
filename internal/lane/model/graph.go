package model

// table numbers states by their hashes. Two states with the same 64 bits are
// taken for one: with ten million states that happens with probability 3e-6.
type table struct {
	hashes []uint64
	ids    []uint32
	used   int
}

func (t *table) init() {
	t.hashes, t.ids = make([]uint64, 1<<12), make([]uint32, 1<<12)
}

func (t *table) add(h uint64) (id uint32, fresh bool) {
	if h == 0 {
		h = 1
	}
	if t.used*4 >= len(t.hashes)*3 {
		t.grow()
	}
	mask := uint64(len(t.hashes) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		switch t.hashes[i] {
		case h:
			return t.ids[i], false
		case 0:
			t.hashes[i], t.ids[i] = h, uint32(t.used)
			t.used++
			return uint32(t.used - 1), true
		}
	}
}

func (t *table) grow() {
	hashes, ids := t.hashes, t.ids
	t.hashes, t.ids = make([]uint64, 2*len(hashes)), make([]uint32, 2*len(hashes))
	mask := uint64(len(t.hashes) - 1)
	for n, h := range hashes {
		if h == 0 {
			continue
		}
		i := h & mask
		for t.hashes[i] != 0 {
			i = (i + 1) & mask
		}
		t.hashes[i], t.ids[i] = h, ids[n]
	}
}

// edges are the steps between states that are no faults, in the order of the
// states they leave.
type edges struct {
	to   []uint32
	ends []uint64 // of a state: where its steps end in to
}

func (g *edges) add(to uint32) { g.to = append(g.to, to) }

func (g *edges) end() { g.ends = append(g.ends, uint64(len(g.to))) }

// stuck returns the first state from which no state in which all has ended can be
// reached, if there is one.
func (e *explorer) stuck() (id uint32, ok bool) {
	n := len(e.from)
	starts := make([]uint64, n+1) // steps into a state, turned around
	for _, to := range e.edges.to {
		starts[to+1]++
	}
	for i := range n {
		starts[i+1] += starts[i]
	}
	back := make([]uint32, len(e.edges.to))
	fill := make([]uint64, n)
	copy(fill, starts)
	at := uint64(0)
	for from := range n {
		for ; at < e.edges.ends[from]; at++ {
			to := e.edges.to[at]
			back[fill[to]] = uint32(from)
			fill[to]++
		}
	}
	good := make([]bool, n)
	var todo []uint32
	for i, f := range e.final {
		if f {
			good[i] = true
			todo = append(todo, uint32(i))
		}
	}
	for len(todo) > 0 {
		to := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, from := range back[starts[to]:starts[to+1]] {
			if !good[from] {
				good[from] = true
				todo = append(todo, from)
			}
		}
	}
	for i, g := range good {
		if !g {
			return uint32(i), true
		}
	}
	return 0, false
}
