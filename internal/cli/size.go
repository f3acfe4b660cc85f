package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// size is a flag of a number of bytes, with an optional unit.
type size struct {
	bytes    *uint64
	min, max uint64
}

var _ pflag.Value = size{}

// units are powers of 1000, and with an i of 1024.
var units = []struct {
	name  string
	bytes uint64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
}

// Set implements [pflag.Value].
func (s size) Set(text string) error {
	n, err := parseSize(text)
	if err != nil {
		return err
	}
	if n < s.min || n > s.max {
		return fmt.Errorf("want %s to %s", formatSize(s.min), formatSize(s.max))
	}
	*s.bytes = n
	return nil
}

// String implements [pflag.Value].
func (s size) String() string {
	if s.bytes == nil {
		return ""
	}
	return formatSize(*s.bytes)
}

// Type implements [pflag.Value].
func (s size) Type() string { return "size" }

func parseSize(text string) (uint64, error) {
	bad := fmt.Errorf("want a number of bytes with an optional unit, such as 65536, 64KiB or 1.5GB")
	digits, unit := strings.TrimSpace(text), uint64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(digits, u.name); ok {
			digits, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	if n, err := strconv.ParseUint(digits, 10, 64); err == nil {
		if n > (1<<64-1)/unit {
			return 0, bad
		}
		return n * unit, nil
	}
	x, err := strconv.ParseFloat(digits, 64)
	if err != nil || !(x >= 0) || x*float64(unit) >= 1<<63 || strings.ContainsAny(digits, "xXpPnN") {
		return 0, bad
	}
	return uint64(x * float64(unit)), nil
}

// formatSize writes a size exactly, as short as it gets.
func formatSize(n uint64) string {
	short := strconv.FormatUint(n, 10) + "B"
	for _, u := range units {
		if n < u.bytes || n%u.bytes != 0 {
			continue
		}
		if s := strconv.FormatUint(n/u.bytes, 10) + u.name; len(s) < len(short) {
			short = s
		}
	}
	return short
}
