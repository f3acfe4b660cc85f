package wire

import (
	"encoding/binary"
	"maps"
	"slices"
)

// DeviceOrder returns the devices of a priority matrix in the order in which a
// Mooncake reader numbers them. Readers use that number as the subscript of
// devices and keys, so a publisher must list both in this order, or its memory
// is reached through the wrong NIC.
//
// The number comes from a walk over a std::unordered_map that was filled in byte
// order. This is libstdc++'s: one linked list; a bucket knows the node before
// its first one; an empty bucket's first node goes to the front of the list.
func DeviceOrder(matrix map[string][2][]string) []string {
	var order []string
	seen := make(map[string]bool)
	for _, location := range mapWalk(slices.Sorted(maps.Keys(matrix))) {
		for _, names := range matrix[location] {
			for _, name := range names {
				if !seen[name] {
					seen[name] = true
					order = append(order, name)
				}
			}
		}
	}
	return order
}

// bucketCounts are the primes by which the map grows.
var bucketCounts = [...]int{13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933}

// mapWalk returns keys, inserted in the order given, in the map's order.
func mapWalk(keys []string) []string {
	var list []string
	buckets, limit := 1, 0
	for i, key := range keys {
		if n := i + 1; n > limit {
			want := max(n+1, 2*buckets, 12)
			at := slices.IndexFunc(bucketCounts[:], func(p int) bool { return p >= want })
			if at < 0 {
				return append(list, keys[i:]...) // no node has this many locations
			}
			buckets = bucketCounts[at]
			limit = buckets
			old := list
			list = nil
			for _, k := range old {
				list = mapPlace(list, k, buckets)
			}
		}
		list = mapPlace(list, key, buckets)
	}
	return list
}

func mapPlace(list []string, key string, buckets int) []string {
	bucket := stdHash(key) % uint64(buckets)
	at := slices.IndexFunc(list, func(k string) bool { return stdHash(k)%uint64(buckets) == bucket })
	return slices.Insert(list, max(at, 0), key)
}

// stdHash is libstdc++'s std::hash<std::string> on 64 bits: Murmur's.
func stdHash(s string) uint64 {
	const m = 0xc6a4a7935bd1e995
	h := uint64(0xc70f6907) ^ uint64(len(s))*m
	b := []byte(s)
	for ; len(b) >= 8; b = b[8:] {
		k := binary.LittleEndian.Uint64(b) * m
		k ^= k >> 47
		h = (h ^ k*m) * m
	}
	if len(b) > 0 {
		var tail [8]byte
		copy(tail[:], b)
		h = (h ^ binary.LittleEndian.Uint64(tail[:])) * m
	}
	h = (h ^ h>>47) * m
	return h ^ h>>47
}
