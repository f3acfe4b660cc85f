package config

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// devs makes plain devices of names.
func devs(names ...string) []Device {
	var d []Device
	for _, n := range names {
		d = append(d, Device{Name: n})
	}
	return d
}

func TestParseDeviceArg(t *testing.T) {
	for _, tc := range []struct {
		name, arg string
		want      DeviceArg
		err       string // a part of it
	}{
		// cases.md D18
		{name: "list", arg: "mlx5_0,mlx5_1", want: DeviceArg{All: devs("mlx5_0", "mlx5_1")}},
		{name: "semicolon", arg: "mlx5_0;mlx5_1", want: DeviceArg{ByGPU: map[int][]Device{0: devs("mlx5_0"), 1: devs("mlx5_1")}}},
		{name: "JSON by GPU", arg: `{"0":"mlx5_0,mlx5_1","1":"mlx5_0,mlx5_1"}`,
			want: DeviceArg{ByGPU: map[int][]Device{0: devs("mlx5_0", "mlx5_1"), 1: devs("mlx5_0", "mlx5_1")}}},
		{name: "keys without quotes", arg: `{0: "ib0, ib1", 1: "ib2"}`, err: "config: devices: JSON: column 2: "},
		{name: "file", arg: "/etc/ib.json", want: DeviceArg{File: "/etc/ib.json"}},
		{name: "twice", arg: "mlx5_0,mlx5_0", want: DeviceArg{All: devs("mlx5_0"), Notes: []string{"device mlx5_0 is given twice and used once"}}},
		{name: "empty", arg: "", want: DeviceArg{}},
		{name: "blank", arg: " \t", want: DeviceArg{}},

		// cases.md D06
		{name: "port", arg: "mlx5_0:1", want: DeviceArg{All: []Device{{"mlx5_0", 1}}}},
		{name: "NCCL not", arg: "^mlx5_0", err: "NCCL_IB_HCA"},
		{name: "NCCL exact", arg: "=mlx5_0", err: "NCCL_IB_HCA"},
		{name: "trailing blanks", arg: "mlx5_0 , mlx5_1\t\n", want: DeviceArg{All: devs("mlx5_0", "mlx5_1")}},

		{name: "same device, two ports", arg: "mlx5_0:1,mlx5_0:2", want: DeviceArg{All: []Device{{"mlx5_0", 1}, {"mlx5_0", 2}}}},
		{name: "port 0", arg: "mlx5_0:0", err: `"mlx5_0:0": port "0" is not an integer from 1 to 255`},
		{name: "port 256", arg: "mlx5_0:256", err: "1 to 255"},
		{name: "no port", arg: "mlx5_0:", err: "1 to 255"},
		{name: "no name", arg: ":1", err: "is not a device name"},
		{name: "hole", arg: "mlx5_0,,mlx5_1", err: "an empty name"},
		{name: "blank inside", arg: "mlx5_0 mlx5_1", err: "is not a device name"},
		{name: "long name", arg: strings.Repeat("m", 64), err: "is not a device name"},
		{name: "not UTF-8", arg: "mlx5_\xff", err: "UTF-8"},
		{name: "closing semicolon", arg: "a;b;", want: DeviceArg{ByGPU: map[int][]Device{0: devs("a"), 1: devs("b")}}},
		{name: "hole between semicolons", arg: "a;;b", err: "GPU 1; lists by GPU are best given as JSON"},
		{name: "arrays", arg: `{"7":["a","b:2"]}`, want: DeviceArg{ByGPU: map[int][]Device{7: {{"a", 0}, {"b", 2}}}}},
		{name: "GPU twice", arg: `{"0":"a","0":"b"}`, err: `"0" appears twice`},
		{name: "GPU by another name", arg: `{"cuda:0":"a"}`, err: "is not a GPU number"},
		{name: "GPU with a zero in front", arg: `{"00":"a"}`, err: "is not a GPU number"},
		{name: "a number for a list", arg: `{"0":1}`, err: "want a string or an array of strings"},
		{name: "trailing bytes", arg: `{"0":"a"} x`, err: "column 11"},
		{name: "relative file", arg: "./ib", want: DeviceArg{File: "./ib"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseDeviceArg(tc.arg)
			checkErr(t, err, tc.err)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ParseDeviceArg(%q) (-want +got):\n%s", tc.arg, diff)
			}
		})
	}
}

// checkErr wants err to hold part, or to be nil if part is "".
func checkErr(t *testing.T, err error, part string) {
	t.Helper()
	switch {
	case err == nil && part != "":
		t.Errorf("no error, want one with %q", part)
	case err != nil && (part == "" || !strings.Contains(err.Error(), part)):
		t.Errorf("error %v, want %q", err, part)
	}
}

