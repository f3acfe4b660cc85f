package wire

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Decoders must not panic, and what they accept must survive a round trip.

var fuzzSeeds = []string{
	goldenRequest, goldenTCP, goldenRDMA, "null", "{}", "[]", `"x"`, "",
	`{"name":"a","notify_msg":"b"}`,
	`{"railhop_fence":{"closed":1,"epoch":"00000000deadbeef","error":"","nonce":"n"}}`,
	`{"qp_num":[1.0,1e9,-1],"ready_ack":null,"railhop_relay":"0000000000000001"}`,
	`/**/{"a":[[[{}]]],// x` + "\n" + `"reply_msg":"\ud83d\ude00\u0000"}`,
	`{"cpu:0":[["a"],["b"]],"cuda:0":[["b"],["a"]]}`,
}

func FuzzReadFrame(f *testing.F) {
	for _, s := range fuzzSeeds {
		f.Add(AppendFrame(nil, Frame{Type: Metadata, Body: []byte(s)}))
		f.Add(AppendFrame(nil, Frame{Typeless: true, Body: []byte(s)}))
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte("\x16\x03\x01\x02\x00\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := ReadFrame(bytes.NewReader(b), 4096)
		if err != nil {
			return
		}
		if out := AppendFrame(nil, frame); !bytes.HasPrefix(b, out) {
			t.Errorf("read %q, wrote %q", b, out)
		}
	})
}

func FuzzDecodeHandShake(f *testing.F) {
	roundTrip(f, DecodeHandShake, AppendHandShake)
}

func FuzzDecodeNotification(f *testing.F) {
	roundTrip(f, DecodeNotification, AppendNotification)
}

func FuzzDecodeFenceRequest(f *testing.F) {
	roundTrip(f, DecodeFenceRequest, AppendFenceRequest)
}

func FuzzDecodeFenceReply(f *testing.F) {
	roundTrip(f, DecodeFenceReply, AppendFenceReply)
}

// roundTrip encodes what was decoded, twice: the first time repairs invalid
// UTF-8, the second must change nothing.
func roundTrip[T any](f *testing.F, decode func([]byte) (T, error), encode func([]byte, *T) []byte) {
	for _, s := range fuzzSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decode(b)
		if err != nil {
			checkTyped(t, err)
			return
		}
		text := encode(nil, &v)
		again, err := decode(text)
		if err != nil {
			t.Fatalf("own encoding %s: %v", text, err)
		}
		if got := encode(nil, &again); !bytes.Equal(got, text) {
			t.Errorf("second encoding %s, first %s", got, text)
		}
	})
}

func checkTyped(t *testing.T, err error) {
	t.Helper()
	var se *SyntaxError
	var fe *FieldError
	if !errors.As(err, &se) && !errors.As(err, &fe) && !errors.Is(err, ErrNoSegment) {
		t.Errorf("error of another kind: %v", err)
	}
	if len(err.Error()) > 4096+len("wire") {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

func FuzzDecodeSegmentDesc(f *testing.F) {
	for _, s := range fuzzSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := DecodeSegmentDesc(b)
		if err != nil {
			checkTyped(t, err)
			return
		}
		for _, buf := range d.Buffers {
			if buf.Name == "" || buf.Addr == 0 || buf.Length == 0 || buf.Addr+buf.Length < buf.Addr {
				t.Errorf("accepted buffer %+v", buf)
			}
			if n := len(buf.RKey); n > 0 && (n != len(d.Devices) || n != len(buf.LKey)) {
				t.Errorf("accepted %d keys for %d devices", n, len(d.Devices))
			}
		}
		text := AppendSegmentDesc(nil, d)
		again, err := DecodeSegmentDesc(text)
		if err != nil {
			t.Fatalf("own encoding %s: %v", text, err)
		}
		if got := AppendSegmentDesc(nil, again); !bytes.Equal(got, text) {
			t.Errorf("second encoding %s, first %s", got, text)
		}
	})
}

func FuzzDecodeMatrix(f *testing.F) {
	for _, s := range fuzzSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMatrix(b)
		if err != nil {
			checkTyped(t, err)
			return
		}
		seen := make(map[string]bool)
		for _, name := range DeviceOrder(m) {
			if seen[name] {
				t.Errorf("device %q is numbered twice", name)
			}
			seen[name] = true
		}
	})
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"10.1.2.3:1", "[fe80::1%eth0]:15440", "::1", "a@b", "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:07:01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if host, port, err := ParseServer(s, 12001); err == nil {
			h, p, err := ParseServer(ServerName(host, port), 1)
			if h != host || p != port || err != nil {
				t.Errorf("%q is %q, %d and reads back as %q, %d, %v", s, host, port, h, p, err)
			}
		}
		if gid, err := ParseGID(s); err == nil {
			again, err := ParseGID(FormatGID(gid))
			if diff := cmp.Diff(gid, again); diff != "" || err != nil {
				t.Error(err, diff)
			}
		}
		server, device := SplitNICPath(s)
		if device != "" && NICPath(server, device) != s {
			t.Errorf("NIC path %q splits into %q and %q", s, server, device)
		}
	})
}
