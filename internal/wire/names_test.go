package wire

import (
	"strings"
	"testing"
)

func TestParseServer(t *testing.T) {
	const def = 12001
	for _, tc := range []struct {
		in   string
		host string // "" is an error
		port uint16
	}{
		{"10.1.2.3", "10.1.2.3", def},
		{"10.1.2.3:15440", "10.1.2.3", 15440},
		{"node-7.example", "node-7.example", def},
		{"h:0", "h", 0},
		{"h:65535", "h", 65535},
		{"[::1]:10011", "::1", 10011},
		{"[::1]", "::1", def},
		{"::1", "::1", def},
		{"::", "::", def},
		{"fe80::1%eth0", "fe80::1%eth0", def},
		{"fe80::1%eth0:15440", "fe80::1%eth0", 15440},
		{"[fe80::1%eth0]:15440", "fe80::1%eth0", 15440},
		{"2001:db8::7:9", "2001:db8::7:9", def},
		{"10.1.2.3:65536", "", 0},
		{"10.1.2.3:", "", 0},
		{"10.1.2.3:+1", "", 0},
		{"10.1.2.3:1 ", "", 0},
		{"10.1.2.3:http", "", 0},
		{"", "", 0},
		{":7", "", 0},
		{"a:1:2", "", 0},
		{"[::1", "", 0},
		{"[::1]7", "", 0},
		{"[::1]:", "", 0},
		{"[10.1.2.3]:7", "", 0},
		{"[]", "", 0},
		{"a b", "", 0},
		{"a@b", "", 0},
		{"fe80::1%e@h0", "", 0},
		{"fe80::1%", "", 0},
		{"h%eth0:7", "", 0},
		{"a/b", "", 0},
		{"h\x00", "", 0},
	} {
		t.Run(tc.in, func(t *testing.T) {
			host, port, err := ParseServer(tc.in, def)
			if (err == nil) != (tc.host != "") {
				t.Fatalf("error %v, want one: %v", err, tc.host == "")
			}
			if host != tc.host || port != tc.port {
				t.Errorf("got %q port %d, want %q port %d", host, port, tc.host, tc.port)
			}
			if err == nil {
				if h, p, err := ParseServer(ServerName(host, port), 1); h != host || p != port || err != nil {
					t.Errorf("ServerName(%q, %d) reads back as %q, %d, %v", host, port, h, p, err)
				}
			}
		})
	}
}

func TestCheckOwnHost(t *testing.T) {
	for _, tc := range []struct {
		host           string
		single, plural bool // accepted with and without single-node
	}{
		{"", false, false},
		{"localhost", true, false},
		{"LocalHost.", true, false},
		{"localhost.localdomain", true, false},
		{"a.localhost", true, false},
		{"0.0.0.0", true, false},
		{"::", true, false},
		{"::ffff:0.0.0.0", true, false},
		{"127.0.0.1", true, true},
		{"10.1.2.3", true, true},
		{"localhost-7", true, true},
		{"fe80::1%eth0", true, true},
	} {
		if err := CheckOwnHost(tc.host, true); (err == nil) != tc.single {
			t.Errorf("single node, %q: error %v", tc.host, err)
		}
		if err := CheckOwnHost(tc.host, false); (err == nil) != tc.plural {
			t.Errorf("%q: error %v", tc.host, err)
		}
	}
}

func TestSplitNICPath(t *testing.T) {
	for _, tc := range []struct{ in, server, device string }{
		{"10.0.0.1:15000@mlx5_0", "10.0.0.1:15000", "mlx5_0"},
		{"a@b@c", "a", "b@c"},
		{"a", "a", ""},
		{"@d", "", "d"},
		{"", "", ""},
	} {
		if s, d := SplitNICPath(tc.in); s != tc.server || d != tc.device {
			t.Errorf("SplitNICPath(%q) = %q, %q, want %q, %q", tc.in, s, d, tc.server, tc.device)
		}
	}
	if got := NICPath("s:1", "d"); got != "s:1@d" {
		t.Errorf("NICPath = %q", got)
	}
}

func TestGID(t *testing.T) {
	const text = "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:07:01"
	want := [16]byte{10: 0xff, 11: 0xff, 12: 0xc0, 13: 0xa8, 14: 7, 15: 1}
	for _, in := range []string{text, strings.ToUpper(text), "0:0:0:0:0:0:0:0:0:0:FF:ff:C0:a8:7:1"} {
		if got, err := ParseGID(in); err != nil || got != want {
			t.Errorf("ParseGID(%q) = %x, %v, want %x", in, got, err, want)
		}
	}
	if got := FormatGID(want); got != text {
		t.Errorf("FormatGID = %q, want %q", got, text)
	}
	for _, in := range []string{"", "fe80::1", text + ":", text + ":00", text[3:], "0" + text, "+" + text[1:], " " + text, text + " ", "gg" + text[2:]} {
		if _, err := ParseGID(in); err == nil {
			t.Errorf("ParseGID(%q) is accepted", in)
		}
	}
}
