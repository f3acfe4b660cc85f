package cli

import (
	"context"
	"time"

	"github.com/railhop/railhop/internal/fabric"
	"github.com/railhop/railhop/internal/worker"
)

// idleUse is what processes use that have nothing to do.
type idleUse struct {
	cpu   map[string]float64 // percent of a core, by process
	most  float64
	parks float64 // a second, of the busiest pump
}

// watchIdle measures what ranks use over some time.
func watchIdle(ctx context.Context, ranks []*fabric.Rank, seconds float64) (idleUse, error) {
	use := idleUse{cpu: make(map[string]float64)}
	before := make([]worker.Usage, len(ranks))
	for i, r := range ranks {
		var err error
		if before[i], err = r.Usage(ctx); err != nil {
			return use, err
		}
	}
	timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return use, context.Cause(ctx)
	}
	for i, r := range ranks {
		after, err := r.Usage(ctx)
		if err != nil {
			return use, err
		}
		wall := float64(after.Now - before[i].Now)
		cpu := 100 * float64(after.CPU-before[i].CPU) / wall
		use.cpu[r.Name] = cpu
		use.most = max(use.most, cpu)
		use.parks = max(use.parks, float64(after.Parks-before[i].Parks)/(wall/1e9))
	}
	return use, nil
}
