package config

import (
	"os"
	"strings"
)

// Lookup finds a variable, as os.LookupEnv does.
type Lookup func(name string) (value string, ok bool)

// FromEnviron loads the environment of this process. It looks for misspelt names
// too, which [Load] cannot see.
func FromEnviron() (Env, []Warning) {
	env, warnings := Load(os.LookupEnv)
	environ := os.Environ()
	names := make([]string, len(environ))
	for i, kv := range environ {
		names[i], _, _ = strings.Cut(kv, "=")
	}
	return env, append(warnings, Misspelt(names)...)
}

// Default returns what an empty environment yields.
func Default() Env {
	env, _ := Load(func(string) (string, bool) { return "", false })
	return env
}

// Load reads every variable of the table, each once, by lookup. Values are
// trimmed; an empty one counts as not set, except where presence is what counts.
// There is one warning for each value that was not taken as it was given.
func Load(lookup Lookup) (Env, []Warning) {
	var l loader
	for _, s := range table() {
		for i := range s.vars {
			l.load(lookup, &s.vars[i])
		}
	}
	l.relate()
	for _, o := range withoutEffect() {
		if value, ok := lookup(o.name); ok {
			l.warn(Warning{Name: o.name, Value: value, Effect: "it has no effect: " + o.why})
		}
	}
	return l.env, l.warnings
}

// loader holds what has been loaded so far.
type loader struct {
	env      Env
	warnings []Warning
	bad      []string // variables whose value was refused
}

func (l *loader) load(lookup Lookup, v *variable) {
	if v.def != "" {
		// A default is valid by a test of the table.
		_, _ = v.set(&l.env, v.def)
	}
	from, value, ok := v.find(lookup)
	if !ok {
		return
	}
	shown := value
	if v.secret {
		shown = hidden
	}
	used, err := v.set(&l.env, value)
	switch {
	case err != nil:
		l.refuse(v, Warning{Name: from, Value: shown, Valid: v.valid})
		return
	case used != "":
		l.warn(Warning{Name: from, Value: shown, Valid: v.valid, Effect: used + " is used"})
	case v.present && looksOff(value):
		l.warn(Warning{Name: from, Value: shown, Effect: "it is on, since any value switches it on: unset it to switch it off"})
	}
	l.env.Set = append(l.env.Set, Setting{Name: v.name, From: from, Value: shown})
}

// find returns the value of the first of v's names that is set.
func (v *variable) find(lookup Lookup) (from, value string, ok bool) {
	for i := -1; i < len(v.others); i++ {
		from = v.name
		if i >= 0 {
			from = v.others[i]
		}
		if value, ok = lookup(from); !ok {
			continue
		}
		if !v.secret {
			value = strings.TrimSpace(value)
		}
		if value != "" || v.present {
			return from, value, true
		}
	}
	return "", "", false
}

// refuse notes that a value was not valid, and what that leads to.
func (l *loader) refuse(v *variable, w Warning) {
	l.bad = append(l.bad, v.name)
	switch {
	case strings.HasPrefix(v.name, "MC_PXN_"):
		w.Effect = "the PXN relay stays off"
		l.pxnOff(w)
	case v.name == fragmentRatio:
		w.Effect = "4 is used"
	case v.name == minRPCPort || v.name == maxRPCPort:
		w.Effect = rpcPortsRevert
	case v.def == "":
		w.Effect = "it is ignored"
	default:
		w.Effect = "the default " + v.def + " is used"
	}
	l.warn(w)
}

func (l *loader) pxnOff(w Warning) {
	if l.env.PXN.Off == "" {
		w.Value = shorten(w.Value)
		l.env.PXN.Off = w.String()
	}
}

func (l *loader) warn(w Warning) {
	w.Value = shorten(w.Value)
	l.warnings = append(l.warnings, w)
}

// given returns the setting of a variable, if it was set and taken.
func (l *loader) given(name string) (Setting, bool) {
	for _, s := range l.env.Set {
		if s.Name == name {
			return s, true
		}
	}
	return Setting{}, false
}

func looksOff(value string) bool {
	on, isBool := parseBool(value)
	return value == "" || isBool && !on
}
