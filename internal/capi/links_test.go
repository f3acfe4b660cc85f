package capi

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/railhop/railhop"
)

func TestLinkOf(t *testing.T) {
	t.Parallel()
	const gid = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01"
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }
	sys := fstest.MapFS{
		"mlx5_0/ports/1/rate":              file("400 Gb/sec (4X NDR)"),
		"mlx5_0/ports/1/gids/0":            file("fe80:0000:0000:0000:0000:0000:0000:0001"),
		"mlx5_0/ports/1/gids/2":            file("0000:0000:0000:0000:0000:ffff:0a00:0001"),
		"mlx5_0/ports/1/gids/3":            file("0000:0000:0000:0000:0000:ffff:0a00:0001"),
		"mlx5_0/ports/1/gid_attrs/types/2": file("IB/RoCE v1"),
		"mlx5_0/ports/1/gid_attrs/types/3": file("RoCE v2"),
		"mlx5_0/ports/2/rate":              file("2.5 Gb/sec (1X SDR)"),
		"mlx5_0/ports/2/gids/10":           file("0000:0000:0000:0000:0000:ffff:0a00:0001"),
		"mlx5_0/ports/2/gids/9":            file("0000:0000:0000:0000:0000:ffff:0a00:0001"),
		"odd/ports/1/rate":                 file("no idea"),
		"odd/ports/1/gids/x":               file("0000:0000:0000:0000:0000:ffff:0a00:0001"),
	}
	for _, test := range []struct {
		name  string
		port  int
		want  link
		extra string
	}{
		{"mlx5_0", 1, link{GIDIndex: 3, Port: 1, Gbps: 400}, "gid " + gid + " (index 3)  400 Gb/s"},
		{"mlx5_0:2", 1, link{GIDIndex: 9, Port: 2, Gbps: 2.5}, "port 2"},
		{"mlx5_0", 2, link{GIDIndex: 9, Port: 2, Gbps: 2.5}, "2.5 Gb/s"},
		{"odd", 1, link{GIDIndex: -1, Port: 1}, "gid " + gid + "  active"},
		{"soft", 1, link{GIDIndex: -1, Port: 1}, "soft  port 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := test.want
			want.Device, want.GID, want.NUMA, want.Source, want.active = test.name, gid, 1, "railhop", true
			got := linkOf(sys, railhop.NIC{Name: test.name, NUMA: 1, GID: gid, Active: true}, test.port)
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(link{})); diff != "" {
				t.Errorf("link (-want +got)\n%s", diff)
			}
			if text := linksText([]link{got}, nil); !strings.Contains(text, test.extra) {
				t.Errorf("text %q, want %q in it", text, test.extra)
			}
		})
	}
}

// TestDevicesByGPU has lists of NICs by GPU decide what serves the memory of each.
func TestDevicesByGPU(t *testing.T) {
	soft := []string{"MC_LOG_LEVEL=ERROR", "RAILHOP_PROVIDERS=soft", "RAILHOP_SOFT_NICS=m0=127.0.3.1;m1=127.0.3.1;m2=127.0.3.1", "RAILHOP_SOFT_GPUS=0000:a0:00.0;0000:a1:00.0"}
	for _, test := range []struct {
		name, devices string
		nics          []string
		gpu0, gpu1    []string
	}{
		{"JSON", `{"0":"m1","1":["m2","m0"]}`, []string{"m1", "m2", "m0"}, []string{"m1"}, []string{"m2", "m0"}},
		{"lists", "m2;m1", []string{"m2", "m1"}, []string{"m2"}, []string{"m1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e, _ := open(t, NewLibrary(), func(o *Options) { o.Devices, o.Environ = test.devices, soft })
			text, err := e.Links(true)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Nics []struct{ Device string } `json:"local_nics"`
				Map  map[string][2][]string    `json:"topology"`
			}
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Fatal(err)
			}
			var nics []string
			for _, n := range got.Nics {
				nics = append(nics, n.Device)
			}
			if !slices.Equal(nics, test.nics) {
				t.Errorf("NICs %q, want %q", nics, test.nics)
			}
			for gpu, want := range map[string][]string{"cuda:0": test.gpu0, "cuda:1": test.gpu1} {
				if diff := cmp.Diff([2][]string{want, {}}, got.Map[gpu]); diff != "" {
					t.Errorf("%s (-want +got)\n%s", gpu, diff)
				}
			}
			shown, err := Topology(soft, test.devices)
			if err != nil {
				t.Fatal(err)
			}
			var alone map[string][2][]string
			if err := json.Unmarshal([]byte(shown), &alone); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got.Map["cuda:1"], alone["cuda:1"]); diff != "" {
				t.Errorf("topology without an engine (-with +without)\n%s", diff)
			}
		})
	}
	e, _ := open(t, NewLibrary(), func(o *Options) { o.Devices, o.Environ = `{"0":"m9"}`, append(soft, "MC_TCP_BIND_ADDRESS=127.0.0.1") })
	if s, err := e.Stats(); err != nil || !strings.Contains(string(s), `"transport":"tcp"`) {
		t.Errorf("with no NIC of the list: %s, %v", s, err)
	}
}
