package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// variable is one row of the table.
type variable struct {
	name    string
	others  []string // further names, looked at in order where name is not set
	kind    string   // for people: "integer", "seconds", …
	def     string   // the default as it would be written; "" means none
	valid   string   // for people: "an integer from 1 to 255"
	meaning string
	secret  bool // never printed, and not trimmed
	present bool // on as soon as it is set, whatever its value
	// set parses text and stores the result, or leaves e alone and returns an
	// error. used is not empty if another value than text was stored.
	set func(e *Env, text string) (used string, err error)
}

// section is a part of the table with a heading.
type section struct {
	title string
	vars  []variable
}

// errValue is returned by set for whatever is not valid. What is valid stands
// in the row, so there is nothing to add.
var errValue = errors.New("config: not a valid value")

// option changes a row.
type option func(*variable)

func row(v variable, opts []option) variable {
	for _, o := range opts {
		o(&v)
	}
	return v
}

// orElse adds further names of the variable.
func orElse(names ...string) option {
	return func(v *variable) { v.others = names }
}

// inRange reads a decimal number from lo to hi, or def, which may lie outside: a
// word such as -1 for "choose".
func inRange(text, def string, lo, hi int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || (n < lo || n > hi) && text != def {
		return 0, errValue
	}
	return n, nil
}

// clamp reads a decimal number and moves it into lo to hi; used says where to.
func clamp(text string, lo, hi int) (n int, used string, err error) {
	given, err := strconv.Atoi(text) // at a range error, the nearest number that fits
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, "", errValue
	}
	if n = min(max(given, lo), hi); n != given {
		used = strconv.Itoa(n)
	}
	return n, used, nil
}

func rangeWords(def string, lo, hi int) string {
	words := fmt.Sprintf("an integer from %d to %d", lo, hi)
	if n, err := strconv.Atoi(def); err == nil && (n < lo || n > hi) {
		return words + ", or " + def
	}
	return words
}

// integer is a decimal number from lo to hi, or the default.
func integer(name string, at func(*Env) *int, def string, lo, hi int, meaning string, opts ...option) variable {
	return row(variable{name: name, kind: "integer", def: def, meaning: meaning, valid: rangeWords(def, lo, hi),
		set: func(e *Env, text string) (string, error) {
			n, err := inRange(text, def, lo, hi)
			if err == nil {
				*at(e) = n
			}
			return "", err
		}}, opts)
}

// clamped is an integer of which values outside the range count as the nearest
// one inside, with a warning.
func clamped(name string, at func(*Env) *int, def string, lo, hi int, meaning string) variable {
	return variable{name: name, kind: "integer", def: def, meaning: meaning, valid: rangeWords(def, lo, hi),
		set: func(e *Env, text string) (string, error) {
			n, used, err := clamp(text, lo, hi)
			if err == nil {
				*at(e) = n
			}
			return used, err
		}}
}

// oneOf is an integer from a short list.
func oneOf(name string, at func(*Env) *int, def string, meaning string, valid ...int) variable {
	words := make([]string, len(valid))
	for i, n := range valid {
		words[i] = strconv.Itoa(n)
	}
	return variable{name: name, kind: "integer", def: def, meaning: meaning, valid: orList(words),
		set: func(e *Env, text string) (string, error) {
			n, err := strconv.Atoi(text)
			if err != nil || !slices.Contains(valid, n) {
				return "", errValue
			}
			*at(e) = n
			return "", nil
		}}
}

// seconds is a duration of lo to hi seconds. A default below lo is the word for
// "off" and stored as 0.
func seconds(name string, at func(*Env) *time.Duration, def string, lo, hi int, meaning string) variable {
	return duration(name, "seconds", time.Second, at, def, lo, hi, meaning)
}

func milliseconds(name string, at func(*Env) *time.Duration, def string, lo, hi int, meaning string) variable {
	return duration(name, "milliseconds", time.Millisecond, at, def, lo, hi, meaning)
}

