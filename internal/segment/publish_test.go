package segment

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/railhop/railhop/internal/wire"
)

func TestEncodedGolden(t *testing.T) {
	opts := twoNICs()
	opts.MaxMR = 40000000
	l := newLocal(t, opts)
	add(t, l, 0x10000000, 100663296, "cpu:0")
	b := add(t, l, 0x1000, 16, "")
	b.RemoteAccess = false
	// The model tells which device readers meet first; keys must follow.
	order := wire.DeviceOrder(opts.Matrix)
	if len(order) != 2 {
		t.Fatal(order)
	}
	d, err := wire.DecodeSegmentDesc(l.Encoded())
	if err != nil {
		t.Fatal(err)
	}
	if got := []string{d.Devices[0].Name, d.Devices[1].Name}; !slices.Equal(got, order) {
		t.Errorf("devices in the order %v, want %v", got, order)
	}
	first, _ := l.number(order[0])
	var got []string
	for _, b := range d.Buffers {
		got = append(got, fmt.Sprintf("%s %x+%d %v", b.Name, b.Addr, b.Length, b.RKey))
	}
	key := func(chunk, i int) int { return 0x10000000 + 16*chunk + 8 + i }
	keys := func(chunk int) string {
		return fmt.Sprintf("[%d %d]", key(chunk, first), key(chunk, 1-first))
	}
	want := []string{
		"* 1000+16 []",
		"cpu:0 10000000+40000000 " + keys(0),
		"cpu:0 12625a00+40000000 " + keys(1),
		"cpu:0 14c4b400+20663296 " + keys(2),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("buffers (-want +got):\n", diff)
	}
	if d.FenceVersion != 1 || d.Timestamp != "2026-11-30 19:47:34.164174" || d.Name != "host:15000" {
		t.Errorf("descriptor %+v", d)
	}
}

func TestEncodedIsCached(t *testing.T) {
	l := newLocal(t, twoNICs())
	one := l.Encoded()
	if two := l.Encoded(); &one[0] != &two[0] {
		t.Error("encoded anew without a change")
	}
	for _, change := range []struct {
		name string
		do   func()
		want string
	}{
		{"publish", func() { add(t, l, 0x1000, 1, "cuda:0") }, `"addr":4096`},
		{"address", func() { l.SetAddress(1, 77, gid(9)) }, `"lid":77`},
		{"device off", func() { l.SetActive(0, false) }, `"cuda:0":[[],["gB"]]`},
	} {
		change.do()
		if got := string(l.Encoded()); !strings.Contains(got, change.want) {
			t.Errorf("%s: %s lacks %s", change.name, got, change.want)
		}
	}
	if got := string(l.Encoded()); strings.Contains(got, "gA") || strings.Contains(got, `"rkey":[4104,4105]`) {
		t.Errorf("a dropped device is left in %s", got)
	}
	l.SetActive(1, false)
	if got := string(l.Encoded()); !strings.Contains(got, `"priority_matrix":{}`) || !strings.Contains(got, `"devices":[]`) {
		t.Errorf("without devices: %s", got)
	}
}

// The size that is counted is the size that is sent, whatever happened before.
func TestCheckLength(t *testing.T) {
	for _, protocol := range []string{wire.ProtocolRDMA, wire.ProtocolTCP} {
		opts := twoNICs()
		opts.Protocol, opts.MaxMR = protocol, 0x800
		l := newLocal(t, opts)
		check := func(step string) {
			t.Helper()
			n := wire.FrameLength(l.Encoded())
			if err := l.CheckLength(n); err != nil {
				t.Errorf("%s, %s: %v", protocol, step, err)
			}
			var fe *wire.FrameError
			if err := l.CheckLength(n - 1); !errors.As(err, &fe) || fe.Length != n || !strings.Contains(err.Error(), "MC_HANDSHAKE_MAX_LENGTH") {
				t.Errorf("%s, %s: one byte less: %v, want a FrameError of %d bytes", protocol, step, err, n)
			}
		}
		check("empty")
		add(t, l, 0x1000, 0x1000, "cpu:0")
		check("one")
		add(t, l, 0x7fff00000000, 0x1801, "a \"quoted\" \u00e9")
		add(t, l, 0, 0x10, "cpu:0")
		check("three")
		l.SetActive(0, false)
		check("device off")
		if _, err := l.Withdraw(0x1000); err != nil {
			t.Fatal(err)
		}
		check("withdrawn")
		l.SetActive(0, true)
		l.SetAddress(0, 65535, gid(200))
		check("device on")
		if _, err := l.Withdraw(0x7fff00000000, 0); err != nil {
			t.Fatal(err)
		}
		check("empty again")
	}
}

func TestEncodedTCP(t *testing.T) {
	l := newLocal(t, LocalOptions{
		Name: "h:1", Protocol: wire.ProtocolTCP, TCPDataPort: 2, TCPProtoVersion: 2, MaxMR: 4,
		Now: func() time.Time { return time.Unix(0, 0).UTC() },
	})
	add(t, l, 0x1000, 16, "cpu:0")
	add(t, l, 0, 16, "cpu:0") // allowed, and of no use to peers
	want := `{"buffers":[{"addr":4096,"length":16,"name":"h:1"}],"name":"h:1","protocol":"tcp","tcp_data_port":2,` +
		`"tcp_proto_version":2,"timestamp":"1970-01-01 00:00:00.000000"}` + "\n"
	if got := string(l.Encoded()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestDevicesOutsideTheMatrixComeLast(t *testing.T) {
	opts := twoNICs()
	opts.Devices = append([]wire.Device{{Name: "spare", GID: gid(3)}}, opts.Devices...)
	d := newLocal(t, opts).Desc()
	if n := len(d.Devices); n != 3 || d.Devices[2].Name != "spare" {
		t.Errorf("devices %v, want the spare one last", d.Devices)
	}
}