// Names are opaque: cases.md D06.
func TestDeviceNames(t *testing.T) {
	for name := range strings.FieldsSeq("mlx5_0 mlx5_bond_0 mlx5_ib3 rocep5s0f0 rocep153s0 rdmap135s0 ibp12s0 irdma0 ionic_0 erdma_0 xscale_0 bnxt_re0 rdma3") {
		got, err := ParseDeviceArg(name)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(devs(name), got.All); diff != "" {
			t.Error(diff)
		}
	}
}

func TestReadDeviceArg(t *testing.T) {
	read := func(path string) ([]byte, error) {
		switch path {
		case "/etc/ib.json":
			return []byte("{\"1\": \"mlx5_1\"}\n"), nil
		case "/etc/bad.json":
			return []byte(`["mlx5_1"]`), nil
		case "/etc/empty.json":
			return nil, nil
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	for _, tc := range []struct {
		name, arg string
		want      DeviceArg
		err       string
	}{
		{"no file", "mlx5_0", DeviceArg{All: devs("mlx5_0")}, ""},
		{"file", "/etc/ib.json", DeviceArg{File: "/etc/ib.json", ByGPU: map[int][]Device{1: devs("mlx5_1")}}, ""},
		{"missing", "/etc/ib2.json", DeviceArg{}, `config: devices: file "/etc/ib2.json": file does not exist`},
		{"not an object", "/etc/bad.json", DeviceArg{}, `config: devices: file "/etc/bad.json": JSON: column 1: want an object`},
		{"empty", "/etc/empty.json", DeviceArg{}, `config: devices: file "/etc/empty.json": JSON: column 0`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ReadDeviceArg(tc.arg, read)
			checkErr(t, err, tc.err)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if _, err := ReadDeviceArg("/nowhere", read); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want fs.ErrNotExist", err)
	}
}

func TestDeviceArgCheck(t *testing.T) {
	present := []string{"mlx5_0", "mlx5_10"}
	for _, tc := range []struct{ arg, err string }{
		{"", ""},
		{"mlx5_0,mlx5_10:1", ""},
		{"mlx5_0,mlx5_9", "no mlx5_9 on this host, which has: mlx5_0, mlx5_10"},
		{"mlx5_1", "no mlx5_1 on"},
		{"b;a;b", "no a, b on this host"},
	} {
		a, err := ParseDeviceArg(tc.arg)
		if err != nil {
			t.Fatal(err)
		}
		checkErr(t, a.Check(present), tc.err)
	}
	a := DeviceArg{All: devs("x")}
	checkErr(t, a.Check(nil), "which has: none")
}

func TestDeviceArgFor(t *testing.T) {
	all := DeviceArg{All: devs("a")}
	byGPU := DeviceArg{ByGPU: map[int][]Device{1: devs("b")}}
	if diff := cmp.Diff([][]Device{devs("a"), nil, devs("b"), nil}, [][]Device{all.For(3), byGPU.For(0), byGPU.For(1), DeviceArg{}.For(0)}); diff != "" {
		t.Error(diff)
	}
}

func TestParseRailMap(t *testing.T) {
	long := strings.Repeat("r", 255)
	for _, tc := range []struct {
		name, text string
		want       map[string]string
		err        string
	}{
		{"empty", `{}`, map[string]string{}, ""},
		{"two", ` {"mlx5_0":"rail0" , "mlx5_1":"rail1"} `, map[string]string{"mlx5_0": "rail0", "mlx5_1": "rail1"}, ""},
		{"two devices on a rail", `{"a":"r","b":"r"}`, map[string]string{"a": "r", "b": "r"}, ""},
		{"255 bytes", `{"a":"` + long + `"}`, map[string]string{"a": long}, ""},
		{"256 bytes", `{"a":"` + long + `r"}`, nil, "1 to 255 bytes"},
		{"empty rail", `{"a":""}`, nil, "1 to 255 bytes"},
		{"empty device", `{"":"r"}`, nil, "1 to 255 bytes"},
		{"NUL", `{"a":"r\u0000"}`, nil, "without NUL"},
		{"twice", `{"a":"r","a":"r"}`, nil, "appears twice"},
		{"twice, one escaped", `{"a":"r","\u0061":"r"}`, nil, "appears twice"},
		{"number", `{"a":1}`, nil, "is not a string"},
		{"null", `{"a":null}`, nil, "is not a string"},
		{"nested", `{"a":{"b":"c"}}`, nil, "is not a string"},
		{"null itself", `null`, nil, "want an object"},
		{"array", `["a"]`, nil, "want an object"},
		{"closing comma", `{"a":"r",}`, nil, "column 10"},
		{"trailing bytes", `{"a":"r"}{}`, nil, "column 10"},
		{"cut off", `{"a":"r"`, nil, "JSON"},
		{"nothing", ``, nil, "JSON"},
		{"not UTF-8", "{\"a\":\"\xff\"}", nil, "UTF-8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseRailMap(tc.text)
			checkErr(t, err, tc.err)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
