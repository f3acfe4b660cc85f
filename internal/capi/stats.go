package capi

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/railhop/railhop"
)

// Stats are the engine's counters in JSON.
func (e *Engine) Stats() ([]byte, error) {
	engine, err := e.use()
	if err != nil {
		return nil, e.fail("stats", err)
	}
	s := engine.Stats()
	transport, why := engine.Transport()
	all := map[string]any{
		"segment": s.Segment, "transport": transport, "transport_why": why,
		"submitted": s.Submitted, "failed": s.Failed,
		"direct_same_rail": s.DirectSameRail, "direct_cross_rail": s.DirectCrossRail, "relayed": s.Relayed,
		"reasons": reasons(s.Reasons), "fallbacks": reasons(s.Fallbacks), "may_land": ranges(s.MayLand),
	}
	if transport == "tcp" {
		all["tcp"], all["tcp_served"] = s.TCP, s.TCPServed
	} else {
		all["direct"], all["lanes"], all["served"] = s.Direct, s.Lanes, s.Served
	}
	text, err := json.Marshal(all)
	if err == nil {
		var plain any
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err = d.Decode(&plain); err == nil {
			text, err = json.Marshal(snake(plain))
		}
	}
	if err != nil {
		return nil, e.fail("stats", err)
	}
	return text, nil
}

func reasons(all map[railhop.Reason]railhop.Flow) map[string]railhop.Flow {
	named := make(map[string]railhop.Flow, len(all))
	for r, f := range all {
		named[r.String()] = f
	}
	return named
}

// ranges is never nil: a caller may count on the list.
func ranges(all []railhop.Range) []railhop.Range { return append([]railhop.Range{}, all...) }

// snake gives all keys of decoded JSON the form of Python's names: dial_failures for
// DialFailures. Values are kept.
func snake(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = snake(v[i])
		}
	case map[string]any:
		renamed := make(map[string]any, len(v))
		for key, value := range v {
			renamed[snakeName(key)] = snake(value)
		}
		return renamed
	}
	return v
}

func snakeName(s string) string {
	var b strings.Builder
	s = strings.ReplaceAll(s, "NICs", "Nics")
	for i, r := range s {
		upper := r >= 'A' && r <= 'Z'
		after := i > 0 && (s[i-1] < 'A' || s[i-1] > 'Z')
		before := i > 0 && i+1 < len(s) && s[i+1] >= 'a' && s[i+1] <= 'z'
		if upper && (after || before) && s[i-1] != '_' {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(string(r)))
	}
	return b.String()
}
