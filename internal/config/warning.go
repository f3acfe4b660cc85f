package config

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
)

// Warning tells of one variable that was not taken as it was given. Each is
// meant to be logged once.
type Warning struct {
	Name   string // the variable, as it was found
	Value  string // its value, shortened; passwords are hidden
	Valid  string // what is valid, such as "an integer from 1 to 255"; "" where no value is
	Effect string // what happens instead, such as "the default 2 is used"
}

func (w Warning) String() string {
	if w.Value == "" && w.Valid == "" {
		return w.Name + ": " + w.Effect
	}
	s := w.Name + "=" + strconv.Quote(w.Value)
	if w.Valid != "" {
		s += " is not valid: want " + w.Valid
	}
	return s + "; " + w.Effect
}

// LogValue makes a warning a group of attributes.
func (w Warning) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("name", w.Name),
		slog.String("value", w.Value),
		slog.String("valid", w.Valid),
		slog.String("effect", w.Effect),
	)
}

// hidden stands in for a password wherever one would be printed.
const hidden = "(hidden)"

// Secret is a text that prints as "(hidden)" in every format.
type Secret string

// Reveal returns the text itself.
func (s Secret) Reveal() string { return string(s) }

// Format writes "(hidden)", or nothing if there is no text to hide.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// MarshalText keeps the text out of JSON and of logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Redact hides the password in a URL such as redis://user:password@host, and
// returns everything else as it is. Use it on connection strings before they
// are printed. It parses nothing, so that a malformed URL is hidden too.
func Redact(s string) string {
	scheme, rest, found := strings.Cut(s, "://")
	at := strings.LastIndexByte(rest, '@')
	if !found || at < 0 {
		return s
	}
	user, _, found := strings.Cut(rest[:at], ":")
	if !found {
		return s
	}
	return scheme + "://" + user + ":" + hidden + rest[at:]
}

// quote makes a value from the environment fit for one line of a log.
func quote(s string) string { return strconv.Quote(shorten(s)) }

func shorten(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:most], len(s))
}
