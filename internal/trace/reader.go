package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// MaxLine is the longest line, in bytes, that a [Reader] takes: some fifty times
// what a request of a million tokens needs.
const MaxLine = 1 << 20

// maxKept is how many bad lines a report keeps with their causes. The rest are
// counted: a file that is no trace at all must not fill the memory.
const maxKept = 20

// BadLine is a line that was skipped.
type BadLine struct {
	Line  int // counted from 1
	Cause error
}

func (b BadLine) Error() string { return fmt.Sprintf("line %d: %v", b.Line, b.Cause) }

func (b BadLine) Unwrap() error { return b.Cause }

// Summary tells what a [Reader] has met so far.
type Summary struct {
	Lines    int       // lines read, blank ones included
	Requests int       // requests returned
	Skipped  int       // bad lines
	First    []BadLine // the first bad lines, at most 20
}

// ErrNoRequests is returned when a whole input holds no usable request.
var ErrNoRequests = errors.New("no usable request")

// Reader reads requests from a trace, line by line.
type Reader struct {
	src  *bufio.Reader
	line []byte
	sum  Summary
}

// NewReader returns a reader of src. It buffers, and keeps no more than one line.
func NewReader(src io.Reader) *Reader {
	return &Reader{src: bufio.NewReaderSize(src, 64<<10)}
}

// Next returns the next usable request. Bad lines on the way to it are skipped
// and noted in [Reader.Summary]; blank ones are ignored. It returns io.EOF after
// the last request, and any other error only if the source fails.
func (r *Reader) Next() (Request, error) {
	for {
		line, err := r.readLine()
		if err != nil && err != io.EOF && !errors.Is(err, errLongLine) {
			return Request{}, fmt.Errorf("trace: read line %d: %w", r.sum.Lines+1, err)
		}
		if err == io.EOF && len(line) == 0 {
			return Request{}, io.EOF
		}
		r.sum.Lines++
		if r.sum.Lines == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		if line = bytes.TrimSpace(line); len(line) == 0 && err == nil {
			continue
		}
		if errors.Is(err, errLongLine) {
			r.skip(err)
			continue
		}
		req, err := parse(line)
		if err != nil {
			r.skip(err)
			continue
		}
		r.sum.Requests++
		return req, nil
	}
}

// Summary tells what has been read and skipped so far.
func (r *Reader) Summary() Summary {
	s := r.sum
	s.First = slices.Clone(s.First)
	return s
}

func (r *Reader) skip(cause error) {
	r.sum.Skipped++
	if len(r.sum.First) < maxKept {
		r.sum.First = append(r.sum.First, BadLine{Line: r.sum.Lines, Cause: cause})
	}
}

var errLongLine = fmt.Errorf("longer than %d bytes", MaxLine)

// readLine returns the next line without its end. Of a line that is too long it
// reads all and keeps nothing. At the end of the source it returns what is left
// together with io.EOF.
func (r *Reader) readLine() ([]byte, error) {
	r.line = r.line[:0]
	long := false
	for {
		part, err := r.src.ReadSlice('\n')
		if !long {
			r.line = append(r.line, part...)
		}
		if len(r.line) > MaxLine+len("\r\n") {
			long, r.line = true, r.line[:0]
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if long && (err == nil || err == io.EOF) {
			return nil, errLongLine
		}
		return r.line, err
	}
}

// record is a line as it is written. Pointers tell a missing member from a zero.
type record struct {
	Timestamp    *float64  `json:"timestamp"` // some recorders write fractions
	InputLength  *int      `json:"input_length"`
	OutputLength *int      `json:"output_length"`
	HashIDs      *[]uint64 `json:"hash_ids"`
}

// parse reads one line. Members that it does not know are ignored.
func parse(line []byte) (Request, error) {
	var rec record
	if err := json.Unmarshal(line, &rec); err != nil {
		return Request{}, explain(err)
	}
	for _, m := range []struct {
		name    string
		missing bool
	}{
		{"timestamp", rec.Timestamp == nil},
		{"input_length", rec.InputLength == nil},
		{"output_length", rec.OutputLength == nil},
		{"hash_ids", rec.HashIDs == nil},
	} {
		if m.missing {
			return Request{}, fmt.Errorf("%s is missing", m.name)
		}
	}
	ms := math.Floor(*rec.Timestamp)
	if !(ms >= 0 && ms <= float64(maxTimestamp)) {
		return Request{}, fmt.Errorf("timestamp %v is not between 0 and %d ms", *rec.Timestamp, maxTimestamp)
	}
	req := Request{
		Timestamp:    int64(ms),
		InputLength:  *rec.InputLength,
		OutputLength: *rec.OutputLength,
		HashIDs:      *rec.HashIDs,
	}
	if err := req.Validate(); err != nil {
		return Request{}, err
	}
	return req, nil
}

// explain puts the errors of encoding/json into a reader's words.
func explain(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		if typ.Field == "" {
			return fmt.Errorf("a JSON %s, not an object", typ.Value)
		}
		want := "a whole number of at least 0"
		if typ.Field == "hash_ids" && typ.Type.Kind().String() == "slice" {
			want = "a list of block ids"
		} else if typ.Field == "timestamp" {
			want = "a number of milliseconds"
		}
		return fmt.Errorf("%s is a %s, not %s", typ.Field, typ.Value, want)
	}
	return fmt.Errorf("not JSON: %w", err)
}

// ReadAll reads up to limit requests, all if limit is 0, in the order of their
// arrival: a line that lies before its predecessor in time is moved up. It fails
// with [ErrNoRequests] if the source has lines but no usable one, or none at all.
func ReadAll(src io.Reader, limit int) ([]Request, Summary, error) {
	r := NewReader(src)
	var all []Request
	for limit <= 0 || len(all) < limit {
		req, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, r.Summary(), err
		}
		all = append(all, req)
	}
	sum := r.Summary()
	if len(all) == 0 {
		if len(sum.First) > 0 {
			return nil, sum, fmt.Errorf("trace: %w in %d lines: %w", ErrNoRequests, sum.Lines, sum.First[0])
		}
		return nil, sum, fmt.Errorf("trace: %w: the input is empty", ErrNoRequests)
	}
	slices.SortStableFunc(all, func(a, b Request) int { return int(min(max(a.Timestamp-b.Timestamp, -1), 1)) })
	return all, sum, nil
}
