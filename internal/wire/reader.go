package wire

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep values may nest, jsoncpp's limit.
const maxDepth = 1000

// reader walks JSON text once and builds no tree, so that a body costs no more
// memory than what is kept of it. It takes what jsoncpp takes: comments, commas
// before a closing bracket, repeated members (the last one counts), anything
// after the value.
type reader struct {
	message string // for errors
	b       []byte
	pos     int
	depth   int
}

func (r *reader) syntax(problem string) error {
	return &SyntaxError{Offset: r.pos, Problem: problem}
}

// refuse is the error for the value that starts at start: not what is wanted, or
// no value at all.
func (r *reader) refuse(start int, want string) error {
	r.pos = start
	if err := r.skip(); err != nil {
		return err
	}
	return &FieldError{Message: r.message, Have: show(r.b[start:r.pos]), Want: want}
}

// peek returns the first byte of the next token, 0 at the end of the text.
func (r *reader) peek() byte {
	for r.pos < len(r.b) {
		switch c := r.b[r.pos]; c {
		case ' ', '\t', '\n', '\r':
			r.pos++
		case '/':
			if !r.comment() {
				return c
			}
		default:
			return c
		}
	}
	return 0
}

// comment steps over a comment and reports whether there was one.
func (r *reader) comment() bool {
	rest := r.b[r.pos:]
	switch {
	case bytes.HasPrefix(rest, []byte("//")):
		n := bytes.IndexByte(rest, '\n')
		if n < 0 {
			n = len(rest) - 1
		}
		r.pos += n + 1
	case bytes.HasPrefix(rest, []byte("/*")):
		n := bytes.Index(rest[2:], []byte("*/"))
		if n < 0 {
			return false
		}
		r.pos += 2 + n + 2
	default:
		return false
	}
	return true
}

// literal steps over word if it is next.
func (r *reader) literal(word string) bool {
	r.peek()
	if !bytes.HasPrefix(r.b[r.pos:], []byte(word)) {
		return false
	}
	r.pos += len(word)
	return true
}

// object calls member with each name; member must consume the value. A null
// counts as an object without members.
func (r *reader) object(member func(name string) error) error {
	switch r.peek() {
	case '{':
	case 'n':
		return r.null()
	default:
		return r.refuse(r.pos, "an object")
	}
	return r.members('}', func(int) error {
		if r.peek() != '"' {
			return r.syntax("want a member's name")
		}
		name, err := r.quoted()
		if err != nil {
			return err
		}
		if r.peek() != ':' {
			return r.syntax("want a colon")
		}
		r.pos++
		if err := member(name); err != nil {
			return within(err, show([]byte(name)))
		}
		return nil
	})
}

// array calls element with each index; element must consume the value. A null
// counts as an array without elements.
func (r *reader) array(element func(i int) error) error {
	switch r.peek() {
	case '[':
	case 'n':
		return r.null()
	default:
		return r.refuse(r.pos, "an array")
	}
	return r.members(']', func(i int) error {
		if err := element(i); err != nil {
			return within(err, index(i))
		}
		return nil
	})
}

// members walks what is between brackets, the opening one being next.
func (r *reader) members(closing byte, one func(i int) error) error {
	if r.depth++; r.depth > maxDepth {
		return r.syntax("nested too deep")
	}
	defer func() { r.depth-- }()
	r.pos++
	for i := 0; ; i++ {
		if r.peek() == closing {
			r.pos++
			return nil
		}
		if err := one(i); err != nil {
			return err
		}
		switch r.peek() {
		case ',':
			r.pos++
		case closing:
		default:
			return r.syntax(fmt.Sprintf("want a comma or %q", closing))
		}
	}
}

func (r *reader) null() error {
	if !r.literal("null") {
		return r.syntax("want a value")
	}
	return nil
}

// skip steps over one value of any kind.
func (r *reader) skip() error {
	switch c := r.peek(); {
	case c == '{':
		return r.object(func(string) error { return r.skip() })
	case c == '[':
		return r.array(func(int) error { return r.skip() })
	case c == '"':
		return r.skipQuoted()
	case c == '-' || c >= '0' && c <= '9':
		_, err := r.number()
		return err
	case r.literal("true") || r.literal("false"):
		return nil
	}
	return r.null()
}

