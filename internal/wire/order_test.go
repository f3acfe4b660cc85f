package wire

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestStdHash(t *testing.T) {
	for s, want := range map[string]uint64{
		"cpu:0":  0x3598967c23ec5fbe,
		"cuda:0": 0xa15b63552b39007d,
		"cuda:7": 0x50525adfdb39d93a,
	} {
		if got := stdHash(s); got != want {
			t.Errorf("stdHash(%q) = %#x, want %#x", s, got, want)
		}
	}
}

func TestDeviceOrderOfKeys(t *testing.T) {
	for _, tc := range []struct{ keys, want string }{
		{"", ""},
		{"cpu:0", "cpu:0"},
		{"cpu:0 cpu:1", "cpu:1 cpu:0"},
		{"cpu:0 cuda:0", "cuda:0 cpu:0"},
		{"cpu:0 cpu:1 cuda:0 cuda:1 cuda:2 cuda:3", "cuda:3 cuda:2 cuda:1 cuda:0 cpu:1 cpu:0"},
		{
			"cpu:0 cpu:1 cuda:0 cuda:1 cuda:2 cuda:3 cuda:4 cuda:5 cuda:6 cuda:7",
			"cuda:7 cuda:6 cuda:4 cuda:3 cuda:2 cuda:5 cuda:1 cuda:0 cpu:1 cpu:0",
		},
	} {
		// One device a location, named after it, makes the walk visible.
		matrix := make(map[string][2][]string)
		for _, key := range strings.Fields(tc.keys) {
			matrix[key] = [2][]string{{key}, {}}
		}
		if got := strings.Join(DeviceOrder(matrix), " "); got != tc.want {
			t.Errorf("keys %s: order %s, want %s", tc.keys, got, tc.want)
		}
	}
}

func TestDeviceOrderPreferredFirst(t *testing.T) {
	matrix := map[string][2][]string{
		"cpu:0": {{"gA"}, {"gB"}},
		"cpu:1": {{"gB"}, {"gA", "gC"}},
	}
	if got, want := DeviceOrder(matrix), []string{"gB", "gA", "gC"}; !slices.Equal(got, want) {
		t.Errorf("DeviceOrder = %v, want %v", got, want)
	}
}

// TestMapWalkLikeLibstdcxx compares with walks printed by a C++ program that
// fills a std::unordered_map (testdata/mapwalk.cpp).
func TestMapWalkLikeLibstdcxx(t *testing.T) {
	text, err := os.ReadFile("testdata/mapwalk.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) < 100 {
		t.Fatalf("have %d walks, want hundreds", len(lines))
	}
	for i, line := range lines {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			want := strings.Split(line, " ")
			if got := mapWalk(slices.Sorted(slices.Values(want))); !slices.Equal(got, want) {
				t.Errorf("walk\n got %v\nwant %v", got, want)
			}
		})
	}
}
