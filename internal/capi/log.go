package capi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/railhop/railhop/internal/config"
)

// logFor returns where an engine's messages go: a file in MC_LOG_DIR, or standard error.
func logFor(env config.Log) *slog.Logger {
	var w io.Writer = os.Stderr
	var problem error
	if env.Dir != "" {
		name := filepath.Join(env.Dir, fmt.Sprintf("railhop.%d.log", os.Getpid()))
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err == nil {
			w = f
		}
		problem = err
	}
	log := slog.New(&lines{w: w, mu: new(sync.Mutex), level: env.Level})
	if problem != nil {
		log.Warn("setting not taken: messages go to standard error", "variable", "MC_LOG_DIR", "err", problem)
	}
	return log
}

// lines writes messages as glog does, which is what callers of Mooncake look for:
//
//	E20261201 00:42:01.123456 4711 railhop] transfer failed peer=10.0.0.8:15428 err="…"
type lines struct {
	w      io.Writer
	mu     *sync.Mutex // of w
	level  slog.Level
	attrs  string
	prefix string // of keys
}

// Enabled implements [slog.Handler].
func (l *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }

// Handle implements [slog.Handler].
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	var b bytes.Buffer
	letter := byte('I')
	switch {
	case r.Level >= slog.LevelError:
		letter = 'E'
	case r.Level >= slog.LevelWarn:
		letter = 'W'
	}
	b.WriteByte(letter)
	b.WriteString(r.Time.Format("20060102 15:04:05.000000"))
	fmt.Fprintf(&b, " %d railhop] %s%s", os.Getpid(), r.Message, l.attrs)
	r.Attrs(func(a slog.Attr) bool {
		appendAttr(&b, l.prefix, a)
		return true
	})
	b.WriteByte('\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.w.Write(b.Bytes())
	return err
}

// WithAttrs implements [slog.Handler].
func (l *lines) WithAttrs(attrs []slog.Attr) slog.Handler {
	var b bytes.Buffer
	for _, a := range attrs {
		appendAttr(&b, l.prefix, a)
	}
	c := *l
	c.attrs += b.String()
	return &c
}

// WithGroup implements [slog.Handler].
func (l *lines) WithGroup(name string) slog.Handler {
	c := *l
	if name != "" {
		c.prefix += name + "."
	}
	return &c
}

func appendAttr(b *bytes.Buffer, prefix string, a slog.Attr) {
	v := a.Value.Resolve()
	switch {
	case a.Equal(slog.Attr{}):
		return
	case v.Kind() == slog.KindGroup:
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, m := range v.Group() {
			appendAttr(b, prefix, m)
		}
		return
	}
	b.WriteByte(' ')
	b.WriteString(prefix)
	b.WriteString(a.Key)
	b.WriteByte('=')
	text := v.String()
	if v.Kind() == slog.KindTime {
		text = v.Time().Format(time.RFC3339Nano)
	}
	if text == "" || strings.ContainsAny(text, " \"=\n\r\t") {
		text = strconv.Quote(text)
	}
	b.WriteString(text)
}
