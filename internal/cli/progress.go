package cli

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar shows how far something is, if a person is looking.
type bar struct{ bar *progressbar.ProgressBar }

// newBar returns a bar of total bytes. It shows nothing with --json, or where
// standard error is no terminal.
func (a *app) newBar(what string, total uint64) bar {
	if a.json || !isTerminal(a.errOut) {
		return bar{}
	}
	return bar{progressbar.NewOptions64(int64(total),
		progressbar.OptionSetWriter(a.errOut),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(true),
		progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(50*time.Millisecond),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "━", SaucerPadding: " ", BarStart: "│", BarEnd: "│"}),
	)}
}

// set moves the bar to a number of bytes.
func (b bar) set(bytes uint64) {
	if b.bar != nil {
		b.bar.Set64(int64(bytes))
	}
}

// done takes the bar away.
func (b bar) done() {
	if b.bar != nil {
		b.bar.Finish()
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
