package segment

import (
	"slices"
	"strconv"
	"strings"
)

// wildcard is the location whose devices serve where no other entry does.
const wildcard = "*"

// devices is an ordered choice of devices, by number: the preferred ones, then the
// others.
type devices struct {
	all       []uint16
	preferred int
}

// pick chooses for the given attempt: at first any preferred device, by rnd; at
// attempt r the (r-1)th of all, round and round.
func (d devices) pick(retry int, rnd uint64) (device int, ok bool) {
	n := len(d.all)
	switch {
	case n == 0:
		return 0, false
	case retry > 0:
		return int(d.all[(retry-1)%n]), true
	case d.preferred > 0:
		n = d.preferred
	}
	return int(d.all[rnd%uint64(n)]), true
}

// priorities is a priority matrix with its names resolved to numbers.
type priorities struct {
	byLocation map[string]devices
	rest       devices // of the wildcard: all that the matrix names, by number
}

// newPriorities resolves a matrix. Names that number does not know are left out.
func newPriorities(matrix map[string][2][]string, number func(name string) (int, bool)) *priorities {
	p := &priorities{byLocation: make(map[string]devices, len(matrix))}
	mark := make(map[int]string) // the location that a device was last added to
	for location, lists := range matrix {
		var d devices
		for i, names := range lists {
			for _, name := range names {
				n, ok := number(name)
				if last, marked := mark[n]; ok && !(marked && last == location) {
					d.all = append(d.all, uint16(n))
					mark[n] = location
				}
			}
			if i == 0 {
				d.preferred = len(d.all)
			}
		}
		p.byLocation[location] = d
		p.rest.all = append(p.rest.all, d.all...)
	}
	slices.Sort(p.rest.all)
	p.rest.all = slices.Compact(p.rest.all)
	p.rest.preferred = len(p.rest.all)
	return p
}

// at returns the devices for a location.
func (p *priorities) at(location string) devices {
	if d := p.byLocation[location]; len(d.all) > 0 {
		return d
	}
	if d := p.byLocation[wildcard]; len(d.all) > 0 {
		return d
	}
	return p.rest
}

// regions returns the locations of a buffer whose name has the form
// "segments:<page size>:<node>,<node>,…": it lies on these nodes in equal parts.
// It returns nil for any other name.
func regions(name string) []string {
	rest, ok := strings.CutPrefix(name, "segments:")
	if !ok {
		return nil
	}
	page, list, ok := strings.Cut(rest, ":")
	if _, err := strconv.ParseUint(page, 10, 64); err != nil || !ok {
		return nil
	}
	var all []string
	for node := range strings.SplitSeq(list, ",") {
		if _, err := strconv.ParseUint(node, 10, 31); err != nil {
			return nil
		}
		all = append(all, "cpu:"+node)
	}
	return all
}

// region returns which of n equal parts of a buffer holds the byte at offset; the
// last one has the rest.
func region(n int, offset, length uint64) int {
	size := length / uint64(n)
	if size == 0 {
		return n - 1
	}
	return int(min(offset/size, uint64(n-1)))
}
