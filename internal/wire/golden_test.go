package wire

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ptr[T any](v T) *T { return &v }

// Messages seen on the wire between C++ nodes.
const (
	goldenRequest = `{"local_gid":"00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:07:01","local_lid":17,` +
		`"local_nic_path":"127.0.0.1:15030@fake0","payload":"",` +
		`"peer_nic_path":"127.0.0.1:18101@gA","qp_num":[69001,69003],` +
		`"ready_ack":false,"reply_msg":""}` + "\n"
	goldenTCP = `{"buffers":[{"addr":140401344249856,"length":100663296,"name":"127.0.0.1:16469"}],` +
		`"name":"127.0.0.1:16469","protocol":"tcp","tcp_data_port":15091,` +
		`"tcp_proto_version":2,"timestamp":"2026-11-30 19:42:36.827407"}` + "\n"
	goldenRDMA = `{"buffers":[{"addr":140435733348352,"length":100663296,"lkey":[4097,4098],` +
		`"name":"cpu:0","rkey":[69633,69634]}],` +
		`"devices":[{"gid":"00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:07:01","lid":17,"name":"fake0"},` +
		`{"gid":"00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:07:02","lid":18,"name":"fake1"}],` +
		`"name":"127.0.0.1:16848",` +
		`"priority_matrix":{"cpu:0":[["fake0","fake1"],[]],"cuda:0":[["fake0"],["fake1"]]},` +
		`"protocol":"rdma","tcp_data_port":0,"tcp_proto_version":1,` +
		`"timestamp":"2026-11-30 19:47:34.164174"}` + "\n"
)

func TestHandShakeGolden(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		value      HandShake
	}{
		{"request", goldenRequest, HandShake{
			LocalNICPath: "127.0.0.1:15030@fake0", PeerNICPath: "127.0.0.1:18101@gA",
			LocalLID: 17, LocalGID: "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:07:01",
			QPNum: []uint32{69001, 69003}, ReadyAck: ptr(false),
		}},
		{
			"empty", `{"local_gid":"","local_lid":0,"local_nic_path":"","payload":"","peer_nic_path":"","qp_num":[],"reply_msg":""}` + "\n",
			HandShake{},
		},
		{
			"relay's second phase", `{"local_gid":"","local_lid":65535,"local_nic_path":"a@b","payload":"p","peer_nic_path":"c@d",` +
				`"qp_num":[4294967295],"railhop_relay":"00000000deadbeef","ready_ack":true,"reply_msg":"no"}` + "\n",
			HandShake{
				LocalNICPath: "a@b", PeerNICPath: "c@d", LocalLID: 65535, QPNum: []uint32{1<<32 - 1},
				ReadyAck: ptr(true), ReplyMsg: "no", Payload: "p", RelayEpoch: 0xdeadbeef,
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := string(AppendHandShake(nil, &tc.value)); got != tc.text {
				t.Errorf("encoded\n got %s\nwant %s", got, tc.text)
			}
			got, err := DecodeHandShake([]byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.value, got); diff != "" {
				t.Error("decoded (-want +got):\n", diff)
			}
		})
	}
}

func TestHandShakeDecodesLiberally(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       HandShake
	}{
		{"null body", "null", HandShake{}},
		{"nulls", `{"local_gid":null,"local_lid":null,"qp_num":null,"reply_msg":null}`, HandShake{}},
		{"integers as floats", `{"local_lid":17.0,"qp_num":[1.0,2e3]}`, HandShake{LocalLID: 17, QPNum: []uint32{1, 2000}}},
		{"number for a string", `{"reply_msg":12}`, HandShake{ReplyMsg: "12"}},
		{"lid as a string", `{"local_lid":"17"}`, HandShake{}},
		{"ready_ack as a string", `{"ready_ack":"true"}`, HandShake{ReadyAck: ptr(false)}},
		{"ready_ack null", `{"ready_ack":null}`, HandShake{ReadyAck: ptr(false)}},
		{"unknown members", `{"efa_addr":{"a":[1,{}]},"notify_qp_num":7,"reply_msg":"x"}`, HandShake{ReplyMsg: "x"}},
		{"repeated member", `{"qp_num":[1],"qp_num":[2]}`, HandShake{QPNum: []uint32{2}}},
		{"comments and trailing bytes", "/* a */ {\"reply_msg\" : // b\n \"x\" } rest", HandShake{ReplyMsg: "x"}},
		{"comma before the bracket", `{"qp_num":[1,],}`, HandShake{QPNum: []uint32{1}}},
		{"escapes", `{"reply_msg":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\ud800é"}`, HandShake{ReplyMsg: "\"\\/\b\f\n\r\té😀\ufffdé"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := DecodeHandShake([]byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error("(-want +got):\n", diff)
			}
		})
	}
}

