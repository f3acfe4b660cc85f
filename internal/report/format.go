package report

import (
	"fmt"
	"strconv"
	"time"
)

// group writes a whole number with commas.
func group(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// formatBytes writes a size with a decimal unit, as rates are.
func formatBytes(n uint64) string {
	return formatUnit(float64(n), "B", "kB", "MB", "GB", "TB", "PB", "EB")
}

// formatRate writes a rate in GB/s, which is 10^9 bytes a second.
func formatRate(r float64) string {
	if r > 0 && r < 0.005e9 {
		return fmt.Sprintf("%.2g GB/s", r/1e9)
	}
	return fmt.Sprintf("%.2f GB/s", r/1e9)
}

func formatUnit(v float64, units ...string) string {
	i := 0
	for v >= 999.5 && i < len(units)-1 {
		v /= 1000
		i++
	}
	switch {
	case i == 0 || v >= 100:
		return fmt.Sprintf("%.0f %s", v, units[i])
	case v >= 10:
		return fmt.Sprintf("%.1f %s", v, units[i])
	}
	return fmt.Sprintf("%.2f %s", v, units[i])
}

// formatDuration writes a duration with three digits.
func formatDuration(d time.Duration) string {
	v := float64(d)
	switch {
	case d < time.Microsecond:
		return fmt.Sprintf("%d ns", d)
	case v < 999.5e3:
		return fmt.Sprintf("%.3g µs", v/1e3)
	case v < 999.5e6:
		return fmt.Sprintf("%.3g ms", v/1e6)
	case d < 100*time.Second:
		return fmt.Sprintf("%.3g s", v/1e9)
	}
	return d.Round(time.Second).String()
}

// share is a part of a whole in percent.
func share(part, whole uint64) string {
	if whole == 0 {
		return "0 %"
	}
	p := 100 * float64(part) / float64(whole)
	if part > 0 && p < 0.1 {
		return "< 0.1 %"
	}
	if part < whole && p > 99.9 {
		return "> 99.9 %"
	}
	return strconv.FormatFloat(p, 'f', 1, 64) + " %"
}
