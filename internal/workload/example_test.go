package workload_test

import (
	"fmt"

	"github.com/railhop/railhop/internal/pattern"
	"github.com/railhop/railhop/internal/trace"
	"github.com/railhop/railhop/internal/workload"
)

// The senders fill their buffers once. The receivers compare what each batch has
// brought before they allow a chunk that overwrites it.
func Example() {
	model, err := workload.ModelByName("tiny")
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, err := workload.New(workload.Options{
		Model: model, PrefillTP: 4, DecodeTP: 2, Mapping: workload.Rotated,
		Requests: trace.Generate(1, 10), PoolBytes: 256 << 10,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(plan.Scale())

	prefill := make([][]byte, 4)
	for rank := range prefill {
		prefill[rank] = make([]byte, plan.PrefillBytes())
		pattern.Fill(prefill[rank], plan.ContentSeed(rank), 0)
	}
	decode := [][]byte{make([]byte, plan.DecodeBytes()), make([]byte, plan.DecodeBytes())}
	var checked, mismatched int
	var b workload.Batch
	for it := plan.Batches(); it.Next(&b); {
		for _, s := range b.Spans { // a transfer engine's work
			copy(decode[b.To][s.Dst:s.Dst+s.Length], prefill[b.From][s.Src:])
		}
		for _, s := range b.Spans {
			_, n := pattern.Mismatch(decode[b.To][s.Dst:s.Dst+s.Length], plan.ContentSeed(b.From), s.Src)
			checked, mismatched = checked+int(s.Length), mismatched+n
		}
	}
	fmt.Println(checked, "bytes,", mismatched, "differ")
	for _, f := range plan.Flows() {
		fmt.Println("rank", f.From, "to", f.To, "rail", f.FromRail, "to", f.ToRail, "relay", f.Relay)
	}
	// Output:
	// All 2 layers of 10 requests are replayed: 30.38 MiB.
	// 31865856 bytes, 0 differ
	// rank 0 to 0 rail 0 to 1 relay 1
	// rank 1 to 0 rail 1 to 1 relay -1
	// rank 2 to 1 rail 2 to 2 relay -1
	// rank 3 to 1 rail 3 to 2 relay 2
}
