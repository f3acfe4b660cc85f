package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/lipgloss/table"

	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/shmabi"
)

// statusRates tells how fast lanes move, from one look to the next.
type statusRates struct {
	at        time.Time
	completed map[string]uint64 // by lane
	perSecond map[string]float64
}

func laneKey(r *registry.Rank, lane int) string {
	return r.Name + "/" + strconv.Itoa(lane) + "/" + senderName(&r.Lanes[lane])
}

func (t *statusRates) update(s *registry.Snapshot, now time.Time) {
	completed, rates := map[string]uint64{}, map[string]float64{}
	dt := now.Sub(t.at).Seconds()
	for i := range s.Ranks {
		for n, l := range s.Ranks[i].Lanes {
			key := laneKey(&s.Ranks[i], n)
			completed[key] = l.Completed
			if before, ok := t.completed[key]; ok && l.Completed >= before && dt > 0 {
				rates[key] = float64(l.Completed-before) / dt
			}
		}
	}
	t.at, t.completed, t.perSecond = now, completed, rates
}

// painter makes tables in the colours that w has, or in none.
type painter struct {
	r                    *lipgloss.Renderer
	bold, dim, good, bad lipgloss.Style
}

func newPainter(w io.Writer) painter {
	r := lipgloss.NewRenderer(w)
	return painter{
		r: r, bold: r.NewStyle().Bold(true), dim: r.NewStyle().Faint(true),
		good: r.NewStyle().Foreground(lipgloss.Color("2")), bad: r.NewStyle().Foreground(lipgloss.Color("1")),
	}
}

// table writes rows under headers; columns from number on are right-aligned.
func (p painter) table(headers []string, numbers int, rows [][]string) string {
	cell := p.r.NewStyle().Padding(0, 1)
	return table.New().Border(lipgloss.NormalBorder()).BorderStyle(p.dim).Headers(headers...).Rows(rows...).
		StyleFunc(func(row, col int) lipgloss.Style {
			s := cell
			if col >= numbers {
				s = s.Align(lipgloss.Right)
			}
			if row == table.HeaderRow {
				return s.Bold(true)
			}
			return s
		}).String()
}

