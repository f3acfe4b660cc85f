package topo

import (
	"fmt"
	"os"
	"slices"
	"strconv"
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

// Names are the NICs that a given matrix may name.
type Names struct {
	Known []string // those of the host; ports that are not Port as in "mlx5_0:2"
	Used  []string // those of them that are used
	Port  int      // the port that a name without one means
}

// Names are those of the machine's NICs, and of their ports.
func (m *Machine) Names(used []string, port int) Names {
	n := Names{Used: used, Port: port}
	for _, nic := range m.NICs {
		n.Known = append(n.Known, nic.Name)
		for _, p := range nic.Ports {
			if p.Num != port {
				n.Known = append(n.Known, nic.Name+":"+strconv.Itoa(p.Num))
			}
		}
	}
	return n
}

// find returns the NICs that are used of those that a name in a matrix means. A name
// without a port means all that are used of the device, if the port of such names is not
// one of them.
func (n Names) find(name string) (used []string, ok bool) {
	name = strings.TrimSuffix(name, ":"+strconv.Itoa(n.Port))
	switch {
	case !slices.Contains(n.Known, name):
		return nil, false
	case slices.Contains(n.Used, name):
		return []string{name}, true
	}
	for _, u := range n.Used {
		if strings.HasPrefix(u, name+":") {
			used = append(used, u)
		}
	}
	return used, true
}

// Adopt makes a given matrix one of this process. Its locations are those of the host:
// its "cuda:5" is the sixth GPU of the host, and not of those that are visible here.
// The result has our own ordinals, and no NIC but those that are used. It fails if the
// matrix names a NIC, or a port of one, that the host does not have.
func Adopt(given Matrix, names Names, gpus []gpu.Info) (Matrix, error) {
	here := make(Matrix, len(given))
	for location, lists := range given {
		mine := [2][]string{{}, {}}
		for i, list := range lists {
			for _, name := range list {
				used, ok := names.find(name)
				if !ok {
					return nil, fmt.Errorf("NIC %q of location %q is not there: want some of %q: %w", name, location, names.Known, nic.ErrNoDevice)
				}
				for _, u := range used {
					if !slices.Contains(mine[i], u) {
						mine[i] = append(mine[i], u)
					}
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