func TestHandShakeRefuses(t *testing.T) {
	deep := strings.Repeat("[", 2000)
	for _, tc := range []struct {
		name, text string
		want       string // in the error; "" is a SyntaxError
	}{
		{"empty", "", ""},
		{"not JSON", "hello", ""},
		{"cut off", goldenRequest[:90], ""},
		{"string without an end", `{"reply_msg":"x`, ""},
		{"escape without an end", `{"reply_msg":"\`, ""},
		{"bad escape", `{"reply_msg":"\x"}`, ""},
		{"two signs", `{"local_lid":1--2}`, ""},
		{"too deep", `{"x":` + deep, ""},
		{"array body", "[1,2]", "body is [1,2], want an object"},
		{"string body", `"x"`, `body is "x", want an object`},
		{"qp_num string", `{"qp_num":["7"]}`, `qp_num[0] is "7", want an integer from 0 to 4294967295`},
		{"qp_num negative", `{"qp_num":[1,-7]}`, "qp_num[1] is -7, want an integer"},
		{"qp_num too big", `{"qp_num":[4294967296]}`, "qp_num[0] is 4294967296"},
		{"qp_num fraction", `{"qp_num":[1.5]}`, "qp_num[0] is 1.5"},
		{"qp_num object", `{"qp_num":{"a":1}}`, `qp_num is {"a":1}, want an array`},
		{"qp_num number", `{"qp_num":7}`, "qp_num is 7, want an array"},
		{"qp_num too many", `{"qp_num":[` + strings.Repeat("1,", MaxQPs) + `1]}`, "want at most 4096 elements"},
		{"path object", `{"local_nic_path":{}}`, "local_nic_path is {}, want a string"},
		{"path array", `{"peer_nic_path":["a"]}`, `peer_nic_path is ["a"], want a string`},
		{"path bool", `{"peer_nic_path":true}`, "peer_nic_path is true"},
		{"lid too big", `{"local_lid":65536}`, "local_lid is 65536, want an integer from 0 to 65535"},
		{"epoch short", `{"railhop_relay":"12"}`, `railhop_relay is "12", want 16 hex digits`},
		{"value is binary", "{\"local_nic_path\":[\"\x00\xff\"]}", `local_nic_path is "[\"\x00\xff\"]"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := DecodeHandShake([]byte(tc.text))
			checkRefusal(t, err, tc.want)
		})
	}
}