// showStatus writes what is known of a group. rates may be nil.
func showStatus(w io.Writer, group string, s *registry.Snapshot, rates *statusRates) error {
	p := newPainter(w)
	var b strings.Builder
	relays := "relays on"
	if s.Off {
		relays = p.bad.Render("switched off for ranks to come")
	}
	fmt.Fprintf(&b, "%s  %s, %s, %s\n", p.bold.Render("group "+group), s.Path, plural(len(s.Ranks), "rank"), relays)
	if len(s.Ranks) > 0 {
		fmt.Fprintln(&b, p.ranks(s))
		if t := p.traffic(s); t != "" {
			fmt.Fprintln(&b, t)
		}
		if t := p.lanes(s, rates); t != "" {
			fmt.Fprintln(&b, t)
		} else {
			fmt.Fprintln(&b, "no lane is held")
		}
		notes(&b, s)
	}
	for _, f := range s.Refused {
		fmt.Fprintf(&b, "%s %s: %v: %s\n", p.bad.Render("refused"), f.Name, f.Cause, clean(f.Detail))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (p painter) ranks(s *registry.Snapshot) string {
	var rows [][]string
	for i := range s.Ranks {
		r := &s.Ranks[i]
		state := p.good
		if r.Life == registry.Dead || r.Suspected != "" || r.Off {
			state = p.bad
		}
		server, rule := "-", "-"
		if r.Stats != nil {
			server, rule = clean(r.Stats.Server), clean(dash(r.Stats.RailRule))
		}
		rows = append(rows, []string{
			strconv.Itoa(i), state.Render(condition(r)), clean(strings.Join(r.Rails, " ")), rule, server,
			strconv.Itoa(int(r.Owner.PID)), beat(r), formatSize(r.SlotSize), formatSize(r.ArenaSize),
		})
	}
	return p.table([]string{"rank", "state", "rails", "known by", "segment", "pid", "beat", "slot", "arena"}, 5, rows)
}

// beat is how long ago the heart has beaten: at least, if that was not seen.
func beat(r *registry.Rank) string {
	age := fmt.Sprintf("%.1f s", r.HeartbeatAge.Seconds())
	switch {
	case r.Life == registry.Dead:
		return "-"
	case !r.Beating:
		return "≥ " + age
	}
	return age
}

func (p painter) traffic(s *registry.Snapshot) string {
	var rows [][]string
	for i := range s.Ranks {
		st := s.Ranks[i].Stats
		if st == nil {
			continue
		}
		row := []string{strconv.Itoa(i)}
		for _, way := range []string{"submitted", "direct_same_rail", "direct_cross_rail", "relayed", "failed", "served"} {
			row = append(row, humanBytes(st.Counters[way+".bytes"]))
		}
		rows = append(rows, row)
	}
	if rows == nil {
		return ""
	}
	return p.table([]string{"rank", "submitted", "same rail", "cross rail", "relayed", "failed", "for others"}, 1, rows)
}

func (p painter) lanes(s *registry.Snapshot, rates *statusRates) string {
	number := map[string]int{}
	for i := range s.Ranks {
		number[s.Ranks[i].Name] = i
	}
	headers := []string{"relay", "lane", "state", "sender", "head", "doorbell", "completed", "free", "copying", "waiting", "claimed", "done", "revoked"}
	broken := slices.ContainsFunc(s.Ranks, func(r registry.Rank) bool {
		return slices.ContainsFunc(r.Lanes[:], func(l registry.Lane) bool { return l.Slots.Broken > 0 })
	})
	if broken {
		headers = append(headers, "broken")
	}
	if rates != nil {
		headers = append(headers, "pieces/s")
	}
	var rows [][]string
	for i := range s.Ranks {
		r := &s.Ranks[i]
		for n := range r.Lanes {
			l := &r.Lanes[n]
			if l.State == shmabi.LaneFree {
				continue
			}
			row := []string{"rank " + strconv.Itoa(i), strconv.Itoa(n), laneStateName(l.State), sender(l, number)}
			for _, seq := range []uint64{l.Head, l.Doorbell, l.Completed} {
				row = append(row, strconv.FormatUint(seq, 10))
			}
			c := l.Slots
			for _, slots := range []int{c.Free, c.Copying, c.Waiting, c.Claimed, c.Done, c.Revoked} {
				row = append(row, strconv.Itoa(slots))
			}
			if broken {
				row = append(row, strconv.Itoa(c.Broken))
			}
			if rates != nil {
				row = append(row, strconv.FormatFloat(rates.perSecond[laneKey(r, n)], 'f', 0, 64))
			}
			rows = append(rows, row)
		}
	}
	if rows == nil {
		return ""
	}
	return p.table(headers, 4, rows)
}

func sender(l *registry.Lane, number map[string]int) string {
	name := senderName(l)
	if i, ok := number[name]; ok {
		return "rank " + strconv.Itoa(i)
	}
	switch {
	case l.State != shmabi.LaneReady:
		return "-"
	case name == "":
		return "given back"
	}
	return "pid " + strconv.Itoa(int(l.Sender.PID)) + ", not here"
}

// notes are the lines that only some ranks have.
func notes(b *strings.Builder, s *registry.Snapshot) {
	for i := range s.Ranks {
		r := &s.Ranks[i]
		if r.Suspected != "" {
			fmt.Fprintf(b, "rank %d: %s\n", i, r.Suspected)
		}
		if !r.SameNamespace {
			fmt.Fprintf(b, "rank %d: another pid namespace, or another boot: its pid means nothing here\n", i)
		}
		if r.StatsError != "" {
			fmt.Fprintf(b, "rank %d: no counters: %s\n", i, clean(r.StatsError))
		}
		if r.Stats == nil {
			continue
		}
		var reasons []string
		for _, name := range slices.Sorted(maps.Keys(r.Stats.Counters)) {
			rest, ok := strings.CutPrefix(name, "reason.")
			why, ops := strings.CutSuffix(rest, ".ops")
			if n := r.Stats.Counters[name]; ok && ops && n > 0 {
				reasons = append(reasons, fmt.Sprintf("%s %d (%s)", clean(why), n, humanBytes(r.Stats.Counters["reason."+why+".bytes"])))
			}
		}
		if reasons != nil {
			fmt.Fprintf(b, "rank %d: not relayed: %s\n", i, strings.Join(reasons, ", "))
		}
		for _, dst := range r.Stats.MayStillLand {
			fmt.Fprintf(b, "rank %d: may still land: %s\n", i, clean(dst))
		}
	}
}

func showGroups(w io.Writer, l groupList) error {
	p := newPainter(w)
	if len(l.Groups) == 0 {
		_, err := fmt.Fprintf(w, "no group in %s\n", l.Registry)
		return err
	}
	var rows [][]string
	for _, g := range l.Groups {
		relays := "on"
		switch {
		case g.Error != "":
			relays = p.bad.Render(g.Error)
		case g.Off:
			relays = p.bad.Render("off")
		}
		rows = append(rows, []string{g.Group, relays, strconv.Itoa(g.Ranks), strconv.Itoa(g.Dead), strconv.Itoa(g.Lanes), strconv.Itoa(g.Refused)})
	}
	_, err := fmt.Fprintln(w, p.table([]string{"group", "relays", "ranks", "dead", "lanes held", "refused"}, 2, rows))
	return err
}

// humanBytes writes a size in three digits, with a decimal unit.
func humanBytes(n uint64) string {
	if n < 1000 {
		return strconv.FormatUint(n, 10) + " B"
	}
	v := float64(n)
	unit := 0
	for ; v >= 999.5 && unit < 6; unit++ {
		v /= 1000
	}
	digits := 2
	if v >= 99.95 {
		digits = 0
	} else if v >= 9.995 {
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}[unit]
}

// clean keeps what a rank wrote from steering the terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
