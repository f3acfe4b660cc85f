package railhop

// AddressOf is for memory that is not registered.
func AddressOf(b []byte) uint64 { return addressOf(b) }
