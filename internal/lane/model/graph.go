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
// states that they leave.
type edges struct {
	chunks [][]uint32
	out    []uint8 // how many leave a state
	last   uint8
}

const chunk = 1 << 20

func (g *edges) add(to uint32) {
	n := len(g.chunks)
	if n == 0 || len(g.chunks[n-1]) == chunk {
		g.chunks = append(g.chunks, make([]uint32, 0, chunk))
		n++
	}
	g.chunks[n-1] = append(g.chunks[n-1], to)
	g.last++
}

func (g *edges) end() {
	g.out = append(g.out, g.last)
	g.last = 0
}

// stuck returns the first state from which no state in which all has ended can be
// reached, if there is one. Most steps lead to states with higher numbers, so that
// a few sweeps from the last to the first are enough.
func (e *explorer) stuck() (id uint32, ok bool) {
	good := e.final
	for again := true; again; {
		again = false
		at := 0
		for _, c := range e.edges.chunks {
			at += len(c)
		}
		for i := len(e.edges.out) - 1; i >= 0; i-- {
			for range e.edges.out[i] {
				at--
				if to := e.edges.chunks[at/chunk][at%chunk]; good[to] && !good[i] {
					good[i], again = true, true
				}
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
