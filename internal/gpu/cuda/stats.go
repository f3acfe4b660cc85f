package cuda

import "sync/atomic"

type stats struct {
	launches, spans, engineCopies, tableFull atomic.Int64
}

// Stats says which ways copies of a device's streams have gone.
type Stats struct {
	Launches     int64 // of the gather kernel, to copy
	Spans        int64 // in them
	EngineCopies int64 // by copy engines
	// TableFull counts batches that went to copy engines because there was no kernel,
	// or too much underway for it.
	TableFull int64
}

// Stats returns the device's counters.
func (h *Device) Stats() Stats {
	s := &h.d.stats
	return Stats{
		Launches: s.launches.Load(), Spans: s.spans.Load(),
		EngineCopies: s.engineCopies.Load(), TableFull: s.tableFull.Load(),
	}
}