func duration(name, kind string, unit time.Duration, at func(*Env) *time.Duration, def string, lo, hi int, meaning string) variable {
	return variable{name: name, kind: kind, def: def, meaning: meaning, valid: rangeWords(def, lo, hi),
		set: func(e *Env, text string) (string, error) {
			n, err := inRange(text, def, lo, hi)
			if err == nil {
				*at(e) = time.Duration(max(n, 0)) * unit
			}
			return "", err
		}}
}

// clampedSeconds is to seconds what clamped is to integer.
func clampedSeconds(name string, at func(*Env) *time.Duration, def string, lo, hi int, meaning string) variable {
	return variable{name: name, kind: "seconds", def: def, meaning: meaning, valid: rangeWords(def, lo, hi),
		set: func(e *Env, text string) (string, error) {
			n, used, err := clamp(text, lo, hi)
			if err == nil {
				*at(e) = time.Duration(n) * time.Second
			}
			return used, err
		}}
}

const boolWords = "1, true, yes or on; 0, false, no or off"

func parseBool(text string) (value, ok bool) {
	switch strings.ToLower(text) {
	case "1", "true", "yes", "on":
		return true, true
	case "0", "false", "no", "off":
		return false, true
	}
	return false, false
}

func boolean(name string, at func(*Env) *bool, def string, meaning string) variable {
	return variable{name: name, kind: "boolean", def: def, meaning: meaning, valid: boolWords,
		set: func(e *Env, text string) (string, error) {
			on, ok := parseBool(text)
			if !ok {
				return "", errValue
			}
			*at(e) = on
			return "", nil
		}}
}

// presence is a switch as Mooncake has them: on as soon as the variable is set,
// even to 0 or to nothing.
func presence(name string, at func(*Env) *bool, meaning string) variable {
	return variable{name: name, kind: "presence", present: true, meaning: meaning, valid: "any value, even 0 or an empty one",
		set: func(e *Env, _ string) (string, error) {
			*at(e) = true
			return "", nil
		}}
}

// enum is one of a few words, in any case; the word is stored as listed.
func enum(name string, at func(*Env) *string, def string, meaning string, words ...string) variable {
	return variable{name: name, kind: "word", def: def, meaning: meaning, valid: orList(words),
		set: func(e *Env, text string) (string, error) {
			for _, w := range words {
				if strings.EqualFold(w, text) {
					*at(e) = w
					return "", nil
				}
			}
			return "", errValue
		}}
}

// text is a string without control characters.
func text(name string, at func(*Env) *string, meaning string) variable {
	return variable{name: name, kind: "string", meaning: meaning, valid: "UTF-8 without control characters",
		set: func(e *Env, text string) (string, error) {
			if !printable(text) {
				return "", errValue
			}
			*at(e) = text
			return "", nil
		}}
}

// host is a name or an address: text that can stand before the "@" of a NIC path.
func host(name string, at func(*Env) *string, meaning string) variable {
	return variable{name: name, kind: "host", meaning: meaning, valid: `a host name or an address, without blanks, "/" and "@"`,
		set: func(e *Env, text string) (string, error) {
			if !printable(text) || strings.ContainsAny(text, " /@") {
				return "", errValue
			}
			*at(e) = text
			return "", nil
		}}
}

func custom(name, kind, def, valid, meaning string, set func(e *Env, text string) error) variable {
	return variable{name: name, kind: kind, def: def, valid: valid, meaning: meaning,
		set: func(e *Env, text string) (string, error) { return "", set(e, text) }}
}

func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}

// parseSize reads a count of bytes: plain, or with a binary suffix (K, KiB, M,
// MiB, G, GiB, in any case).
func parseSize(text string) (int, error) {
	digits := strings.TrimRight(text, "KMGIBkmgib")
	shift := 0
	switch strings.ToUpper(text[len(digits):]) {
	case "", "B":
	case "K", "KIB":
		shift = 10
	case "M", "MIB":
		shift = 20
	case "G", "GIB":
		shift = 30
	default:
		return 0, errValue
	}
	n, err := strconv.Atoi(strings.TrimRight(digits, " "))
	if err != nil || n < 0 || n > (1<<62)>>shift {
		return 0, errValue
	}
	return n << shift, nil
}

// orList joins words as "a, b or c".
func orList(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
