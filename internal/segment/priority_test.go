package segment

import (
	"slices"
	"testing"
)

func TestRegions(t *testing.T) {
	for _, tc := range []struct {
		name string
		want []string
	}{
		{"segments:4096:0,1", []string{"cpu:0", "cpu:1"}},
		{"segments:2097152:3", []string{"cpu:3"}},
		{"segments:4096:0,0,1,1", []string{"cpu:0", "cpu:0", "cpu:1", "cpu:1"}},
		{"cpu:0", nil},
		{"", nil},
		{"segments:", nil},
		{"segments:4096", nil},
		{"segments:4096:", nil},
		{"segments:4096:0,", nil},
		{"segments:4096:-1", nil},
		{"segments:big:0", nil},
	} {
		if got := regions(tc.name); !slices.Equal(got, tc.want) {
			t.Errorf("regions(%q) = %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestRegion(t *testing.T) {
	for _, tc := range []struct {
		n              int
		offset, length uint64
		want           int
	}{
		{1, 0, 10, 0},
		{1, 9, 10, 0},
		{3, 0, 10, 0},
		{3, 2, 10, 0},
		{3, 3, 10, 1},
		{3, 8, 10, 2},
		{3, 9, 10, 2}, // the rest belongs to the last
		{4, 0, 3, 3},  // more regions than bytes
		{2, 1<<64 - 2, 1<<64 - 1, 1},
	} {
		if got := region(tc.n, tc.offset, tc.length); got != tc.want {
			t.Errorf("region(%d, %d, %d) = %d, want %d", tc.n, tc.offset, tc.length, got, tc.want)
		}
	}
}

func TestPickIsFair(t *testing.T) {
	d := devices{all: []uint16{4, 7, 9}, preferred: 2}
	seen := make(map[int]int)
	for rnd := range uint64(100) {
		dev, ok := d.pick(0, rnd)
		if !ok {
			t.Fatal("nothing picked")
		}
		seen[dev]++
	}
	if seen[4] != 50 || seen[7] != 50 {
		t.Errorf("picked %v, want 4 and 7 alike", seen)
	}
	if _, ok := (devices{}).pick(1, 1); ok {
		t.Error("picked from nothing")
	}
}
