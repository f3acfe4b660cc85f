package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/lipgloss/table"

	"github.com/railhop/railhop/internal/fabric"
)

const demoDrawing = `
   node A                          rails                node B
  ┌──────────────────────────┐                        ┌─────────────────────┐
  │ rank 0   GPU 0 ── mlx5_0 ├─1──2─────── r0 ─────1──┤ mlx5_0 ── buffer r0 │
  │            │             │             ╲          │                     │
  │          3 copy          │              2 spine   │       target        │
  │            ▼             │               ╲        │                     │
  │ rank 1   GPU 1 ── mlx5_1 ├─3────────── r1 ──2──3──┤ mlx5_1 ── buffer r1 │
  └──────────────────────────┘                        └─────────────────────┘

  1 direct, same rail
  2 direct, cross rail: over the spine
  3 relayed: rank 0 copies to GPU 1, rank 1 sends on the target's own rail
`

// draw shows the fabric, and where the bytes will go.
func (d *demo) draw() {
	if d.app.json {
		return
	}
	w := d.app.out
	bold := lipgloss.NewRenderer(w).NewStyle().Bold(true)
	fmt.Fprintln(w, bold.Render("A rail fabric on this machine: software NICs and GPUs, three processes"))
	fmt.Fprint(w, demoDrawing, "\n")
	if r := d.opts.rates; r.uncapped {
		fmt.Fprintln(w, "  NICs are not capped.")
	} else {
		fmt.Fprintf(w, "  Each NIC sends %s/s at most, and %s/s across rails.\n", formatSize(r.link), formatSize(r.cross))
	}
	fmt.Fprintf(w, "  Slots are small here: MC_PXN_SLOT_SIZE=%s, so that the arena that each rank lends has %s instead of 1008MiB.\n",
		formatSize(d.opts.slot), formatSize(126*d.opts.slot))
	fmt.Fprintln(w, "  A relay is given 10 s in place of 1 s before a piece goes another way (MC_PXN_CREDIT_TIMEOUT_MS): all share these cores.")
	fmt.Fprintln(w)
}

func (d *demo) watchIdle(ctx context.Context) error {
	if d.opts.idle == 0 {
		return nil
	}
	if !d.app.json && isTerminal(d.app.errOut) {
		fmt.Fprintf(d.app.errOut, "watching idle processes for %v s\r", d.opts.idle)
		defer fmt.Fprint(d.app.errOut, "\x1b[2K\r")
	}
	use, err := watchIdle(ctx, []*fabric.Rank{d.rank0, d.rank1, d.target}, d.opts.idle)
	d.result.IdleCPU, d.result.IdleByProcess, d.result.ParksPerSecond = use.most, use.cpu, use.parks
	return err
}

// table shows what came of it.
func (d *demo) table() error {
	w := d.app.out
	r := lipgloss.NewRenderer(w)
	cell := r.NewStyle().Padding(0, 1)
	right := cell.Align(lipgloss.Right)
	same := d.result.Paths[sameRail].GBps
	var rows [][]string
	for _, way := range ways {
		p := d.result.Paths[way]
		rows = append(rows, []string{p.title, group(p.Bytes), p.nic, fmt.Sprintf("%.3f", p.GBps), fmt.Sprintf("%.2f", p.GBps/same)})
	}
	t := table.New().Border(lipgloss.NormalBorder()).BorderStyle(r.NewStyle().Faint(true)).
		Headers("way", "bytes at the target", "sent by", "GB/s", "to same rail").Rows(rows...).
		StyleFunc(func(row, col int) lipgloss.Style {
			s := cell
			if col == 1 || col >= 3 {
				s = right
			}
			if row == table.HeaderRow {
				s = s.Bold(true)
			}
			return s
		})
	var b strings.Builder
	fmt.Fprintln(&b, t)
	if u := d.result.Uncapped; u != nil {
		u.print(&b)
	}
	if d.opts.idle > 0 {
		var each []string
		for name, cpu := range d.result.IdleByProcess {
			each = append(each, fmt.Sprintf("%s %.3f %%", name, cpu))
		}
		slices.Sort(each)
		fmt.Fprintf(&b, "idle CPU   %s of a core over %v s, lanes attached; the pumps wake %.1f times a second at most\n",
			strings.Join(each, ", "), d.opts.idle, d.result.ParksPerSecond)
	}
	fallbacks := "none"
	if len(d.result.Fallbacks) > 0 {
		var each []string
		for reason, n := range d.result.Fallbacks {
			each = append(each, fmt.Sprintf("%s %d", reason, n))
		}
		slices.Sort(each)
		fallbacks = strings.Join(each, ", ")
	}
	fmt.Fprintf(&b, "fallbacks  %s\n", fallbacks)
	verdict := r.NewStyle().Bold(true).Foreground(lipgloss.Color("2")).Render(fmt.Sprintf("verified: %s bytes equal", group(d.result.VerifiedBytes)))
	if d.result.MismatchedBytes > 0 {
		verdict = r.NewStyle().Bold(true).Foreground(lipgloss.Color("1")).Render(fmt.Sprintf("%s bytes differ", group(d.result.MismatchedBytes)))
	}
	fmt.Fprintln(&b, verdict)
	_, err := fmt.Fprint(w, b.String())
	return err
}

// group writes a whole number with commas.
func group(n uint64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
