package railhop

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