// text reads a string. A null counts as an empty one, and a number as its
// digits.
func (r *reader) text() (string, error) {
	switch c := r.peek(); {
	case c == '"':
		return r.quoted()
	case c == 'n':
		return "", r.null()
	case c == '-' || c >= '0' && c <= '9':
		raw, err := r.number()
		return string(raw), err
	}
	return "", r.refuse(r.pos, "a string")
}

// unsigned reads an integer from 0 to most. A null counts as 0; 1.0 and 1e0 are
// integers.
func (r *reader) unsigned(most uint64) (uint64, error) {
	c := r.peek()
	start := r.pos
	switch {
	case c == 'n':
		return 0, r.null()
	case c == '-' || c >= '0' && c <= '9':
		raw, err := r.number()
		if err != nil {
			return 0, err
		}
		if v, ok := integer(raw); ok && v <= most {
			return v, nil
		}
	}
	return 0, r.refuse(start, "an integer from 0 to "+strconv.FormatUint(most, 10))
}

// integer converts a number's text, without loss or not at all.
func integer(raw []byte) (v uint64, ok bool) {
	for _, c := range raw {
		if c < '0' || c > '9' {
			const exact = 1 << 53
			f, err := strconv.ParseFloat(string(raw), 64)
			if err != nil || f < 0 || f > exact || f != math.Trunc(f) {
				return 0, false
			}
			return uint64(f), true
		}
		d := uint64(c - '0')
		if v > math.MaxUint64/10 || v == math.MaxUint64/10 && d > math.MaxUint64%10 {
			return 0, false
		}
		v = v*10 + d
	}
	return v, len(raw) > 0
}

// number returns the text of the number that is next.
func (r *reader) number() ([]byte, error) {
	start, plain := r.pos, true
	for ; r.pos < len(r.b); r.pos++ {
		c := r.b[r.pos]
		if c >= '0' && c <= '9' {
			continue
		}
		if c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' {
			break
		}
		plain = false
	}
	raw := r.b[start:r.pos]
	if !plain {
		// Infinite is still a number; only its use is refused.
		if f, err := strconv.ParseFloat(string(raw), 64); err != nil && !math.IsInf(f, 0) {
			r.pos = start
			return nil, r.syntax("want a number")
		}
	}
	return raw, nil
}

// skipQuoted steps over a string without making one.
func (r *reader) skipQuoted() error {
	for i := r.pos + 1; i < len(r.b); i++ {
		switch r.b[i] {
		case '\\':
			i++
		case '"':
			r.pos = i + 1
			return nil
		}
	}
	return r.syntax("string without an end")
}

// quoted reads the string that is next.
func (r *reader) quoted() (string, error) {
	start := r.pos + 1
	rest := r.b[start:]
	n := bytes.IndexByte(rest, '"')
	if n < 0 {
		return "", r.syntax("string without an end")
	}
	if bytes.IndexByte(rest[:n], '\\') < 0 {
		r.pos = start + n + 1
		return string(rest[:n]), nil
	}
	var out []byte
	for r.pos = start; r.pos < len(r.b); {
		switch c := r.b[r.pos]; c {
		case '"':
			r.pos++
			return string(out), nil
		case '\\':
			var err error
			if out, err = r.escape(out); err != nil {
				return "", err
			}
		default:
			out = append(out, c)
			r.pos++
		}
	}
	return "", r.syntax("string without an end")
}

// escape appends what the escape sequence that is next stands for.
func (r *reader) escape(out []byte) ([]byte, error) {
	if r.pos+1 >= len(r.b) {
		return nil, r.syntax("string without an end")
	}
	c := r.b[r.pos+1]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		u, ok := r.hex4(r.pos)
		if !ok {
			return nil, r.syntax("bad \\u escape")
		}
		r.pos += 6
		if utf16.IsSurrogate(u) {
			low, _ := r.hex4(r.pos)
			if u = utf16.DecodeRune(u, low); u != utf8.RuneError {
				r.pos += 6
			}
		}
		return utf8.AppendRune(out, u), nil
	default:
		return nil, r.syntax("bad escape in a string")
	}
	r.pos += 2
	return append(out, c), nil
}

// hex4 reads the \uXXXX at pos.
func (r *reader) hex4(pos int) (rune, bool) {
	if pos+6 > len(r.b) || r.b[pos] != '\\' || r.b[pos+1] != 'u' {
		return 0, false
	}
	v, err := strconv.ParseUint(string(r.b[pos+2:pos+6]), 16, 16)
	return rune(v), err == nil
}