// checkRefusal wants a FieldError whose text holds want, or a SyntaxError.
func checkRefusal(t *testing.T, err error, want string) {
	t.Helper()
	var se *SyntaxError
	var fe *FieldError
	switch {
	case want == "" && !errors.As(err, &se):
		t.Errorf("error %v, want a SyntaxError", err)
	case want != "" && (!errors.As(err, &fe) || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want a FieldError with %q", err, want)
	}
}

func TestSmallGolden(t *testing.T) {
	n := Notification{Msg: NotifySuccess}
	if got, want := string(AppendNotification(nil, &n)), "{\"name\":\"\",\"notify_msg\":\"success\"}\n"; got != want {
		t.Errorf("notification %q, want %q", got, want)
	}
	q := FenceRequest{Epoch: 0x1234, Nonce: "n"}
	text := AppendFenceRequest(nil, &q)
	if got, want := string(text), `{"railhop_fence":{"epoch":"0000000000001234","nonce":"n"}}`+"\n"; got != want {
		t.Errorf("fence request %q, want %q", got, want)
	}
	if got, err := DecodeFenceRequest(text); err != nil || got != q {
		t.Errorf("fence request %+v, %v, want %+v", got, err, q)
	}
	p := FenceReply{Epoch: 1<<64 - 1, Nonce: "n", Closed: 3, Error: "slow"}
	text = AppendFenceReply(nil, &p)
	if got, want := string(text), `{"railhop_fence":{"closed":3,"epoch":"ffffffffffffffff","error":"slow","nonce":"n"}}`+"\n"; got != want {
		t.Errorf("fence reply %q, want %q", got, want)
	}
	if got, err := DecodeFenceReply(text); err != nil || got != p {
		t.Errorf("fence reply %+v, %v, want %+v", got, err, p)
	}
	for _, bad := range []string{"null", "{}", `{"railhop_fence":{"nonce":"x"}}`, `{"railhop_fence":7}`, `{"railhop_fence":{"epoch":"0000000000000000"}}`} {
		if _, err := DecodeFenceRequest([]byte(bad)); err == nil {
			t.Errorf("fence request %s is accepted", bad)
		}
	}
}

func TestStringsAreASCIIOnTheWire(t *testing.T) {
	const in, want = "a\"\\/\b\f\n\r\t\x00\x1f\x7fé😀\xff", `"a\"\\/\b\f\n\r\t\u0000\u001f` + "\x7f" + `\u00e9\ud83d\ude00\ufffd"`
	if got := string(appendString(nil, in)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSegmentDescGolden(t *testing.T) {
	rdma := SegmentDesc{
		Name: "127.0.0.1:16848", Protocol: "rdma", TCPProtoVersion: 1, Timestamp: "2026-11-30 19:47:34.164174",
		Devices: []Device{
			{Name: "fake0", LID: 17, GID: "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:07:01"},
			{Name: "fake1", LID: 18, GID: "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:07:02"},
		},
		Buffers: []Buffer{{
			Name: "cpu:0", Addr: 140435733348352, Length: 100663296,
			LKey: []uint32{4097, 4098}, RKey: []uint32{69633, 69634},
		}},
		PriorityMatrix: map[string][2][]string{"cpu:0": {{"fake0", "fake1"}, nil}, "cuda:0": {{"fake0"}, {"fake1"}}},
	}
	ours := rdma
	ours.FenceVersion, ours.RDMAServerName = 1, "10.0.0.1:16848"
	oursText := strings.Replace(goldenRDMA, `"tcp_data_port"`, `"railhop":{"fence":1},"rdma_server_name":"10.0.0.1:16848","tcp_data_port"`, 1)
	for _, tc := range []struct {
		name, text string
		value      SegmentDesc
	}{
		{"tcp", goldenTCP, SegmentDesc{
			Name: "127.0.0.1:16469", Protocol: "tcp", TCPDataPort: 15091, TCPProtoVersion: 2,
			Timestamp: "2026-11-30 19:42:36.827407",
			Buffers:   []Buffer{{Name: "127.0.0.1:16469", Addr: 140401344249856, Length: 100663296}},
		}},
		{"rdma", goldenRDMA, rdma},
		{"rdma with all of ours", oursText, ours},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := string(AppendSegmentDesc(nil, &tc.value)); got != tc.text {
				t.Errorf("encoded\n got %s\nwant %s", got, tc.text)
			}
			got, err := DecodeSegmentDesc([]byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tc.value, got); diff != "" {
				t.Error("decoded (-want +got):\n", diff)
			}
		})
	}
}

// edit replaces one piece of a golden text.
func edit(t *testing.T, text, from, to string) string {
	t.Helper()
	if !strings.Contains(text, from) {
		t.Fatalf("golden text lacks %s", from)
	}
	return strings.Replace(text, from, to, 1)
}

func TestSegmentDescAccepts(t *testing.T) {
	for _, tc := range []struct {
		name, text, from, to string
		check                func(*SegmentDesc) bool
	}{
		{"no proto version", goldenTCP, `"tcp_proto_version":2,`, "", func(d *SegmentDesc) bool { return d.TCPProtoVersion == 1 }},
		{"no timestamp", goldenTCP, `,"timestamp":"2026-11-30 19:42:36.827407"`, "", func(d *SegmentDesc) bool { return d.Timestamp == "" }},
		{"no data port", goldenTCP, `"tcp_data_port":15091,`, "", func(d *SegmentDesc) bool { return d.TCPDataPort == 0 }},
		{"no server name", goldenRDMA, `{"buffers"`, `{"buffers"`, func(d *SegmentDesc) bool { return d.ServerName() == d.Name }},
		{"server name", goldenRDMA, `"name":"127.0.0.1:16848"`, `"rdma_server_name":"r","name":"n"`, func(d *SegmentDesc) bool { return d.ServerName() == "r" }},
		{"unknown members", goldenRDMA, `{"buffers"`, `{"zz":[{"a":"]}"}],"buffers"`, func(d *SegmentDesc) bool { return len(d.Buffers) == 1 }},
		{"no buffers", goldenRDMA, `"buffers"`, `"other"`, func(d *SegmentDesc) bool { return d.Buffers == nil }},
		{"no rkeys", goldenRDMA, `[69633,69634]`, `[]`, func(d *SegmentDesc) bool { return len(d.Buffers[0].RKey) == 0 }},
		{"null rkeys", goldenRDMA, `[69633,69634]`, `null`, func(d *SegmentDesc) bool { return len(d.Buffers[0].RKey) == 0 }},
		{"no matrix", goldenRDMA, `"priority_matrix"`, `"other"`, func(d *SegmentDesc) bool {
			return d.PriorityMatrix == nil && d.MatrixProblem == "priority_matrix is missing"
		}},
		{"matrix is an array", goldenRDMA, `{"cpu:0":[["fake0","fake1"],[]],"cuda:0":[["fake0"],["fake1"]]}`, `[{"a":1}]`, func(d *SegmentDesc) bool {
			return d.PriorityMatrix == nil && strings.Contains(d.MatrixProblem, `priority_matrix is [{"a":1}], want an object`) && d.Protocol == "rdma"
		}},
		{"matrix of three lists", goldenRDMA, `["fake0","fake1"],[]`, `["fake0"],[],[]`, func(d *SegmentDesc) bool {
			return d.PriorityMatrix == nil && strings.Contains(d.MatrixProblem, "priority_matrix.cpu:0 is")
		}},
		{"matrix with objects for names", goldenRDMA, `["fake0","fake1"]`, `["fake0",{}]`, func(d *SegmentDesc) bool {
			return d.PriorityMatrix == nil && strings.Contains(d.MatrixProblem, "priority_matrix.cpu:0[0][1] is {}, want a string")
		}},
		{"railhop of another shape", goldenRDMA, `"protocol"`, `"railhop":["x"],"protocol"`, func(d *SegmentDesc) bool { return d.FenceVersion == 0 }},
		{"railhop's fence of another shape", goldenRDMA, `"protocol"`, `"railhop":{"fence":"1"},"protocol"`, func(d *SegmentDesc) bool { return d.FenceVersion == 0 }},
		{"railhop from the future", goldenRDMA, `"protocol"`, `"railhop":{"a":1,"fence":2},"protocol"`, func(d *SegmentDesc) bool { return d.FenceVersion == 2 }},
		{"highest address", goldenRDMA, `140435733348352,"length":100663296`, `18446744073709551614,"length":1`, func(d *SegmentDesc) bool { return d.Buffers[0].Addr == 1<<64-2 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, err := DecodeSegmentDesc([]byte(edit(t, tc.text, tc.from, tc.to)))
			if err != nil {
				t.Fatal(err)
			}
			if !tc.check(d) {
				t.Errorf("decoded %+v", d)
			}
		})
	}
}

func TestSegmentDescRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, text, from, to string
		want                 string
	}{
		{"unknown protocol", goldenTCP, `"tcp",`, `"nvmeof",`, `protocol is "nvmeof", want "rdma" or "tcp"`},
		{"no protocol", goldenTCP, `"protocol":"tcp",`, ``, `protocol is "", want`},
		{"protocol array", goldenTCP, `"tcp",`, `["tcp","rdma"],`, `protocol is ["tcp","rdma"], want a string`},
		{"array body", goldenTCP, goldenTCP, "[]", "body is [], want an object"},
		{"data port string", goldenTCP, `15091`, `"15091"`, `tcp_data_port is "15091"`},
		{"data port too big", goldenTCP, `15091`, `65536`, `tcp_data_port is 65536`},
		{"tcp buffer without name", goldenTCP, `"name":"127.0.0.1:16469"}`, `"name":""}`, "buffers[0].name is empty"},
		{"tcp buffer at 0", goldenTCP, `140401344249856`, `0`, "buffers[0].addr is 0"},
		{"tcp buffer of length 0", goldenTCP, `100663296`, `0`, "buffers[0].length is 0"},
		{"device without name", goldenRDMA, `"name":"fake1"`, `"name":""`, "devices[1].name is empty"},
		{"device without gid", goldenRDMA, `"gid":"00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:07:01"`, `"gid":""`, "devices[0].gid is empty"},
		{"buffer without name", goldenRDMA, `"name":"cpu:0",`, ``, "buffers[0].name is empty"},
		{"buffer at 0", goldenRDMA, `140435733348352`, `0`, "buffers[0].addr is 0"},
		{"buffer of length 0", goldenRDMA, `100663296`, `0`, "buffers[0].length is 0"},
		{"buffer over the end", goldenRDMA, `140435733348352`, `18446744073709551615`, "buffers[0].length is 100663296, want an end below 2^64"},
		{"address negative", goldenRDMA, `140435733348352`, `-1`, "buffers[0].addr is -1"},
		{"rkey and lkey differ", goldenRDMA, `[4097,4098]`, `[4097]`, "buffers[0].rkey is 2 keys, beside 1 in lkey, want 2 in each"},
		{"keys and devices differ", goldenRDMA, `"lkey":[4097,4098],"name":"cpu:0","rkey":[69633,69634]`, `"lkey":[1],"name":"cpu:0","rkey":[1]`, "buffers[0].rkey is 1 keys"},
		{"keys are 33 bits", goldenRDMA, `69634`, `4294967296`, "buffers[0].rkey[1] is 4294967296"},
		{"buffers is an object", goldenRDMA, `[{"addr":140435733348352,"length":100663296,"lkey":[4097,4098],"name":"cpu:0","rkey":[69633,69634]}]`, `{}`, "buffers is {}, want an array"},
		{"not JSON", goldenRDMA, `"devices"`, `devices`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := DecodeSegmentDesc([]byte(edit(t, tc.text, tc.from, tc.to)))
			checkRefusal(t, err, tc.want)
		})
	}
	if _, err := DecodeSegmentDesc([]byte(Null)); !errors.Is(err, ErrNoSegment) {
		t.Errorf("null body: error %v, want ErrNoSegment", err)
	}
}
