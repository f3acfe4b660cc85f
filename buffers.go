package railhop

import (
	"fmt"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// Buffers lists the memory that a target offers to its peers, in the order in
// which it was registered, as far as it is known here: it is asked for when the
// segment is opened, and again when a transfer goes elsewhere.
func (e *Engine) Buffers(target SegmentID) ([]Region, error) {
	r := e.cache.Get(target)
	if r == nil {
		return nil, fmt.Errorf("railhop: buffers of segment %d: it is not open: %w", target, xfer.ErrInvalidArgument)
	}
	d := r.Desc()
	var all []Region
	for i := range d.Buffers {
		if b := &d.Buffers[i]; len(b.RKey) > 0 || d.Protocol == wire.ProtocolTCP {
			all = append(all, Region{Addr: b.Addr, Length: b.Length, Location: b.Name})
		}
	}
	return all, nil
}
