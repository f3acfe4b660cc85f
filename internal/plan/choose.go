package plan

import (
	"slices"

	"github.com/railhop/railhop/internal/shmabi"
	"github.com/railhop/railhop/internal/xfer"
)

// Source is what the driver says of a task's source.
type Source uint8

const (
	NotGPU   Source = iota // host memory, or not wholly inside a registered buffer
	OwnGPU                 // memory of this rank's GPU
	OtherGPU               // memory of another
)

// Task is what decides the way of a task.
type Task struct {
	Op      xfer.Opcode
	Length  uint64
	Source  Source
	Session int // length of the target segment's own name, in bytes
	// Rails are those of the devices that serve the target range, preferred ones
	// first; the first Preferred of them are preferred.
	Rails     []string
	Preferred int
}

// Choose returns the rail that a relay should send the task on, or why it goes
// direct. own is the rank's own rails.
func Choose(t Task, own []string) (rail string, why xfer.Reason) {
	switch {
	case t.Length == 0:
		return "", xfer.ZeroLength
	case t.Op != xfer.Write:
		return "", xfer.NotWrite
	case t.Source == OtherGPU:
		return "", xfer.OtherGPU
	case t.Source != OwnGPU:
		return "", xfer.SourceNotGPU
	case t.Session == 0 || t.Session > shmabi.MaxSession:
		return "", xfer.NoSegmentName
	case len(t.Rails) == 0:
		return "", xfer.NoTargetDevice
	}
	best := t.Rails
	if t.Preferred > 0 {
		best = best[:min(t.Preferred, len(best))]
	}
	for _, r := range best {
		if slices.Contains(own, r) {
			return r, xfer.SameRail
		}
	}
	return best[0], xfer.NoReason
}
