package wire

import (
	"strconv"
	"unicode/utf8"
)

const lowerHex = "0123456789abcdef"

// appendString quotes s as jsoncpp's FastWriter does: ASCII only.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c < utf8.RuneSelf && c != '"' && c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			u, n := utf8.DecodeRuneInString(s[i:])
			dst = appendRune(dst, u)
			i += n
			continue
		}
		i++
	}
	return append(dst, '"')
}

func appendRune(dst []byte, u rune) []byte {
	if u > 0xffff {
		u -= 0x10000
		dst = appendRune(dst, 0xd800+u>>10)
		u = 0xdc00 + u&0x3ff
	}
	return append(dst, '\\', 'u', lowerHex[u>>12&15], lowerHex[u>>8&15], lowerHex[u>>4&15], lowerHex[u&15])
}

func appendUint32s(dst []byte, vs []uint32) []byte {
	dst = append(dst, '[')
	for i, v := range vs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(v), 10)
	}
	return append(dst, ']')
}

func appendStrings(dst []byte, ss []string) []byte {
	dst = append(dst, '[')
	for i, s := range ss {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, s)
	}
	return append(dst, ']')
}

// appendHex16 appends v as a quoted number of 16 hex digits.
func appendHex16(dst []byte, v uint64) []byte {
	dst = append(dst, '"')
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, lowerHex[v>>shift&15])
	}
	return append(dst, '"')
}

// hex16 reads a string of 16 hex digits; an empty one is 0.
func (r *reader) hex16() (uint64, error) {
	r.peek()
	start := r.pos
	s, err := r.text()
	if err != nil || s == "" {
		return 0, err
	}
	v, err := strconv.ParseUint(s, 16, 64)
	if len(s) != 16 || err != nil {
		return 0, r.refuse(start, "16 hex digits")
	}
	return v, nil
}
