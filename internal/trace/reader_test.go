package trace

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

const good = `{"timestamp": 27482, "input_length": 1300, "output_length": 52, "hash_ids": [0, 46, 47]}`

func TestBadLinesAreNumberedAndSkipped(t *testing.T) {
	for _, tc := range []struct {
		name, line, cause string
	}{
		{"not JSON", `timestamp,input_length`, "not JSON"},
		{"cut off", good[:40], "not JSON: unexpected end of JSON input"},
		{"two objects", good + good, "not JSON: invalid character '{' after top-level value"},
		{"a list", `[1, 2]`, "a JSON array, not an object"},
		{"null", `null`, "timestamp is missing"},
		{"no timestamp", `{"input_length": 5, "output_length": 1, "hash_ids": [1]}`, "timestamp is missing"},
		{"no input length", `{"timestamp": 5, "output_length": 1, "hash_ids": [1]}`, "input_length is missing"},
		{"no output length", `{"timestamp": 5, "input_length": 5, "hash_ids": [1]}`, "output_length is missing"},
		{"no hashes", `{"timestamp": 5, "input_length": 5, "output_length": 1}`, "hash_ids is missing"},
		{"negative timestamp", `{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": [1]}`, "timestamp -1 is not between 0 and"},
		{"huge timestamp", `{"timestamp": 1e300, "input_length": 5, "output_length": 1, "hash_ids": [1]}`, "timestamp 1e+300 is not between 0 and"},
		{"timestamp is text", `{"timestamp": "now", "input_length": 5, "output_length": 1, "hash_ids": [1]}`, "timestamp is a string, not a number of milliseconds"},
		{"no input", `{"timestamp": 1, "input_length": 0, "output_length": 1, "hash_ids": []}`, "input_length 0 is not between 1 and 16777216 tokens"},
		{"input too long", `{"timestamp": 1, "input_length": 16777217, "output_length": 1, "hash_ids": []}`, "input_length 16777217 is not between"},
		{"input is a fraction", `{"timestamp": 1, "input_length": 1.5, "output_length": 1, "hash_ids": [1]}`, "input_length is a number 1.5, not a whole number"},
		{"negative output", `{"timestamp": 1, "input_length": 1, "output_length": -4, "hash_ids": [1]}`, "output_length -4 is not between 0 and"},
		{"negative id", `{"timestamp": 1, "input_length": 1, "output_length": 4, "hash_ids": [-1]}`, "hash_ids is a number -1, not a whole number"},
		{"ids are no list", `{"timestamp": 1, "input_length": 1, "output_length": 4, "hash_ids": "x"}`, "hash_ids is a string, not a list of block ids"},
		{"too few ids", `{"timestamp": 1, "input_length": 1300, "output_length": 4, "hash_ids": [1]}`, "hash_ids has 1 entries, but an input_length of 1300 tokens has 3 blocks of 512"},
		{"too many ids", `{"timestamp": 1, "input_length": 1300, "output_length": 4, "hash_ids": [1,2,3,4]}`, "hash_ids has 4 entries"},
		{"too long", `{"timestamp": ` + strings.Repeat("1", MaxLine) + `}`, "longer than 1048576 bytes"},
		{"binary", "\x1f\x8b\x08\x00\xff", "not JSON"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, sum, err := ReadAll(strings.NewReader(good+"\n"+tc.line+"\n"+good+"\n"), 0)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 2 || sum.Lines != 3 || sum.Requests != 2 || sum.Skipped != 1 || len(sum.First) != 1 {
				t.Fatalf("got %d requests and %+v, want the two good lines and one bad one", len(got), sum)
			}
			if bad := sum.First[0]; bad.Line != 2 || !strings.Contains(bad.Cause.Error(), tc.cause) {
				t.Errorf("got %q, want line 2 and a cause with %q", bad.Error(), tc.cause)
			}
		})
	}
}

