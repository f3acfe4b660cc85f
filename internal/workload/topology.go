package workload

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Mapping says on which rails the decode ranks lie. Prefill rank i is always on
// rail i.
type Mapping uint8

const (
	Aligned  Mapping = iota // decode rank j on rail j
	Rotated                 // decode rank j on rail j+1, the last on rail 0
	Shuffled                // in an order drawn from the seed, never that of Aligned
)

var mappingNames = [...]string{"aligned", "rotated", "shuffled"}

// MappingNames lists the names that [ParseMapping] takes.
func MappingNames() []string { return append([]string(nil), mappingNames[:]...) }

func (m Mapping) String() string {
	if int(m) < len(mappingNames) {
		return mappingNames[m]
	}
	return fmt.Sprintf("mapping %d", uint8(m))
}

// ParseMapping turns a name into a mapping. The error for an unknown name lists
// the valid ones.
func ParseMapping(name string) (Mapping, error) {
	for i, n := range mappingNames {
		if strings.EqualFold(n, name) {
			return Mapping(i), nil
		}
	}
	return 0, fmt.Errorf("workload: unknown mapping %q; valid are %s", name, strings.Join(mappingNames[:], ", "))
}

// Flow is a stream of heads from one rank to another.
type Flow struct {
	From, To         int // prefill rank, decode rank
	FromRail, ToRail int
	// Relay is the prefill rank on the rail of the receiver, -1 if the flow does
	// not cross rails or no prefill rank is there.
	Relay int

	srcHead, dstHead int // the first head of the flow, in each rank's own count
	heads            int
}

// Crosses reports whether the two ranks lie on different rails.
func (f *Flow) Crosses() bool { return f.FromRail != f.ToRail }

// shard is how many KV heads one rank of tp ranks holds.
func shard(m *Model, tp int) int { return max(1, m.KVHeads/tp) }

// firstHead is the first of them. Ranks beyond the number of heads hold copies.
func firstHead(m *Model, tp, rank int) int {
	if m.Latent {
		return 0
	}
	return rank * m.KVHeads / tp
}

// checkTP rejects sizes that can neither split nor replicate the heads evenly.
func checkTP(m *Model, side string, tp int) error {
	if tp < 1 || tp > MaxTP {
		return fmt.Errorf("workload: %s TP %d, valid is 1 to %d", side, tp, MaxTP)
	}
	if m.Latent || m.KVHeads%tp == 0 || tp%m.KVHeads == 0 {
		return nil
	}
	var valid []string
	for n := 1; n <= MaxTP; n++ {
		if m.KVHeads%n == 0 || n%m.KVHeads == 0 {
			valid = append(valid, fmt.Sprint(n))
		}
	}
	return fmt.Errorf("workload: %s TP %d can neither split nor replicate the %d KV heads of %s; valid are %s",
		side, tp, m.KVHeads, m.Name, strings.Join(valid, ", "))
}

// flows works out who sends which heads to whom. Of several prefill ranks that
// hold the same heads, the decode ranks take turns.
func flows(o *Options) ([]Flow, error) {
	m := &o.Model
	if err := checkTP(m, "prefill", o.PrefillTP); err != nil {
		return nil, err
	}
	if err := checkTP(m, "decode", o.DecodeTP); err != nil {
		return nil, err
	}
	rails, err := o.decodeRails()
	if err != nil {
		return nil, err
	}
	var all []Flow
	add := func(from, to, srcHead, dstHead, heads int) {
		f := Flow{From: from, To: to, FromRail: from, ToRail: rails[to], Relay: -1, srcHead: srcHead, dstHead: dstHead, heads: heads}
		if f.Crosses() && f.ToRail < o.PrefillTP {
			f.Relay = f.ToRail
		}
		all = append(all, f)
	}
	perSrc := shard(m, o.PrefillTP)
	copies := max(1, o.PrefillTP/m.KVHeads) // of each head, on the prefill side
	for to := range o.DecodeTP {
		if m.Latent {
			add(to*o.PrefillTP/o.DecodeTP, to, 0, 0, 1)
			continue
		}
		first := firstHead(m, o.DecodeTP, to)
		for head, end := first, first+shard(m, o.DecodeTP); head < end; {
			from := head/perSrc*copies + to%copies
			srcHead := head - firstHead(m, o.PrefillTP, from)
			heads := min(perSrc-srcHead, end-head)
			add(from, to, srcHead, head-first, heads)
			head += heads
		}
	}
	return all, nil
}

// decodeRails is the rail of each decode rank.
func (o *Options) decodeRails() ([]int, error) {
	need := max(o.PrefillTP, o.DecodeTP)
	n := o.Rails
	if n == 0 {
		n = need
	}
	if n < need || n > MaxTP {
		return nil, fmt.Errorf("workload: %d rails for prefill TP %d and decode TP %d: each rank of a host needs a rail of its own, valid is %d to %d",
			n, o.PrefillTP, o.DecodeTP, need, MaxTP)
	}
	rails := make([]int, n)
	for i := range rails {
		rails[i] = i
	}
	switch o.Mapping {
	case Aligned:
	case Rotated:
		for i := range rails {
			rails[i] = (i + 1) % n
		}
	case Shuffled:
		rnd := rand.New(rand.NewPCG(o.Seed, 0x7261696c73))
		for same := n > 1; same; {
			rnd.Shuffle(n, func(i, j int) { rails[i], rails[j] = rails[j], rails[i] })
			same = true
			for i, r := range rails[:o.DecodeTP] {
				same = same && r == i
			}
		}
	default:
		return nil, fmt.Errorf("workload: unknown mapping %d; valid are %s", o.Mapping, strings.Join(mappingNames[:], ", "))
	}
	return rails[:o.DecodeTP], nil
}
