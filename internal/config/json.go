package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// member is a name and its value in a JSON object.
type member struct {
	name  string
	value json.RawMessage
}

// parseObject reads text as one JSON object and nothing behind it. Unlike
// encoding/json it refuses a name that appears twice and text that is not UTF-8.
// Members come in the order of the text.
func parseObject(text string) ([]member, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("JSON: the text is not UTF-8")
	}
	var whole json.RawMessage
	if err := json.Unmarshal([]byte(text), &whole); err != nil {
		if e, ok := errors.AsType[*json.SyntaxError](err); ok {
			return nil, fmt.Errorf("JSON: column %d: %w", e.Offset, err)
		}
		return nil, fmt.Errorf("JSON: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(whole))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("JSON: column 1: want an object")
	}
	var members []member
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("JSON: %w", err)
		}
		name, _ := token.(string) // the text is known to be valid: only a string stands here
		if seen[name] {
			return nil, fmt.Errorf("JSON: column %d: the name %s appears twice", dec.InputOffset(), quote(name))
		}
		seen[name] = true
		m := member{name: name}
		if err := dec.Decode(&m.value); err != nil {
			return nil, fmt.Errorf("JSON: %w", err)
		}
		members = append(members, m)
	}
	return members, nil
}

// parseRailMap reads MC_PXN_RAIL_MAP: device name to canonical rail.
func parseRailMap(text string) (map[string]string, error) {
	members, err := parseObject(text)
	if err != nil {
		return nil, err
	}
	rails := make(map[string]string, len(members))
	for _, m := range members {
		var rail *string
		if err := json.Unmarshal(m.value, &rail); err != nil || rail == nil {
			return nil, fmt.Errorf("the rail of %s is not a string", quote(m.name))
		}
		for _, s := range [2]string{m.name, *rail} {
			// Rails lie NUL-terminated in the control block.
			if len(s) < 1 || len(s) > 255 || bytes.IndexByte([]byte(s), 0) >= 0 {
				return nil, fmt.Errorf("%s is not 1 to 255 bytes without NUL", quote(s))
			}
		}
		rails[m.name] = *rail
	}
	return rails, nil
}
