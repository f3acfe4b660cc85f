package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/lipgloss/table"
)

// Table writes the outcome for a terminal. It is coloured where w is a terminal
// that has colours, and plain text anywhere else.
func Table(w io.Writer, d Data) error {
	r := lipgloss.NewRenderer(w)
	cell := r.NewStyle().Padding(0, 1)
	head, dim := cell.Bold(true), r.NewStyle().Faint(true)
	right := cell.Align(lipgloss.Right)

	total := d.bytes()
	rows := make([][]string, 0, len(d.Paths)+1)
	for _, p := range d.Paths {
		rows = append(rows, []string{p.Name, formatBytes(p.Bytes), share(p.Bytes, total), fmt.Sprintf("%.2f", p.Rate/1e9)})
	}
	if len(d.Paths) > 1 {
		rows = append(rows, []string{"total", formatBytes(total), share(total, max(total, 1)), fmt.Sprintf("%.2f", d.rate()/1e9)})
	}
	paths := table.New().Border(lipgloss.NormalBorder()).BorderStyle(dim).
		Headers("path", "bytes", "share", "GB/s").Rows(rows...).
		StyleFunc(func(row, col int) lipgloss.Style {
			switch {
			case row == table.HeaderRow && col == 0:
				return head
			case row == table.HeaderRow:
				return head.Align(lipgloss.Right)
			case col == 0:
				return cell
			}
			return right
		})

	var facts []Fact
	if d.Requests > 0 {
		facts = append(facts, Fact{"requests", group(uint64(d.Requests))})
	}
	facts = append(facts, Fact{"elapsed", formatDuration(d.Elapsed)})
	if l := d.Latency; l != nil && l.Count() > 0 {
		facts = append(facts, Fact{"latency", fmt.Sprintf("p50 %s, p90 %s, p99 %s, longest %s",
			formatDuration(l.Quantile(.5)), formatDuration(l.Quantile(.9)), formatDuration(l.Quantile(.99)), formatDuration(l.Max()))})
	}
	facts = append(facts, d.Facts...)
	facts = append(facts, Fact{"fallbacks", d.fallbacks()})
	width := 0
	for _, f := range facts {
		width = max(width, lipgloss.Width(f.Name))
	}

	var b strings.Builder
	if d.Title != "" {
		fmt.Fprintln(&b, r.NewStyle().Bold(true).Render(d.Title))
	}
	fmt.Fprintln(&b, paths)
	for _, f := range facts {
		fmt.Fprintf(&b, "%s%s  %s\n", f.Name, strings.Repeat(" ", width-lipgloss.Width(f.Name)), f.Value)
	}
	for _, n := range d.Notes {
		fmt.Fprintln(&b, dim.Render(n))
	}
	verdict := r.NewStyle().Bold(true).Foreground(lipgloss.Color("2"))
	if !d.Verify.ok() {
		verdict = verdict.Foreground(lipgloss.Color("1"))
	}
	fmt.Fprintln(&b, verdict.Render(d.Verify.String()))
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("report: write table: %w", err)
	}
	return nil
}

func (v Verify) ok() bool { return v.Mismatched == 0 && v.Checked > 0 }

// fallbacks lists the reasons that occurred.
func (d *Data) fallbacks() string {
	var parts []string
	for _, f := range d.Fallbacks {
		if f.Count > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", f.Reason, group(f.Count)))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
