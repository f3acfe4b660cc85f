// Package trace reads, writes and makes up traces of LLM serving in Mooncake's
// JSONL form: one request a line, with its arrival in milliseconds, its input and
// output lengths in tokens, and the ids of the 512-token blocks of its input.
// Equal ids are equal prefixes, so their keys and values can be reused.
//
//	{"timestamp": 3000, "input_length": 1300, "output_length": 52, "hash_ids": [0, 46, 47]}
//
// A [Reader] streams, and skips what it cannot use: a bad line is numbered and
// kept with its cause, and the rest is read on. A [Generator] draws requests of
// the same shape from a seed. What becomes of a request is not decided here.
//
// Values belong to one goroutine.
package trace

import (
	"fmt"
	"time"
)

// BlockTokens is how many tokens a hash id stands for.
const BlockTokens = 512

// MaxTokens bounds the lengths of a request, far above any model's context.
const MaxTokens = 1 << 24

// Request is one line of a trace.
type Request struct {
	Timestamp    int64    // arrival, milliseconds from the start of the trace
	InputLength  int      // tokens, at least 1
	OutputLength int      // tokens, may be 0
	HashIDs      []uint64 // one a block of the input; the last may be partly filled
}

// At is the arrival as a duration from the start of the trace.
func (r *Request) At() time.Duration { return time.Duration(r.Timestamp) * time.Millisecond }

// maxTimestamp is the latest arrival, in milliseconds, that a duration can hold.
const maxTimestamp = int64(1<<63-1) / int64(time.Millisecond)

// Validate says what is wrong with r as a line of a trace. The ids may leave out
// a last block that is not full: some recorders count full blocks only.
func (r *Request) Validate() error {
	switch {
	case r.Timestamp < 0 || r.Timestamp > maxTimestamp:
		return fmt.Errorf("timestamp %d is not between 0 and %d ms", r.Timestamp, maxTimestamp)
	case r.InputLength < 1 || r.InputLength > MaxTokens:
		return fmt.Errorf("input_length %d is not between 1 and %d tokens", r.InputLength, MaxTokens)
	case r.OutputLength < 0 || r.OutputLength > MaxTokens:
		return fmt.Errorf("output_length %d is not between 0 and %d tokens", r.OutputLength, MaxTokens)
	}
	full := r.InputLength / BlockTokens
	blocks := (r.InputLength + BlockTokens - 1) / BlockTokens
	if n := len(r.HashIDs); n != full && n != blocks {
		return fmt.Errorf("hash_ids has %d entries, but an input_length of %d tokens has %d blocks of %d", n, r.InputLength, blocks, BlockTokens)
	}
	return nil
}
