package topo

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/nic"
	"github.com/railhop/railhop/internal/wire"
)

// ReadMatrix reads a matrix that a person has written: the path of a file, or the JSON
// itself.
func ReadMatrix(pathOrJSON string) (Matrix, error) {
	text := []byte(pathOrJSON)
	if !strings.HasPrefix(strings.TrimSpace(pathOrJSON), "{") {
		var err error
		if text, err = os.ReadFile(pathOrJSON); err != nil {
			return nil, fmt.Errorf("topo: %w", err)
		}
	}
	m, err := wire.DecodeMatrix(text)
	if err != nil {
		return nil, fmt.Errorf("topo: %w", err)
	}
	return m, nil
}

// Adopt makes a given matrix one of this process. Its locations are those of the host:
// its "cuda:5" is the sixth GPU of the host, and not of those that are visible here.
// The result has our own ordinals, and no NIC but those that are used. It fails if the
// matrix names a NIC that is not among known.
func Adopt(given Matrix, known, used []string, gpus []gpu.Info) (Matrix, error) {
	here := make(Matrix, len(given))
	for location, lists := range given {
		mine := [2][]string{{}, {}}
		for i, names := range lists {
			for _, name := range names {
				if !slices.Contains(known, name) {
					return nil, fmt.Errorf("NIC %q of location %q is not there: want some of %q: %w", name, location, known, nic.ErrNoDevice)
				}
				if slices.Contains(used, name) {
					mine[i] = append(mine[i], name)
				}
			}
		}
		here[location] = mine
	}
	if !slices.ContainsFunc(gpus, func(g gpu.Info) bool { return g.HostIndex >= 0 && g.HostIndex != g.Index }) {
		return here, nil
	}
	ours := make(Matrix, len(here))
	for location, lists := range here {
		if !strings.HasPrefix(location, cudaPrefix) {
			ours[location] = lists
		}
	}
	for _, g := range gpus {
		if lists, ok := here[Location(g.HostIndex)]; ok {
			ours[Location(g.Index)] = lists
		}
	}
	return ours, nil
}