func TestReaderAccepts(t *testing.T) {
	want := Request{Timestamp: 27482, InputLength: 1300, OutputLength: 52, HashIDs: []uint64{0, 46, 47}}
	full := want
	full.HashIDs = want.HashIDs[:2]
	for _, tc := range []struct {
		name, in string
		want     []Request
	}{
		{"no newline at the end", good, []Request{want}},
		{"CRLF", good + "\r\n" + good + "\r\n", []Request{want, want}},
		{"blank lines", "\n \n" + good + "\n\n", []Request{want}},
		{"byte order mark", "\xef\xbb\xbf" + good, []Request{want}},
		{"members it does not know", strings.Replace(good, "{", `{"model": {"a": [1]}, `, 1), []Request{want}},
		{"fraction of a millisecond", strings.Replace(good, "27482", "27482.75", 1), []Request{want}},
		{"full blocks only", strings.Replace(good, ", 47", "", 1), []Request{full}},
		{"as long as may be", good + strings.Repeat(" ", MaxLine-len(good)), []Request{want}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// One byte a read: a line may come in any pieces.
			got, sum, err := ReadAll(iotest.OneByteReader(strings.NewReader(tc.in)), 0)
			if err != nil || sum.Skipped != 0 {
				t.Fatalf("error %v, skipped %v", err, sum.First)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReadAllOrdersAndLimits(t *testing.T) {
	at := func(ms string) string { return strings.Replace(good, "27482", ms, 1) + "\n" }
	in := at("30") + at("10") + at("20") + at("5")
	got, sum, err := ReadAll(strings.NewReader(in), 3)
	if err != nil {
		t.Fatal(err)
	}
	var order []int64
	for _, r := range got {
		order = append(order, r.Timestamp)
	}
	if diff := cmp.Diff([]int64{10, 20, 30}, order); diff != "" {
		t.Error(diff)
	}
	if sum.Lines != 3 {
		t.Errorf("read %d lines for a limit of 3", sum.Lines)
	}
}

func TestReadAllWithoutRequests(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"empty", "", "trace: no usable request: the input is empty"},
		{"rubbish", "a\nb\n", "trace: no usable request in 2 lines: line 1: not JSON: invalid character 'a' looking for beginning of value"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := ReadAll(strings.NewReader(tc.in), 0)
			if !errors.Is(err, ErrNoRequests) || err.Error() != tc.want {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestRubbishIsCountedNotKept(t *testing.T) {
	in := strings.Repeat("rubbish\n", 5000) + good
	got, sum, err := ReadAll(strings.NewReader(in), 0)
	if err != nil || len(got) != 1 || sum.Skipped != 5000 || len(sum.First) != maxKept {
		t.Errorf("got %d requests, %d skipped, %d kept, error %v; want 1, 5000, %d, none", len(got), sum.Skipped, len(sum.First), err, maxKept)
	}
}

func TestLongLineIsNotBuffered(t *testing.T) {
	r := NewReader(io.MultiReader(io.LimitReader(zeros{}, 64<<20), strings.NewReader("\n"+good)))
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if c := cap(r.line); c > 4*MaxLine {
		t.Errorf("a line of 64 MiB left a buffer of %d bytes", c)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func TestReaderReportsAFailingSource(t *testing.T) {
	cause := errors.New("disk gone")
	_, _, err := ReadAll(io.MultiReader(strings.NewReader(good+"\n"), iotest.ErrReader(cause)), 0)
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "read line 2") {
		t.Errorf("got %v, want the cause and line 2", err)
	}
}

func TestWriterMatchesMooncakeByteForByte(t *testing.T) {
	in := good + "\n" + `{"timestamp": 0, "input_length": 6, "output_length": 0, "hash_ids": []}` + "\n"
	got, _, err := ReadAll(strings.NewReader(in), 0)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := NewWriter(&out)
	for _, r := range []Request{got[1], got[0]} { // ReadAll has ordered them
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestWriterRefusesWhatAReaderWouldSkip(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	if err := w.Write(Request{InputLength: 1300, HashIDs: []uint64{1}}); err == nil || !strings.Contains(err.Error(), "3 blocks") {
		t.Errorf("got %v, want an error about blocks", err)
	}
	if err := w.Flush(); err != nil || out.Len() != 0 {
		t.Errorf("wrote %q, error %v", out.String(), err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(good + "\r\n\n{}\n" + good))
	f.Add([]byte(`{"timestamp": 1e3, "input_length": 512, "output_length": 1, "hash_ids": [18446744073709551615]}`))
	f.Add([]byte("\xef\xbb\xbf[null]\n\"x\""))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		var all []Request
		for {
			req, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := req.Validate(); err != nil {
				t.Fatalf("returned a bad request: %v", err)
			}
			all = append(all, req)
		}
		sum := r.Summary()
		if sum.Requests != len(all) || sum.Requests+sum.Skipped > sum.Lines {
			t.Fatalf("%d requests, but %+v", len(all), sum)
		}
		var out bytes.Buffer
		w := NewWriter(&out)
		for _, req := range all {
			if err := w.Write(req); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		again := NewReader(&out)
		for i, want := range all {
			got, err := again.Next()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("request %d changed: %s", i, diff)
			}
		}
	})
}
