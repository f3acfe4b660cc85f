package verbs

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// logged is what a provider has logged.
type logged struct{ bytes.Buffer }

func (l *logged) want(t *testing.T, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(l.String(), w) {
			t.Errorf("the log lacks %q:\n%s", w, l.String())
		}
	}
}

// testProvider is a provider without its library.
func testProvider(t *testing.T, o Options) (*logged, *Provider) {
	t.Helper()
	l := &logged{}
	o.Logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o = o.withDefaults()
	return l, &Provider{opts: o, log: o.Logger, skipped: map[string]string{}}
}
