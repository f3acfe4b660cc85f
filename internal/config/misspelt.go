package config

import (
	"slices"
	"strings"
)

// Misspelt returns a warning for each of names that is not a variable of
// railhop but looks as if it was meant to be: everything that starts with
// MC_PXN_, and MC_ or RAILHOP_ names that differ from a known one by a slip of
// the hand. Other programs have MC_ variables too; they are left alone.
func Misspelt(names []string) []Warning {
	known := knownNames()
	isKnown := make(map[string]bool, len(known))
	for _, k := range known {
		isKnown[k] = true
	}
	var warnings []Warning
	for _, name := range names {
		ours := strings.HasPrefix(name, "MC_PXN_")
		if isKnown[name] || !ours && !strings.HasPrefix(name, "MC_") && !strings.HasPrefix(name, "RAILHOP_") {
			continue
		}
		// A short name is near to too many.
		const slip, shortest = 2, 8
		best, distance := nearest(name, known)
		if !ours && (distance > slip || len(name) < shortest) {
			continue
		}
		if i := slices.IndexFunc(known, func(k string) bool { return leavesOut(name, k) }); ours && i >= 0 {
			best = known[i]
		}
		warnings = append(warnings, Warning{Name: shorten(name), Effect: "there is no such variable; did you mean " + best + "?"})
	}
	return warnings
}

// knownNames lists every name that is read, or known not to be.
func knownNames() []string {
	names := []string{"RAILHOP_REQUIRE"} // read by the tests
	for _, s := range table() {
		for _, v := range s.vars {
			names = append(append(names, v.name), v.others...)
		}
	}
	for _, o := range withoutEffect() {
		names = append(names, o.name)
	}
	return names
}

// nearest returns the one of words that takes the fewest edits to make of name,
// and how many; of equals the first.
func nearest(name string, words []string) (best string, distance int) {
	const longest = 256 // keeps the cost of a hostile name down
	if len(name) > longest {
		name = name[:longest]
	}
	for i, w := range words {
		if d := edits(name, w); i == 0 || d < distance {
			best, distance = w, d
		}
	}
	return best, distance
}

// leavesOut reports whether name is full without some of its words:
// MC_PXN_DEPTH is MC_PXN_INFLIGHT_DEPTH without INFLIGHT.
func leavesOut(name, full string) bool {
	words := strings.Split(name, "_")
	for word := range strings.SplitSeq(full, "_") {
		if len(words) > 0 && words[0] == word {
			words = words[1:]
		}
	}
	return len(words) == 0
}

// edits counts the insertions, deletions, replacements and swaps of neighbours
// that make b of a.
func edits(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
