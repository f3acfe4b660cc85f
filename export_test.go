package railhop

import "github.com/railhop/railhop/internal/wire"

// Heap allocates memory that stays where it is, which memory on a stack does not.
//
//go:noinline
func Heap(n int) []byte { return make([]byte, n) }

// AddressOf is for memory that is not registered.
func AddressOf(b []byte) uint64 { return addressOf(b) }

// Crash closes an engine without a word to the metadata server.
func Crash(e *Engine) {
	e.joined = false
	e.Close()
}

// Chosen are the peer's NICs, by name, to which slices from a local NIC go, one after
// the other.
func Chosen(e *Engine, id SegmentID, from string, addr uint64, draws int) ([]string, error) {
	t := &target{engine: e, remote: e.cache.Get(id), named: railNames{log: e.log}}
	var names []string
	for range draws {
		c, err := t.Select(from, addr, 1, 0)
		if err != nil {
			return nil, err
		}
		_, name := wire.SplitNICPath(c.NICPath)
		names = append(names, name)
	}
	return names, nil
}

// Locations are those of an engine's buffers, as it publishes them.
func Locations(e *Engine) []string {
	var names []string
	for _, b := range e.local.Desc().Buffers {
		names = append(names, b.Name)
	}
	return names
}
