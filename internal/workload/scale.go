package workload

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// Scale tells how a workload was made to fit the machine. Layers are left out
// first, since that changes neither the sizes nor the pattern of spans; requests
// only if one layer of all is still too much.
type Scale struct {
	Layers, OfLayers     int
	Requests, OfRequests int
	Bytes, OfBytes       uint64 // what is sent, and what would be sent in full
	MaxBytes             uint64 // the limit of Bytes
	PoolBytes            uint64 // the limit of a rank's pools
	ForPools             bool   // it was the pools that asked for fewer layers
}

// Reduced reports whether anything was left out.
func (s Scale) Reduced() bool { return s.Layers < s.OfLayers || s.Requests < s.OfRequests }

// String is a sentence for a person.
func (s Scale) String() string {
	if !s.Reduced() {
		return fmt.Sprintf("All %d layers of %d requests are replayed: %s.", s.Layers, s.Requests, FormatBytes(s.Bytes))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Scaled down to %d of %d layers", s.Layers, s.OfLayers)
	if s.Requests < s.OfRequests {
		fmt.Fprintf(&b, " and the first %d of %d requests", s.Requests, s.OfRequests)
	}
	if s.ForPools {
		fmt.Fprintf(&b, ", so that the pools of a rank take at most %s", FormatBytes(s.PoolBytes))
	} else {
		fmt.Fprintf(&b, ", to move at most %s", FormatBytes(s.MaxBytes))
	}
	fmt.Fprintf(&b, ": %s in place of %s. Span sizes are those of the full model.", FormatBytes(s.Bytes), FormatBytes(s.OfBytes))
	return b.String()
}

// FormatBytes writes a size with a binary unit, rounded down to two decimals so
// that it never reads as more than it is.
func FormatBytes(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	e := (bits.Len64(n) - 1) / 10
	v := math.Floor(float64(n)/float64(uint64(1)<<(10*e))*100) / 100
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", v), "0"), "."), " ") + " " + [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}[e]
}

// fit lowers the number of layers, and if need be of requests, to the limits.
func (p *Plan) fit() error {
	o := &p.opts
	var perPage uint64 // bytes of a page and layer, over all flows
	for i := range p.flows {
		perPage += p.pageBytes(&p.flows[i])
	}
	layer := mul(p.pages(), perPage)
	s := Scale{
		OfLayers:   o.Model.Layers,
		Layers:     o.Model.Layers,
		OfRequests: len(p.jobs),
		OfBytes:    mul(layer, uint64(o.Model.Layers)),
		MaxBytes:   o.MaxBytes,
		PoolBytes:  o.PoolBytes,
	}
	if layer > 0 {
		s.Layers = int(min(uint64(s.Layers), max(1, o.MaxBytes/layer)))
	}
	poolLayer := minPages * p.rowBytes(max(p.srcHeads, p.dstHeads)) * uint64(o.Model.PageTokens*o.Model.pools())
	if o.PoolBytes < poolLayer {
		return fmt.Errorf("workload: pools of %s do not hold %d pages of one layer of %s; at least %s is needed",
			FormatBytes(o.PoolBytes), minPages, o.Model.Name, FormatBytes(poolLayer))
	}
	if most := o.PoolBytes / poolLayer; uint64(s.Layers) > most {
		s.Layers, s.ForPools = int(most), true
	}
	if layer > o.MaxBytes {
		sum := uint64(0)
		for i, j := range p.jobs {
			sum += mul(uint64(j.pages), perPage)
			if sum > o.MaxBytes {
				p.jobs = p.jobs[:i]
				break
			}
		}
		if len(p.jobs) == 0 {
			return fmt.Errorf("workload: the first request alone moves %s in one layer of %s; the limit is %s", FormatBytes(sum), o.Model.Name, FormatBytes(o.MaxBytes))
		}
	}
	s.Requests = len(p.jobs)
	s.Bytes = p.pages() * perPage * uint64(s.Layers)
	p.model.Layers, p.scale = s.Layers, s
	return nil
}

// mul multiplies, and stops at the largest number.
func mul(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi != 0 {
		return math.MaxUint64
	}
	return lo
}
