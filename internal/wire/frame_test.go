package wire

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

func TestFrameGolden(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bytes string
		frame Frame
	}{
		{"probe request", "\x03\x00\x00\x00\x00\x00\x00\x00\x03{}", Frame{Type: Probe, Body: []byte(ProbeRequest)}},
		{"probe reply", "\x16\x00\x00\x00\x00\x00\x00\x00\x03{\"status\":\"success\"}\n", Frame{Type: Probe, Body: []byte(ProbeReply)}},
		{"metadata request", "\x03\x00\x00\x00\x00\x00\x00\x00\x01{}", Frame{Type: Metadata, Body: []byte(MetadataRequest)}},
		{"notify reply", "\x24\x00\x00\x00\x00\x00\x00\x00\x02{\"name\":\"\",\"notify_msg\":\"success\"}\n",
			Frame{Type: Notify, Body: AppendNotification(nil, &Notification{Msg: NotifySuccess})}},
		{"fence", "\x03\x00\x00\x00\x00\x00\x00\x00\x70{}", Frame{Type: Fence, Body: []byte("{}")}},
		{"typeless", "\x02\x00\x00\x00\x00\x00\x00\x00{}", Frame{Typeless: true, Body: []byte("{}")}},
		{"type only", "\x01\x00\x00\x00\x00\x00\x00\x00\x00", Frame{Body: []byte{}}},
		{"unknown type reads as typeless", "\x03\x00\x00\x00\x00\x00\x00\x00\x04{}", Frame{Typeless: true, Body: []byte("\x04{}")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := string(AppendFrame(nil, tc.frame)); got != tc.bytes {
				t.Errorf("encoded %q, want %q", got, tc.bytes)
			}
			for _, r := range []io.Reader{strings.NewReader(tc.bytes), iotest.OneByteReader(strings.NewReader(tc.bytes))} {
				got, err := ReadFrame(r, DefaultMaxLength)
				if err != nil {
					t.Fatal(err)
				}
				if got.Type != tc.frame.Type || got.Typeless != tc.frame.Typeless || !bytes.Equal(got.Body, tc.frame.Body) {
					t.Errorf("decoded %+v, want %+v", got, tc.frame)
				}
			}
		})
	}
}

func TestFrameRefused(t *testing.T) {
	for _, tc := range []struct {
		name, bytes string
		problem     FrameProblem
		text        string
	}{
		{"length 0", "\x00\x00\x00\x00\x00\x00\x00\x00", EmptyFrame, "length 0"},
		{"over the limit by one", "\x01\x00\x10\x00\x00\x00\x00\x00", FrameTooLong, "1048577 bytes is over the reader's limit of 1048576 bytes: raise MC_HANDSHAKE_MAX_LENGTH"},
		{"HTTP GET", "GET / HTTP/1.1\r\n", HTTPProbe, "HTTP probe"},
		{"HTTP POST", "POST /a HTTP/1.1", HTTPProbe, "HTTP probe"},
		{"HTTP PUT", "PUT /metadata", HTTPProbe, "HTTP probe"},
		{"HTTP/2", "PRI * HTTP/2.0", HTTPProbe, "HTTP probe"},
		{"TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01", TLSProbe, "TLS probe"},
		{"SSH", "SSH-2.0-", FrameTooLong, "over the reader's limit"},
		{"type 0xff", "\x03\x00\x00\x00\x00\x00\x00\x00\xff{}", UnknownType, "unknown frame type 0xff"},
		{"type 0x80", "\x03\x00\x00\x00\x00\x00\x00\x00\x80{}", UnknownType, "unknown frame type 0x80"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ReadFrame(strings.NewReader(tc.bytes), DefaultMaxLength)
			var fe *FrameError
			if !errors.As(err, &fe) || fe.Problem != tc.problem || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error %v, want problem %d with %q", err, tc.problem, tc.text)
			}
		})
	}
}

func TestFrameCutOff(t *testing.T) {
	whole := string(AppendFrame(nil, Frame{Type: Probe, Body: []byte(ProbeReply)}))
	for n := range len(whole) {
		_, err := ReadFrame(strings.NewReader(whole[:n]), DefaultMaxLength)
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		if !errors.Is(err, want) {
			t.Errorf("%d bytes: error %v, want %v", n, err, want)
		}
	}
}

func TestFrameAtTheLimit(t *testing.T) {
	body := make([]byte, DefaultMaxLength-1)
	if err := CheckLength(body, DefaultMaxLength); err != nil {
		t.Error(err)
	}
	f, err := ReadFrame(bytes.NewReader(AppendFrame(nil, Frame{Type: Metadata, Body: body})), DefaultMaxLength)
	if err != nil || len(f.Body) != len(body) {
		t.Errorf("read %d bytes, %v, want %d", len(f.Body), err, len(body))
	}
	var fe *FrameError
	if err := CheckLength(append(body, 0), DefaultMaxLength); !errors.As(err, &fe) || fe.Length != DefaultMaxLength+1 {
		t.Errorf("one byte more: %v, want a FrameError", err)
	}
}

// An announced length alone must not cost memory.
func TestFrameAllocatesWhatArrives(t *testing.T) {
	head := "\x00\x00\x00\x08\x00\x00\x00\x00" // 128 MiB
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ReadFrame(io.MultiReader(strings.NewReader(head), bytes.NewReader(make([]byte, 1000))), HighestMaxLength)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v, want %v", err, io.ErrUnexpectedEOF)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("1000 bytes of an announced 128 MiB cost %d bytes of memory", got)
	}
}
