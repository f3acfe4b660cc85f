package trace

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
)

// Writer writes requests as lines of a trace, spaced as Mooncake spaces them.
type Writer struct {
	dst *bufio.Writer
	buf []byte
}

// NewWriter returns a writer to dst. It buffers: end with [Writer.Flush].
func NewWriter(dst io.Writer) *Writer { return &Writer{dst: bufio.NewWriter(dst)} }

// Write appends one request. It refuses what a [Reader] would skip.
func (w *Writer) Write(r Request) error {
	if err := r.Validate(); err != nil {
		return fmt.Errorf("trace: write request: %w", err)
	}
	b := append(w.buf[:0], `{"timestamp": `...)
	b = strconv.AppendInt(b, r.Timestamp, 10)
	b = append(b, `, "input_length": `...)
	b = strconv.AppendInt(b, int64(r.InputLength), 10)
	b = append(b, `, "output_length": `...)
	b = strconv.AppendInt(b, int64(r.OutputLength), 10)
	b = append(b, `, "hash_ids": [`...)
	for i, id := range r.HashIDs {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendUint(b, id, 10)
	}
	w.buf = append(b, "]}\n"...)
	if _, err := w.dst.Write(w.buf); err != nil {
		return fmt.Errorf("trace: write request: %w", err)
	}
	return nil
}

// Flush writes out what is buffered.
func (w *Writer) Flush() error {
	if err := w.dst.Flush(); err != nil {
		return fmt.Errorf("trace: write: %w", err)
	}
	return nil
}
