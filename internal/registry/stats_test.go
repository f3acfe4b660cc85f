package registry

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStats(t *testing.T) {
	r, e, p := pair(t)
	if _, err := p.ReadStats(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
	for i := range 3 {
		want := Stats{Server: "10.0.0.1:7", NICPaths: map[string]string{"mlx5_0": "10.0.0.1:7@mlx5_0"}, Counters: map[string]uint64{"relayed": uint64(i)}}
		if err := e.WriteStats(want); err != nil {
			t.Fatal(err)
		}
		got, err := p.ReadStats()
		if err != nil || got.Server != want.Server || got.Counters["relayed"] != uint64(i) || got.Version != 1 || got.NICPaths["mlx5_0"] != want.NICPaths["mlx5_0"] {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	path := filepath.Join(r.Path(), statsPrefix+e.Name())
	st, err := os.Stat(path)
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	for _, tc := range []struct{ name, content, want string }{
		{"version", `{"version":2}`, "version 2, this build reads 1"},
		{"text", `hello`, "invalid character"},
		{"empty", ``, "unexpected end"},
	} {
		if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := p.ReadStats(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	if err := os.Truncate(path, statsMax+1); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadStats(); err == nil {
		t.Error("read a file over the limit")
	}
	// A scan ignores the file, and it goes with its entry.
	onePeer(t, r)
	if err := e.Withdraw(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(r.Path())
	if err != nil || len(left) != 1 || left[0].Name() != lockName {
		t.Errorf("left over: %v, %v", left, err)
	}
	if err := e.WriteStats(Stats{}); err == nil {
		t.Error("wrote stats of an entry that has left")
	}
}
